"""What makes a task, once more in plain Python on `vm.reference`: slow, and written apart from the arrays."""

from vm import reference
from vm.isa import OPCODES, READS_ARG

SELECT = OPCODES.index("SELECT")
INPUT = OPCODES.index("INPUT")


def pairs_of(program):
    return [(int(op), int(arg)) for op, arg in zip(program.op, program.arg, strict=True)]


def examples_of(inputs):
    """Inputs of one task `[E, 2]` as a list of (x, y) cells of the reference."""
    return [
        tuple((int(kind[i]), int(length[i]), tuple(words[i].tolist())) for i in (0, 1))
        for kind, length, words in zip(inputs.type, inputs.length, inputs.words, strict=True)
    ]


def cells_of(values):
    """Values `[E]` as a list of cells of the reference."""
    fields = zip(values.type, values.length, values.words, strict=True)
    return [(int(kind), int(length), tuple(words.tolist())) for kind, length, words in fields]


def outputs_of(pairs, examples):
    return [reference.run(pairs, example)[0] for example in examples]


def take_branch(pairs, example, branch):
    """The output when SELECT takes b (`branch` 1) or a (0) whatever its condition says."""
    cells = [(kind, words[:length]) for kind, length, words in example]
    stack = (cells[0],)
    for op, k in pairs:
        stack = (stack[branch], *stack[3:]) if op == SELECT else reference.step(stack, op, k, cells)
    kind, words = stack[0]
    return kind, len(words), (*words, *[0] * (8 - len(words)))


def judge(pairs, examples):
    """The reason to refuse a program on these examples, by name; "accepted" where there is none."""
    results = [reference.run(pairs, example) for example in examples]
    outputs = [output for output, _, _ in results]
    if any(status != reference.OK for _, status, _ in results):
        return "fault"
    if len(set(outputs)) == 1:
        return "constant"
    if outputs == [example[0] for example in examples]:
        return "copies_x"
    for slot, (op, _) in enumerate(pairs):
        if op and outputs_of([*pairs[:slot], (0, 0), *pairs[slot + 1 :]], examples) == outputs:
            return "needless_instruction"
    if SELECT in [op for op, _ in pairs]:
        for branch in (0, 1):
            if [take_branch(pairs, example, branch) for example in examples] == outputs:
                # Without SELECT the program computes "always a", so that case has a reason of its own.
                return "one_branch" if branch else "needless_instruction"
    return "accepted"


def edits_of(pairs):
    """Every program that is one valid edit away."""
    for slot, (op, arg) in enumerate(pairs):
        for other in range(len(OPCODES)):
            if other != op:
                changed = (other, arg if READS_ARG[other] else 0)
                yield [*pairs[:slot], changed, *pairs[slot + 1 :]]
        if READS_ARG[op]:
            for k in range(16):
                if k != arg:
                    yield [*pairs[:slot], (op, k), *pairs[slot + 1 :]]


def misleading_edit(pairs, examples, probes):
    """A program one edit away that passes all examples and differs on a probe, or None."""
    outputs = outputs_of(pairs, examples)
    known = None
    for edited in edits_of(pairs):
        passes = all(
            reference.run(edited, example)[0] == wanted for example, wanted in zip(examples, outputs, strict=True)
        )
        if passes:
            known = known or outputs_of(pairs, probes)
            if outputs_of(edited, probes) != known:
                return edited
    return None
