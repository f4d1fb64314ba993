"""Verified search beside plain Python: the same programs in the same order, counted alike, nothing wrong accepted."""

import functools
import heapq
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search_samples import (
    EDITS,
    LISTINGS,
    PUBLIC,
    SETTINGS,
    best_first,
    inputs_of,
    make_scripted,
    neighbours,
    outputs_of,
    pairs_of,
    tasks,
    within,
)

import vm
from fuyu_jax.search import GUIDES, Guide, Limits, Searcher, all_right
from fuyu_jax.search.best_first import advance
from fuyu_jax.search.frontier import Entries, empty, pack, pop, push, unpack
from fuyu_jax.search.guide import priority
from fuyu_jax.search.state import Advice, Problem, begin

KEY = jax.random.key(3, impl="threefry2x32")
COUNT = len(LISTINGS)
POLICY, VALUE = GUIDES["policy"], GUIDES["policy_value"]


@functools.cache
def some_tasks():
    return tasks()


def searches(guide, limits, make_ask=make_scripted, judged=(True,) * PUBLIC):
    """All searches, side by side, run to their ends."""
    some = some_tasks()
    keys = jax.random.split(KEY, COUNT)
    mask = jnp.broadcast_to(jnp.asarray(judged), (COUNT, PUBLIC))
    problem = Problem(some.start, some.public, mask, some.reference, keys)

    @jax.jit
    def run(problem):
        search = jax.vmap(lambda program: begin(program, limits, SETTINGS))(problem.start)
        ask = make_ask(None, some, mask)
        return advance(ask, guide.codes(), problem, search, jnp.int32(1), limits, SETTINGS)

    return jax.device_get(run(problem))


def programs_of(search, row):
    """The programs that a search tried, in order, as pairs."""
    taken = int(search.taken[row])
    program = unpack(jnp.asarray(search.tried.key[row, :taken]), SETTINGS)
    fields = zip(np.asarray(program.op).tolist(), np.asarray(program.arg).tolist(), strict=True)
    return [tuple(zip(op, arg, strict=True)) for op, arg in fields]


@pytest.mark.parametrize(
    ("value", "same_outputs", "confirm"),
    [(False, "keep", False), (True, "discount", True), (True, "drop", False)],
)
def test_programs_are_tried_in_the_order_of_a_plain_search(value, same_outputs, confirm):
    limits = Limits(budget=60, edits=5, horizon=3, same_outputs=same_outputs, confirm=confirm)
    search = searches(VALUE if value else POLICY, limits)
    ended = 0
    for row, (start, listing, is_list) in enumerate(LISTINGS):
        xs = inputs_of(is_list)[:PUBLIC]
        targets = outputs_of(pairs_of(listing), xs)
        tried, found, passes = best_first(
            pairs_of(start), xs, targets, edits=5, horizon=3, budget=60, value=value, same_outputs=same_outputs,
            confirm=confirm,
        )  # fmt: skip
        assert programs_of(search, row) == tried
        assert len(set(tried)) == len(tried) == search.executions[row], "no program twice"
        assert search.passes[row] == passes
        scores = search.tried.score[row, : len(tried)]
        right = [outputs_of(program, xs) == targets for program in tried]
        assert (scores >= 1).tolist() == right
        if found is not None:
            ended += 1
            assert tried[-1] == found and scores[-1] >= 1.5
    assert ended >= 1


def test_with_budget_enough_it_finds_what_there_is_within_the_horizon():
    limits = Limits(budget=2600, edits=EDITS, horizon=2, confirm=False)
    search = searches(Guide("uniform", "none"), limits)
    answers = []
    for row, (start, listing, is_list) in enumerate(LISTINGS):
        xs = inputs_of(is_list)[:PUBLIC]
        targets = outputs_of(pairs_of(listing), xs)
        near = within(pairs_of(start), 2)
        depths = [depth for program, depth in near.items() if outputs_of(program, xs) == targets]
        tried = programs_of(search, row)
        accepted = bool((search.tried.score[row] >= 1).any())
        assert accepted == bool(depths)
        if accepted:
            assert near[tried[-1]] == min(depths), "with an even prior the fewest edits come first"
        else:
            assert set(tried) == set(near), "it tried all there is"
        answers.append(accepted)
    assert True in answers and False in answers


