"""The benchmarks: what they compare with is right, turns and rates are counted right, and the command line works."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest
from vm_random import random_cases, stack_inputs, stack_programs

import vm
from benchmarks import compiled_vm, naive_vm, vm_bench
from benchmarks.command import main
from benchmarks.compiled_vm import CompiledVM, NoCompilerError
from benchmarks.program_mix import program_mix
from benchmarks.timing import Contender, Report, measure
from fuyu_jax.runs.errors import run_main
from vm import reference
from vm.types import Settings, Status

ROOT = Path(__file__).resolve().parents[1]
ROW_KEYS = ["bench", "case", "batch", "compile_s", "run_s", "rate", "unit"]


def random_batch(count: int, seed: int, settings: Settings = vm.DEFAULT_SETTINGS) -> tuple[vm.Program, vm.Value]:
    programs, inputs = random_cases(count, seed, settings)
    return stack_programs(programs), stack_inputs(inputs, settings)


def compiler_is_missing() -> bool:
    return not any(map(shutil.which, ("cc", "gcc", "clang")))


@pytest.mark.parametrize("settings", [Settings(), Settings(5, 2, 3, 4), Settings(4, 1, 8, 16)], ids=str)
def test_the_naive_machine_equals_the_machine(settings: Settings) -> None:
    batch = random_batch(20_000 if settings == Settings() else 3000, 31, settings)
    naive, machine = (
        jax.jit(jax.vmap(lambda program, inputs, run=run: run(program, inputs, settings)))(*batch)
        for run in (naive_vm.run, vm.run)
    )
    chex.assert_trees_all_equal(naive, machine)
    assert settings != Settings() or set(machine.status.tolist()) == set(Status)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_interpreter_in_c_equals_the_machine(threads: int) -> None:
    program, inputs = random_batch(20_001, 32)
    twice = jax.tree.map(lambda field: np.stack([field, np.flip(field, 0)], axis=1), inputs)  # [N, 2, 2, ...]
    program = jax.tree.map(np.ascontiguousarray, program)
    try:
        result = CompiledVM().run(program, twice, threads)
    except NoCompilerError:
        assert compiler_is_missing()
        return
    chex.assert_trees_all_equal(result, jax.jit(vm_bench.grid(vm.run))(program, twice))
    assert set(np.unique(result.status)) == set(Status)


def test_the_interpreter_in_c_refuses_other_arrays() -> None:
    if compiler_is_missing():
        return
    mix = program_mix(2, 2)
    with pytest.raises(ValueError, match="int64"):
        CompiledVM().run(jax.tree.map(lambda field: field.astype(np.int64), mix.program), mix.inputs)


def test_without_a_compiler_the_interpreter_is_left_out_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_vm.shutil, "which", lambda name: None)
    report = Report()
    assert vm_bench._interpreter(report) is None
    assert report.notes == ["The C interpreter is left out: no C compiler (cc, gcc, clang or $CC) was found."]


def test_the_pallas_contender_runs_programs_by_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = vm_bench.run_lanes
    monkeypatch.setattr(vm_bench, "run_lanes", lambda *lanes: kernel(*lanes, interpret=True))
    mix = program_mix(5, 5)
    got, right = (jax.jit(run)(*mix) for run in (vm_bench.pallas_grid, vm_bench.grid(vm.run)))
    chex.assert_trees_all_equal(got, right)


def test_most_programs_of_the_mix_run_and_rows_repeat() -> None:
    mix = program_mix(300, distinct=200)
    outcomes = [reference.run(program, cells) for program, cells in vm_bench.reference_lanes(mix)]
    assert len(outcomes) == 300 * 4
    assert 0.85 < np.mean([status == Status.OK for _, status, _ in outcomes]) < 1
    assert outcomes[:400] == outcomes[800:]
    np.testing.assert_array_equal(mix.program.op[200:], mix.program.op[:100])
    assert len({pairs.tobytes() for pairs in mix.program.op[:200]}) > 195
    chex.assert_trees_all_equal(program_mix(30, 200), jax.tree.map(lambda field: field[:30], mix))


def test_a_contender_that_differs_is_found() -> None:
    mix = program_mix(3, 3)
    right = jax.jit(vm_bench.grid(vm.run))(*mix)
    wrong = right._replace(pc=right.pc + 1)
    contenders = [Contender(case, 3, lambda result=result: result, {}) for case, result in (("a", right), ("b", wrong))]
    vm_bench._check_agreement([contenders[0]] * 2)
    with pytest.raises(AssertionError):
        vm_bench._check_agreement(contenders)


def test_contenders_take_turns_and_rates_are_work_over_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    turns: list[str] = []
    slow = iter([1.0, 1.0, 4.0, 2.0, 9.0])  # warm-up, calibration, then three turns

    def run(name: str, seconds: float) -> None:
        turns.append(name)
        clock[0] += seconds

    monkeypatch.setattr("benchmarks.timing.time.perf_counter", lambda: clock[0])
    contenders = [
        Contender("a", 5, lambda: run("a", next(slow)), {"instructions": 80, "programs": 5}, 7.0),
        Contender("b", 5, lambda: run("b", 0.5), {"programs": 5}),
    ]
    rows = measure("vm", contenders, repeats=3)
    assert turns == ["a", "a", "b", "b", *"ababab"]
    assert [list(row) for row in rows] == [ROW_KEYS] * 3
    assert [list(row.values()) for row in rows] == [
        ["vm", "a", 5, 7.0, 4.0, 20.0, "instructions/s"],
        ["vm", "a", 5, 7.0, 4.0, 1.25, "programs/s"],
        ["vm", "b", 5, 0.0, 0.5, 10.0, "programs/s"],
    ]


def test_a_quick_contender_runs_many_times_in_a_turn() -> None:
    calls = []
    measure("vm", [Contender("a", 1, lambda: calls.append(1), {"programs": 1})], repeats=1)
    assert len(calls) > 1000


def test_ratios_are_rates_and_need_both_cases() -> None:
    row = dict.fromkeys(ROW_KEYS, 1) | {"batch": 8, "unit": "programs/s"}
    report = Report([row | {"case": "a", "rate": 6.0}, row | {"case": "b", "rate": 4.0}])
    report.add_ratio("a_vs_b", 8, "programs", ("a", "b"))
    report.add_ratio("a_vs_c", 8, "programs", ("a", "c"))
    report.add_ratio("at_nine", 9, "programs", ("a", "b"))
    assert report.ratios == {"a_vs_b": 1.5}


def test_the_script_measures_and_writes(tmp_path: Path) -> None:
    file = tmp_path / "new" / "bench.json"
    script = [sys.executable, "experiments/bench.py", "vm", "--batches", "2,64", "--repeats", "1", "--json", str(file)]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(file.read_text())
    assert list(content) == ["machine", "rows", "ratios", "notes"]
    assert {"processor", "cores", "memory_gib", "load_average", "devices", "packages"} <= set(content["machine"])
    cases = {vm_bench.MACHINE, vm_bench.NAIVE, vm_bench.REFERENCE, vm_bench.TWO_DEVICES}
    if not compiler_is_missing():
        cases |= {vm_bench.c_case(1), vm_bench.c_case(2)}
    met = {(row["case"], row["batch"], row["unit"]) for row in content["rows"]}
    assert met == set(product(cases, (2, 64), ("instructions/s", "programs/s")))
    for row in content["rows"]:
        assert list(row) == ROW_KEYS
        work = row["batch"] * (4 * 8 if row["unit"] == "instructions/s" else 1)
        assert row["rate"] * row["run_s"] == pytest.approx(work)
    page = file.with_suffix(".md").read_text()
    assert "bench.png" in page and content["machine"]["processor"] in page
    assert file.with_suffix(".png").stat().st_size > 1000


@pytest.mark.slow
def test_every_other_bench_measures(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    main(["expand", "oracle", "tasks", "--batches", "8,64", "--repeats", "1", "--json", str(file)])
    content: dict[str, Any] = json.loads(file.read_text())
    assert {row["bench"] for row in content["rows"]} == {"expand", "oracle", "tasks"}
    assert "tasks_per_second" in {row["case"] for row in content["rows"]}
    assert {"candidates/s", "states/s", "tasks/s", "programs/s"} == {row["unit"] for row in content["rows"]}
    assert all(row["rate"] > 0 for row in content["rows"])
    assert content["ratios"]["expand_vs_rerun"] > 0
    assert "bench.png" not in file.with_suffix(".md").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["speed"], "there is no bench 'speed'; use one of vm, "),
        ([], "the following arguments are required: BENCH; --help lists the options."),
        (["vm", "--fast"], "unknown option --fast; --help lists the options."),
        (["vm", "--repeat", "3"], "unknown option --repeat; did you mean --repeats?"),
        (["vm", "--repeats", "0"], "--repeats is '0'; use whole numbers from 1 to 1000."),
        (["vm", "--batches", "4,x"], "--batches is 'x'; use whole numbers from 1 to "),
        (["vm", "--json", "table.csv"], "--json is table.csv; give a file name that ends in .json."),
        (["vm", "--json", ""], "--json is .; give a file name that ends in .json."),
        (["vm", "--json", "folder.json"], "--json folder.json is a folder; give the name of a file."),
        (
            ["vm", "--json", "file/a.json"],
            "the folder of --json file/a.json can't be made (File exists); give another.",
        ),
    ],
)
def test_bad_input_is_told_in_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder.json").mkdir()
    assert run_main(main, words) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
