"""The instruction table as Markdown, from the rows of `vm.isa`."""

from __future__ import annotations

from vm.isa import INSTRUCTIONS, Instruction, Kind

_HEADER = ("#", "opcode", "takes, top first", "leaves, top first", "meaning", "can end with")


def instruction_table() -> str:
    """One row an opcode: number, name, operands, results, meaning and the statuses it can end with."""
    rows = [_HEADER, tuple("---" for _ in _HEADER)]
    rows += [_row(opcode, instruction) for opcode, instruction in enumerate(INSTRUCTIONS)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(opcode: int, instruction: Instruction) -> tuple[str, ...]:
    name = f"`{instruction.name} k`" if instruction.reads_arg else f"`{instruction.name}`"
    statuses = ", ".join(status.name for status in instruction.statuses)
    operands, results = _cells(instruction.operands), _cells(instruction.results)
    if instruction.same_type:
        operands += " (a and b of one type)"
    return str(opcode), name, operands, results, instruction.meaning, statuses or "nothing else"


def _cells(kinds: tuple[Kind, ...]) -> str:
    return ", ".join(kind.value for kind in kinds) or "nothing"
