"""Tasks one at a time: what they are made of, why candidates are refused, and that they depend on nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import slow_judge
from hypothesis import given, settings
from hypothesis import strategies as st

import vm
from vm import prompts
from vm.ambiguity import ambiguous
from vm.behaviour import probe_inputs
from vm.candidates import ACCEPTED, REFUSALS, Candidate, draw_inputs, judge, scattered_kind, task_key
from vm.chunks import Judged, ReasonLog, Recipe, judged
from vm.grammar import FAMILIES, SIGNATURES
from vm.isa import READS_ARG
from vm.tasks import candidates

SETTINGS = vm.Settings()
TRAIN = vm.SPLITS.index("train")


def assert_trees_equal(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


def row_of(tree, row):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[row], tree)


_CANDIDATES = jax.jit(lambda indices: candidates("train", 7, indices))


@pytest.fixture(scope="module")
def train():
    return vm.make_tasks("train", 7, 96)


@pytest.fixture(scope="module")
def drawn():
    """Candidates of training, the refused ones among them, with their reasons."""
    return jax.tree.map(np.asarray, _CANDIDATES(jnp.arange(256, dtype=jnp.uint32)))


def test_shapes_and_types_of_a_set_of_tasks():
    tasks = vm.make_tasks("val_mixed", 0, 5)
    assert len(tasks) == 5 and tasks.split == "val_mixed" and tasks.seed == 0
    assert tasks.public.inputs.words.shape == (5, 4, 2, 8) and tasks.public.targets.words.shape == (5, 4, 8)
    assert tasks.hidden.inputs.type.shape == (5, 16, 2) and tasks.hidden.targets.length.shape == (5, 16)
    assert tasks.reference.op.shape == tasks.start.arg.shape == (5, 8)
    assert tasks.family.shape == tasks.arrays.length.shape == (5,)
    assert all(leaf.dtype == jnp.int32 for leaf in jax.tree.leaves(tasks.arrays))
    assert all(isinstance(text, str) for text in tasks.prompts)


def test_shapes_follow_the_numbers_of_examples():
    indices = jnp.arange(3, dtype=jnp.uint32)
    tasks, reasons = jax.eval_shape(lambda i: candidates("train", 0, i, public=2, hidden=7), indices)
    assert tasks.public.inputs.words.shape == (3, 2, 2, 8) and tasks.hidden.targets.words.shape == (3, 7, 8)
    assert reasons.shape == (3,) and reasons.dtype == jnp.int32


def test_targets_are_what_the_reference_gives(train):
    for row in range(40):
        pairs = slow_judge.pairs_of(row_of(train.reference, row))
        for examples in (train.public, train.hidden):
            inputs, targets = row_of(examples, row)
            assert slow_judge.outputs_of(pairs, slow_judge.examples_of(inputs)) == slow_judge.cells_of(targets)


def test_inputs_lie_in_their_ranges_and_a_third_of_the_numbers_near_an_immediate(train):
    near, numbers, lengths = 0, 0, set()
    for row in range(len(train)):
        op, arg = row_of(train.reference, row)
        immediates = arg[READS_ARG[op] & (op != vm.OPCODES.index("INPUT"))]
        for inputs in (row_of(train.public.inputs, row), row_of(train.hidden.inputs, row)):
            used = np.arange(8) < inputs.length[..., None]
            assert not np.any(inputs.words[~used])
            words = inputs.words[used]
            assert words.min() >= -20 and words.max() <= 40
            lengths.update(inputs.length[inputs.type == vm.Type.LIST].tolist())
            if len(immediates):
                near += np.sum(np.abs(words[:, None] - immediates[None]).min(axis=1) <= 1)
                numbers += len(words)
    by_chance = 5 / 61  # of the other two thirds, for one or two immediates
    assert 1 / 3 - 0.02 < near / numbers < 1 / 3 + 2 / 3 * by_chance + 0.03
    assert lengths == set(range(1, 9))


def test_inputs_of_an_example_do_not_depend_on_how_many_are_asked_for(train):
    program = row_of(train.reference, 3)
    key = task_key(jnp.uint32(7), jnp.int32(TRAIN), jnp.uint32(11))
    draw = jax.jit(draw_inputs, static_argnums=(3, 4))
    many, few = (draw(key, program, jnp.int32(3), count, SETTINGS) for count in (20, 6))
    assert_trees_equal(jax.tree.map(lambda leaf: leaf[:6], many), few)


def test_the_reasons_of_candidates_are_those_of_the_slow_judge(drawn):
    tasks, reasons = drawn
    seen = set()
    for row in range(256):
        reason = REFUSALS[reasons[row]]
        if reason in ("no_proper_program", "wrong_split"):
            continue
        examples = [
            example
            for inputs in (tasks.public.inputs, tasks.hidden.inputs)
            for example in slow_judge.examples_of(row_of(inputs, row))
        ]
        assert slow_judge.judge(slow_judge.pairs_of(row_of(tasks.reference, row)), examples) == reason
        seen.add(reason)
    assert seen >= {"accepted", "fault", "constant", "copies_x", "needless_instruction"}


@pytest.mark.parametrize(
    ("text", "signature", "reason"),
    [
        ("ADDI 3; MULI 2", (vm.Type.INT,), "accepted"),
        ("INPUT 1; DIV", (vm.Type.INT, vm.Type.INT), "fault"),
        ("GTI 15; NOT; GTI 15", (vm.Type.INT,), "fault"),
        ("MULI 0", (vm.Type.LIST,), "constant"),
        ("POP; CONST 4", (vm.Type.INT,), "constant"),
        ("ADDI 0", (vm.Type.INT,), "copies_x"),
        ("SORT; ADDI 1; SUM", (vm.Type.LIST,), "needless_instruction"),
        ("LTI 4; INPUT 0; CONST 4; SELECT", (vm.Type.INT,), "accepted"),
        ("DUP; EQ; INPUT 0; NEG; CONST 4; SELECT", (vm.Type.INT,), "one_branch"),
    ],
)
def test_programs_refused_by_hand(text, signature, reason):
    program = vm.assemble(text)
    xs = [-20, -3, 4, 5, 15, 16, 40]
    ys = [3, 2, 1, 0, -1, 7, 9]
    x_of = {vm.Type.INT: lambda x: x, vm.Type.LIST: lambda x: [x, 1]}[signature[0]]
    cells = [[vm.from_python(x_of(x)), vm.from_python(y if len(signature) == 2 else None)]
             for x, y in zip(xs, ys, strict=True)]  # fmt: skip
    inputs = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves).reshape(7, 2, *leaves[0].shape)),
                          *[cell for pair in cells for cell in pair])  # fmt: skip
    family = jnp.int32(FAMILIES.index("conditional" if "SELECT" in text else "arithmetic_one"))
    length = jnp.int32(text.count(";") + 1)
    zero = jnp.int32(0)
    plan = vm.PromptPlan(zero, jnp.zeros(8, jnp.int32), length, zero)
    candidate = Candidate(program, plan, length, family, jnp.int32(SIGNATURES.index(signature)), zero)
    _, code = judge(candidate, inputs, SETTINGS)
    assert REFUSALS[int(code)] == reason
    assert slow_judge.judge(slow_judge.pairs_of(program), slow_judge.examples_of(row_of(inputs, slice(None)))) == reason


def test_training_tasks_are_the_accepted_candidates_in_order(train, drawn):
    tasks, reasons = drawn
    kept = np.flatnonzero(reasons == ACCEPTED)
    kept = kept[: len(train)]
    np.testing.assert_array_equal(train.indices[: len(kept)], kept)
    assert len(kept) > 60
    assert_trees_equal(row_of(tasks, kept), row_of(train.arrays, slice(len(kept))))


@settings(max_examples=4, deadline=None)
@given(st.permutations(range(256)))
def test_a_candidate_is_the_same_wherever_it_stands_in_a_batch(drawn, order):
    tasks, reasons = drawn
    indices = np.array(order, np.uint32)
    assert_trees_equal(_CANDIDATES(jnp.asarray(indices)), (row_of(tasks, indices), reasons[indices]))


def test_the_seed_and_the_split_change_the_tasks(train):
    assert vm.make_tasks("train", 8, 8).prompts != train.prompts[:8]
    assert not set(vm.make_tasks("val_mixed", 7, 8).prompts) & set(train.prompts)


@pytest.mark.parametrize("split", ["train", "val_mixed", "fresh_paired"])
def test_the_kind_of_start_changes_nothing_else(split):
    mixed, blank, corrupted = (vm.make_tasks(split, 0, 24, start=start) for start in ("mixed", "blank", "corrupted"))
    for other in (blank, corrupted):
        assert other.prompts == mixed.prompts
        assert_trees_equal(other.arrays._replace(start=mixed.start), mixed.arrays)
    assert not np.any(np.asarray(blank.start.op))
    start, wanted = np.asarray(corrupted.start), np.asarray(corrupted.reference)
    assert np.all(np.any(start != wanted, axis=(0, 2)))
    # A wrong edit changes one slot, so one to four slots differ.
    wrong_slots = np.any(start != wanted, axis=0).sum(axis=1)
    assert wrong_slots.min() >= 1 and wrong_slots.max() <= 4 and len(np.unique(wrong_slots)) >= 3
    for row in range(24):
        passed = True
        pairs = slow_judge.pairs_of(row_of(corrupted.start, row))
        for inputs, targets in (row_of(corrupted.public, row), row_of(corrupted.hidden, row)):
            passed &= slow_judge.outputs_of(pairs, slow_judge.examples_of(inputs)) == slow_judge.cells_of(targets)
        assert not passed


@pytest.mark.parametrize(("paired", "block"), [(False, 8), (True, 16)])
def test_starts_are_scattered_in_exact_shares(paired, block):
    positions = jnp.arange(64 * block, dtype=jnp.uint32)
    kinds = jax.vmap(lambda p: scattered_kind(jnp.uint32(0), jnp.int32(4), p, jnp.bool_(paired)))(positions)
    kinds = np.asarray(kinds).reshape(64, block)
    np.testing.assert_array_equal(np.sort(kinds, axis=1), np.sort(np.resize([0, 0, 0, 0, 1, 1, 1, 2], (64, block))))
    assert len(np.unique(kinds, axis=0)) > 50  # the order is another one in nearly every block
    solved_first = (kinds == 2)[:, ::2].sum() / (kinds == 2).sum()
    assert 0.3 < solved_first < 0.7  # in pairs: as often the first as the second


def test_a_stream_gives_the_same_tasks_in_batches_of_any_size_and_goes_on_from_its_cursor(train):
    stream = vm.TaskStream(7)
    first, cursor = stream.next_batch(5)
    second, _ = stream.next_batch(60)
    assert_trees_equal(first, row_of(train.arrays, slice(5)))
    assert_trees_equal(second, row_of(train.arrays, slice(5, 65)))
    assert cursor == int(train.indices[4]) + 1 and isinstance(cursor, int)
    resumed, cursor = vm.TaskStream(7, cursor=cursor).next_batch(60)
    assert_trees_equal(resumed, second)
    assert cursor == stream.cursor
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(resumed))


def test_prompts_are_what_the_plans_render(train):
    ids = {word: number for number, word in enumerate(prompts.vocabulary())}
    table = prompts.token_table(lambda text: [ids[word] for word in prompts.words(text)])
    render = jax.jit(jax.vmap(lambda plan, program: prompts.render_tokens(table, plan, program, 64)))
    tokens, mask = render(train.arrays.plan, train.reference)
    for row, text in enumerate(train.prompts):
        assert np.asarray(tokens[row])[np.asarray(mask[row])].tolist() == [ids[word] for word in prompts.words(text)]


def test_ambiguous_tasks_are_those_that_brute_force_finds():
    recipe = Recipe(vm.SPLITS.index("val_mixed"), 0, 4, SETTINGS)  # with 4 examples in all, many are ambiguous
    group: Judged = next(judged(recipe, 0, ReasonLog()))
    group = row_of(group, slice(16))
    found = ambiguous(group, SETTINGS)
    probes = probe_inputs(SETTINGS)
    for row in range(16):
        pairs = slow_judge.pairs_of(row_of(group.candidate.program, row))
        examples = slow_judge.examples_of(row_of(group.inputs, row))
        probe_examples = slow_judge.examples_of(row_of(probes, int(group.candidate.signature[row])))
        assert bool(found[row]) == (slow_judge.misleading_edit(pairs, examples, probe_examples) is not None)
    assert 0 < found.sum() < 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "test"}, "split 'test' doesn't exist; use one of train, val_mixed"),
        ({"start": "empty"}, "start 'empty' doesn't exist; use one of blank, corrupted, mixed"),
        ({"count": 0}, "count is 0; ask for at least 1 task"),
        ({"count": 4097}, "count is 4097, but split 'val_mixed' is finite; ask for at most 4096"),
        ({"public": 0}, "public is 0; a task needs at least 1 public example"),
        ({"hidden": -1}, "hidden is -1; a task needs at least 1 hidden example"),
        ({"seed": -1}, "seed is -1; use a data seed from 0 to 2147483647"),
        ({"seed": 2**31}, "seed is 2147483648"),
        ({"settings": vm.Settings(slots=5)}, "too small for the tasks; use at least 7 slots"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(change, message):
    arguments = {"split": "val_mixed", "seed": 0, "count": 1} | change
    with pytest.raises(ValueError, match=message):
        vm.make_tasks(**arguments)


def test_bad_arguments_of_a_stream_are_refused():
    with pytest.raises(ValueError, match="cursor is -1"):
        vm.TaskStream(0, cursor=-1)
    with pytest.raises(ValueError, match="count is 0"):
        vm.TaskStream(0).next_batch(0)


@pytest.mark.parametrize("arguments", [{"count": 1.5}, {"seed": 0.5}])
def test_a_count_or_seed_that_is_no_whole_number_is_refused(arguments):
    with pytest.raises(TypeError, match="integer"):
        vm.make_tasks(**{"split": "train", "seed": 0, "count": 1, **arguments})