@pytest.mark.parametrize("confirm", [False, True])
def test_counts_of_a_search_worked_by_hand(confirm):
    """REV is to become SORT, and the model gives HEAD 0.5, LEN 0.3 and SORT 0.2 in slot 0, whatever the program.

    LTS ranks them 2, 3.3 and 5. From HEAD it finds the other two again, at 2 / 0.3 and 2 / 0.2, from LEN the third, all
    of them worse than what is queued. So SORT is the fourth program run; three were read before it.
    """
    chosen = [vm.OPCODES.index(name) for name in ("HEAD", "LEN", "SORT")]
    logits = jnp.full(EDITS, -30.0).at[jnp.array(chosen)].set(jnp.log(jnp.array([0.5, 0.3, 0.2])))

    def make_ask(params, tasks, judged):
        wide = jnp.broadcast_to(logits[None], (COUNT, EDITS))
        return lambda program, results, edits: Advice(wide, jnp.zeros(COUNT), jnp.full(COUNT, 0.9))

    search = searches(POLICY, Limits(budget=9, edits=3, horizon=4, confirm=confirm), make_ask)
    row = 1
    assert programs_of(search, row) == [pairs_of(name) for name in ("REV", "HEAD", "LEN", "SORT")]
    assert search.executions[row] == 4 and search.passes[row] == 3 + confirm and search.done[row]
    assert search.tried.executions[row, :4].tolist() == [1, 2, 3, 4]
    assert search.tried.parent[row, :4].tolist() == [-1, 0, 0, 0]
    np.testing.assert_allclose(search.tried.score[row, 3], 1.9 if confirm else 2.0)
    assert search.executions[0] == 1 and search.passes[0] == int(confirm), "what was right is run once"


def doubtful(params, tasks, judged):
    """The scripted model, which believes nothing."""
    ask = make_scripted(params, tasks, judged)
    return lambda program, results, edits: ask(program, results, edits)._replace(trust=jnp.full(COUNT, 0.1))


def test_an_answer_that_is_not_believed_is_kept_while_the_search_goes_on():
    limits = Limits(budget=40, edits=5, horizon=3)
    found = run_searcher(Searcher(doubtful, limits, SETTINGS, (1, 40), COUNT), VALUE)
    assert found.answer.accepted[0] and (found.executions[0], found.by_executions.accepted[0].tolist()) == (
        40,
        [True] * 2,
    )
    assert not found.actions[0].any(), "the start program was right"


def run_searcher(searcher, guide, rows=slice(None), judged=None):
    part = jax.tree.map(lambda leaf: leaf[rows], some_tasks())
    return searcher(None, part, guide, KEY, judged)


def test_the_batch_does_not_matter():
    """One lane or more, fewer tasks, lanes that are filled again: what is drawn for a task is drawn for it alone."""
    guide = GUIDES["policy_shuffled_value"]
    limits = Limits(budget=70, edits=3, horizon=3, attempts=4, patience=15)
    whole = run_searcher(Searcher(make_scripted, limits, SETTINGS, (5, 70), COUNT), guide)
    for lanes in (1, 4):
        searcher = Searcher(make_scripted, limits, SETTINGS, (5, 70), lanes)
        jax.tree.map(np.testing.assert_array_equal, run_searcher(searcher, guide), whole)
    fewer = run_searcher(searcher, guide, slice(3))
    jax.tree.map(lambda leaf, all_: np.testing.assert_array_equal(leaf, all_[:3]), fewer, whole)


def test_restarts_sample_other_edits_and_run_no_program_twice():
    """With one edit a program the first attempt is a single path; later ones are drawn."""
    search = searches(POLICY, Limits(budget=60, edits=1, horizon=3, attempts=12, confirm=False))
    row = 5  # which no three edits of the model's own choice solve
    tried = programs_of(search, row)
    first = [program for program, attempt in zip(tried, search.tried.attempt[row], strict=False) if attempt == 0]
    assert len(first) == 4 and search.attempt[row] == 11
    assert search.executions[row] == len(set(tried)) < len(tried), "the start program is taken again, not run again"
    assert len(set(tried)) > 4


def test_only_what_passes_is_accepted_and_the_path_leads_there():
    some = some_tasks()
    searcher = Searcher(make_scripted, Limits(budget=300, edits=40, horizon=2, confirm=False), SETTINGS, (300,), 3)
    spent = {}
    for shown in (1, PUBLIC):
        found = run_searcher(searcher, VALUE, judged=np.arange(PUBLIC) < shown)
        spent[shown] = found.executions
        for row, (start, listing, is_list) in enumerate(LISTINGS):
            op, arg = (field[row].tolist() for field in found.answer.program)
            program = tuple(zip(op, arg, strict=True))
            xs = inputs_of(is_list)[:shown]
            right = outputs_of(program, xs) == outputs_of(pairs_of(listing), xs)
            assert found.answer.accepted[row] == right, "nothing wrong is accepted, nothing right overlooked"
            made = pairs_of(start)
            for action in found.actions[row][found.actions[row] > 0]:
                made = neighbours(made)[int(action) - 1]
            assert made == program
    assert (spent[1] <= spent[PUBLIC]).all() and spent[1].sum() < spent[PUBLIC].sum(), "one is easier to please"
    assert found.answer.accepted.any()
    hidden = all_right(found.answer.program, some.public, some.hidden, settings=SETTINGS)
    assert (hidden <= found.answer.accepted).all()


