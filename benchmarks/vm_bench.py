"""`bench.py vm`: programs on four examples each, against the plain reference, a naive jax version and C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import numpy as np

import vm
from benchmarks import naive_vm
from benchmarks.compiled_vm import CompiledVM, NoCompilerError
from benchmarks.program_mix import Mix, program_mix
from benchmarks.timing import Contender, Report, compiled, measure
from fuyu_jax.sharding import split_batch
from vm import lowering, reference
from vm.pallas_kernel import run_lanes

BENCH = "vm"
DISTINCT, EXAMPLES = 16_384, 4
RATIO_BATCH = 16_384
LARGE_BATCH = 65_536
GPU_BATCH = 1 << 20
LARGEST_REFERENCE = LARGE_BATCH  # more than this would take the plain reference minutes, at the same speed
THREADS = (1, 2)
MACHINE, NAIVE, REFERENCE, PALLAS = "machine", "naive jax", "Python reference", "Pallas kernel"
TWO_DEVICES = "machine, 2 devices"


def c_case(threads: int) -> str:
    """The name of the C interpreter on that many threads."""
    return f"C, {threads} thread{'s' * (threads > 1)}"


def run(batches: Sequence[int] | None, repeats: int) -> Report:
    """Measure every contender at every batch size (programs); on a GPU the default goes on to a million."""
    on_gpu = jax.default_backend() == "gpu"
    batches = batches or (1, 1024, RATIO_BATCH, LARGE_BATCH, *[GPU_BATCH] * on_gpu)
    report = Report()
    mix = program_mix(max(batches), DISTINCT, EXAMPLES)
    report.notes.append(_describe(mix))
    interpreter = _interpreter(report)
    for batch in batches:
        part: Mix = jax.tree.map(lambda field, batch=batch: field[:batch], mix)
        contenders = _contenders(part, batch, interpreter)
        _check_agreement(contenders)
        report.rows += measure(BENCH, contenders, repeats)
    for name, other in (
        ("vm_vs_reference", REFERENCE),
        ("vm_vs_naive", NAIVE),
        ("vm_vs_compiled", c_case(2)),
    ):
        report.add_ratio(name, RATIO_BATCH, "instructions", (MACHINE, other))
    report.add_ratio("vm_two_devices_vs_one", RATIO_BATCH, "instructions", (TWO_DEVICES, MACHINE))
    report.add_ratio("vm_pallas_vs_xla", GPU_BATCH, "instructions", (PALLAS, MACHINE))
    if {RATIO_BATCH, LARGE_BATCH} <= set(batches):
        small, large = (report.rate(MACHINE, batch, "instructions") for batch in (RATIO_BATCH, LARGE_BATCH))
        report.ratios["vm_instruction_time_65536_vs_16384"] = small / large
    return report


def grid(run_one: Callable[..., vm.Result]) -> Callable[..., vm.Result]:
    """A machine for one program and example as one for programs `[N, L]` and inputs `Value[N, E, 2]`."""
    return jax.vmap(jax.vmap(run_one, (None, 0)))


def pallas_grid(program: vm.Program, inputs: vm.Value) -> vm.Result:
    """The Pallas kernel on programs `[N, L]` and inputs `Value[N, E, 2]`."""
    count, examples, _ = inputs.type.shape
    lanes = jax.tree.map(lambda field: jax.numpy.repeat(field, examples, axis=0), program)
    result = run_lanes(lanes, jax.tree.map(lambda field: field.reshape(count * examples, *field.shape[2:]), inputs))
    return jax.tree.map(lambda field: field.reshape(count, examples, *field.shape[1:]), result)


def reference_lanes(mix: Mix) -> list[tuple[Any, Any]]:
    """Program and inputs of every run for the plain reference, as tuples and ints."""
    programs = [list(zip(*rows, strict=True)) for rows in zip(*(field.tolist() for field in mix.program), strict=True)]
    kinds, lengths, words = (field.tolist() for field in mix.inputs)
    inputs = [
        [list(zip(*cells, map(tuple, rows), strict=True)) for *cells, rows in zip(*example, strict=True)]
        for example in zip(kinds, lengths, words, strict=True)
    ]
    return [(program, cells) for program, examples in zip(programs, inputs, strict=True) for cells in examples]


def _contenders(mix: Mix, batch: int, interpreter: CompiledVM | None) -> list[Contender]:
    examples, slots = mix.inputs.type.shape[1], mix.program.op.shape[1]
    work = {"instructions": batch * examples * slots, "programs": batch}
    options = lowering.compiler_options()
    found = [
        compiled(MACHINE, batch, work, grid(vm.run), *mix, options=options),
        compiled(NAIVE, batch, work, grid(naive_vm.run), *mix, options=options),
    ]
    if batch <= LARGEST_REFERENCE:
        found.append(Contender(REFERENCE, batch, _judge(mix), work))
    if jax.default_backend() == "gpu":
        found.append(compiled(PALLAS, batch, work, pallas_grid, *mix))
    if jax.device_count() == 2 and batch % 2 == 0:
        found.append(compiled(TWO_DEVICES, batch, work, split_batch(grid(vm.run)), *mix, options=options))
    if interpreter is not None:
        for threads in THREADS:
            call = _call(interpreter, mix, threads)
            found.append(Contender(c_case(threads), batch, call, work))
    return found


def _judge(mix: Mix) -> Callable[[], list[reference.Outcome]]:
    lanes = reference_lanes(mix)
    return lambda: [reference.run(program, inputs) for program, inputs in lanes]


def _check_agreement(contenders: Sequence[Contender]) -> None:
    """What is compared must do the same work: every contender gives the values of the first one."""
    right: vm.Result = contenders[0].run()
    for contender in contenders[1:]:
        result = contender.run()
        chex.assert_trees_all_equal(_as_result(result, right) if contender.case == REFERENCE else result, right)


def _as_result(outcomes: list[reference.Outcome], like: vm.Result) -> vm.Result:
    """The plain reference's outcomes in the shape of `like`."""
    outputs, status, pc = zip(*outcomes, strict=True)
    fields = [*zip(*outputs, strict=True), status, pc]
    leaves, structure = jax.tree.flatten(like)
    arrays = [np.array(field, np.int32).reshape(leaf.shape) for field, leaf in zip(fields, leaves, strict=True)]
    return jax.tree.unflatten(structure, arrays)


def _call(interpreter: CompiledVM, mix: Mix, threads: int) -> Callable[[], Any]:
    return lambda: interpreter.run(*mix, threads=threads)


def _interpreter(report: Report) -> CompiledVM | None:
    try:
        interpreter = CompiledVM()
    except NoCompilerError as error:
        report.notes.append(f"The C interpreter is left out: {error}.")
        return None
    report.notes.append(f"The C interpreter was compiled by {interpreter.version()}.")
    return interpreter


def _describe(mix: Mix) -> str:
    """A sentence about the programs."""
    some = jax.tree.map(lambda field: field[:1024], mix)
    status = np.asarray(jax.jit(grid(vm.run))(*some).status)
    nops = float(np.mean(some.program.op == vm.OPCODES.index("NOP")))
    return (
        f"Each program is run on {EXAMPLES} examples; {DISTINCT:,} different ones, then they repeat. "
        f"{100 * np.mean(status == 0):.0f} % of the runs end without a fault and {100 * nops:.0f} % of the slots are "
        "NOP; every slot counts as an instruction, also those after a fault."
    )