def test_answers_by_budget_are_those_of_smaller_searches():
    budgets = (1, 4, 20, 60)
    limits = Limits(budget=60, edits=8, horizon=3)
    whole = run_searcher(Searcher(make_scripted, limits, SETTINGS, budgets, COUNT), VALUE)
    small = run_searcher(Searcher(make_scripted, Limits(budget=20, edits=8, horizon=3), SETTINGS, (20,), COUNT), VALUE)
    np.testing.assert_array_equal(whole.by_executions.accepted[:, 2], small.answer.accepted)
    np.testing.assert_array_equal(whole.by_executions.program.op[:, 2], small.answer.program.op)
    assert whole.by_executions.accepted.sum(axis=0).tolist() == sorted(whole.by_executions.accepted.sum(axis=0))


def test_one_trace_serves_all_guides_and_numbers_of_tasks():
    traces = []

    def counting(params, tasks, judged):
        traces.append(judged.shape)
        return make_scripted(params, tasks, judged)

    searcher = Searcher(counting, Limits(budget=20, edits=4, horizon=3), SETTINGS, (20,), 4)
    searcher.warm_up(None, some_tasks(), VALUE)
    for guide in (POLICY, VALUE, GUIDES["policy_oracle_distance"], GUIDES["policy_shuffled_value"]):
        run_searcher(searcher, guide)
    run_searcher(searcher, VALUE, slice(2))
    assert traces == [(4, PUBLIC)]


def test_a_guide_that_asks_a_model_needs_one():
    with pytest.raises(ValueError, match="asks a model"):
        run_searcher(Searcher(None, Limits(), SETTINGS), VALUE)
    with pytest.raises(ValueError, match="edits is 0"):
        Limits(edits=0)


def test_the_oracle_and_likeness_guides_lead_to_answers():
    """The oracle's distance makes a search with an even prior short; likeness shortens none but finds what is near."""
    oracle = Guide("uniform", "oracle")
    searcher = Searcher(None, Limits(400, EDITS, 2), SETTINGS, (400,), COUNT)
    found, plain = (run_searcher(searcher, guide) for guide in (oracle, Guide("uniform", "none")))
    assert found.answer.accepted.sum() > plain.answer.accepted.sum()
    assert not found.passes.any(), "no model was read"
    like = run_searcher(searcher, GUIDES["execution_heuristic"])
    assert like.answer.accepted[:2].all()


def test_priorities_are_those_of_the_papers():
    no, yes = jnp.bool_(False), jnp.bool_(True)
    numbers = [jnp.float32(number) for number in (3, 1.5, math.log(0.02))]
    assert float(priority(no, *numbers)) == pytest.approx(math.log(4.5) - math.log(0.02) * 1.5)
    lts = priority(no, numbers[0], jnp.float32(0), numbers[2])
    assert float(jnp.exp(lts)) == pytest.approx(3 / 0.02), "g / pi"
    assert float(priority(yes, *numbers)) == 1.5


def test_keys_are_the_programs():
    rng = np.random.default_rng(0)
    for settings in (SETTINGS, vm.DEFAULT_SETTINGS):
        op = rng.integers(0, 44, (200, settings.slots)).astype(np.int32)
        arg = rng.integers(0, settings.args, op.shape).astype(np.int32)
        key = pack(vm.Program(jnp.asarray(op), jnp.asarray(arg)), settings)
        assert len(np.unique(np.asarray(key), axis=0)) == len(np.unique(np.concatenate([op, arg], axis=1), axis=0))
        back = unpack(key, settings)
        np.testing.assert_array_equal(back.op, op)
        np.testing.assert_array_equal(back.arg, arg)


def test_a_full_queue_keeps_the_best():
    """Against a heap of any size: the same entries come out while there is room for all that are still to be taken."""
    rng, size, takes = np.random.default_rng(1), 12, 12
    queue, heap, best, order = empty(size, 1), [], {}, 0
    add, take = jax.jit(push), jax.jit(pop)
    for taken in range(takes):
        for _ in range(3):
            keys = rng.choice(40, 4, replace=False)
            ranks = rng.random(4).astype(np.float32)
            wanted = rng.random(4) < 0.8
            orders = np.arange(order, order + 4, dtype=np.int32)
            order += 4
            zeros = np.zeros(4, np.int32)
            entries = Entries(keys[:, None].astype(np.int32), zeros, zeros, zeros, ranks, ranks, orders)
            queue = add(queue, jax.tree.map(jnp.asarray, entries), jnp.asarray(wanted))
            for key, rank, good in zip(keys.tolist(), ranks.tolist(), wanted.tolist(), strict=True):
                if good and rank < best.get(key, math.inf):
                    best[key] = rank
                    heapq.heappush(heap, (rank, key))
        entry, queue, some = take(queue)
        while best.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        rank, key = heapq.heappop(heap)
        del best[key]
        assert bool(some) and (float(entry.priority), int(entry.key[0])) == (rank, key), taken
    assert not bool(take(empty(3, 1))[2])
