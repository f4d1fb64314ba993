"""Best-first search over programs for many tasks at once, one program a task and step: run, judged, read, expanded.

A step takes the best program of each task's queue and runs it on the public examples (an execution). The policy reads
it (a forward pass, one for all tasks), and its likeliest edits enter the queue, ranked before anyone has run them. So a
program costs an execution only when its turn comes, and what the distance head says of a program ranks its children,
which inherit it less one edit (deferred evaluation, as in greedy best-first search by Richter and Helmert, 2009).

A program that is right on the public examples is an answer. It ends the search, unless answers are to be confirmed:
then only one that the policy's STOP head believes does, and until then the answer that it believes most is kept.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from fuyu_jax.controller.distribution import masked_log_softmax
from fuyu_jax.search.frontier import Entries, pack, pop, push, same_keys, unpack, with_root
from fuyu_jax.search.guide import HEURISTICS, PRIORS, GuideCodes, Limits, priority
from fuyu_jax.search.state import Advice, Ask, Problem, Search, Tried
from vm import oracle
from vm.beam import RIGHT, hash_numbers, likeness
from vm.edits import apply_action, valid_actions
from vm.observation import run_all
from vm.types import Program, Result, Settings

Array = jax.Array

GUMBEL, DONOR = range(2)  # what a program's key is folded with


def _take(search: Search, start: Array, limits: Limits) -> tuple[Search, Entries, Array]:
    """The next program to try, after a new beginning where one is due, and whether there is one. Unbatched."""
    going = ~search.done
    is_empty = jnp.min(search.queue.priority) == jnp.inf
    stale = (limits.patience > 0) & (search.executions - search.improved >= limits.patience)
    again = going & (is_empty | stale) & (search.attempt < limits.attempts - 1)
    search = search._replace(
        queue=with_root(search.queue, start, again),
        attempt=search.attempt + again,
        points=jnp.where(again, -1, search.points),
        improved=jnp.where(again, search.executions, search.improved),
    )
    entry, queue, some = pop(search.queue)
    active = going & some
    kept = jnp.where(active, queue.priority, search.queue.priority)
    return search._replace(queue=search.queue._replace(priority=kept), done=search.done | ~some), entry, active


class _Seen(NamedTuple):
    """What running a program showed: int32 and bool `[]`.

    Attributes:
      points: likeness of its outputs to the judged targets, and
      most: the points of a program that is right.
      before: programs of this attempt that gave these outputs before.
      right: it is right on all judged examples.
    """

    points: Array
    most: Array
    before: Array
    right: Array


def _judge(
    search: Search, entry: Entries, active: Array, results: Result, problem: Problem, limits: Limits
) -> tuple[Search, _Seen]:
    """The search after a program was run. Unbatched."""
    tried, output = search.tried, results.output
    points = jnp.where(problem.judged, likeness(output, problem.examples.targets), 0)  # [E]
    total = jnp.sum(points, dtype=jnp.int32)
    most = RIGHT * jnp.sum(problem.judged, dtype=jnp.int32)
    cells = jnp.concatenate([output.type[:, None], output.length[:, None], output.words], axis=1)
    outputs = hash_numbers(cells.reshape(-1))
    known = jnp.any(same_keys(entry.key[None], tried.key)[0] & (tried.attempt >= 0))
    before = jnp.sum((tried.outputs == outputs) & (tried.attempt == search.attempt), dtype=jnp.int32)
    executions = search.executions + (active & ~known)
    row = Tried(
        key=entry.key,
        parent=entry.parent,
        action=entry.action,
        edits=entry.edits,
        outputs=outputs,
        attempt=search.attempt,
        executions=executions,
        passes=search.passes,
        score=total / most,
        left=jnp.float32(0),
    )
    place = jnp.where(active, search.taken, limits.budget)  # what lies outside is not written
    rose = active & (total > search.points)
    after = search._replace(
        tried=jax.tree.map(lambda leaf, new: leaf.at[place].set(new, mode="drop"), tried, row),
        taken=search.taken + active,
        executions=executions,
        points=jnp.where(rose, total, search.points),
        improved=jnp.where(rose, executions, search.improved),
        done=search.done | (search.taken + active >= limits.budget),
    )
    return after, _Seen(total, most, before, active & (total == most))


def _settle(search: Search, seen: _Seen, advice: Advice, read: Array, confirm: Array, limits: Limits) -> Search:
    """The search after the program just tried was read, where it was. Unbatched."""
    trust = jnp.where(confirm, advice.trust, 1.0)
    place = search.taken - 1
    of_right, of_read = (jnp.where(which, place, limits.budget) for which in (seen.right, read))
    passes = search.passes + read
    tried = search.tried
    tried = tried._replace(
        score=tried.score.at[of_right].set(1 + trust, mode="drop"),
        passes=tried.passes.at[of_read].set(passes, mode="drop"),
        left=tried.left.at[of_read].set(advice.distance, mode="drop"),
    )
    ends = seen.right & (trust >= 0.5)
    return search._replace(tried=tried, passes=passes, done=search.done | ends)


def _left(
    codes: GuideCodes, search: Search, program: Program, seen: _Seen, advice: Advice, problem: Problem, key: Array,
    settings: Settings,
) -> Array:  # fmt: skip
    """The edits that the program just tried still needs, by the guide's heuristic: float32 `[]`. Unbatched."""
    donor = jax.random.randint(key, (), 0, jnp.maximum(search.taken - 1, 1))
    known = {
        "none": jnp.float32(0),
        "distance": advice.distance,
        "shuffled": jnp.where(search.taken > 1, search.tried.left[donor], advice.distance),
        "oracle": oracle.distance(program, problem.reference, settings).distance.astype(jnp.float32),
        "likeness": (seen.most - seen.points).astype(jnp.float32),
    }
    return jnp.stack([known[name] for name in HEURISTICS])[codes.heuristic]


def _expand(
    search: Search, entry: Entries, program: Program, seen: _Seen, advice: Advice, wanted: Array, problem: Problem,
    codes: GuideCodes, limits: Limits, settings: Settings,
) -> Search:  # fmt: skip
    """The search after the edits of the program just tried were proposed, where that is wanted. Unbatched."""
    key = jax.random.fold_in(problem.key, search.taken)
    left = _left(codes, search, program, seen, advice, problem, jax.random.fold_in(key, DONOR), settings)
    valid = valid_actions(program, settings)[1:]
    logits = jnp.where(codes.prior == PRIORS.index("policy"), advice.edit_logits, 0.0)
    log_probs = masked_log_softmax(logits, valid)  # [N - 1]
    sampled = (search.attempt > 0) | (codes.prior == PRIORS.index("uniform"))
    noise = jax.random.gumbel(jax.random.fold_in(key, GUMBEL), log_probs.shape)
    scores = jnp.where(valid, log_probs + jnp.where(sampled, noise, 0.0), -jnp.inf)
    _, edits = jax.lax.top_k(scores, min(limits.edits, settings.num_actions - 1))  # [k]
    children, _ = jax.vmap(lambda edit: apply_action(program, edit + 1, settings))(edits)
    keys, tried = pack(children, settings), search.tried
    known = jnp.any(same_keys(keys, tried.key) & (tried.attempt == search.attempt)[None], axis=1)
    count = edits.shape[0]
    made = (entry.edits + 1).astype(jnp.float32)
    path = entry.log_prob + log_probs[edits]
    rank = priority(codes.greedy, made, jnp.maximum(left - 1, 0.0), path)
    if limits.same_outputs == "discount":
        rank = rank + jnp.where(codes.greedy, 0.0, jnp.log1p(seen.before.astype(jnp.float32)))
    fill = lambda number: jnp.full(count, number, jnp.int32)  # noqa: E731
    order = search.proposed + jnp.arange(count, dtype=jnp.int32)
    entries = Entries(keys, fill(search.taken - 1), edits + 1, fill(entry.edits + 1), path, rank, order)
    return search._replace(
        queue=push(search.queue, entries, wanted & valid[edits] & ~known),
        proposed=search.proposed + jnp.where(wanted, count, 0),
    )


def advance(
    ask: Ask, codes: GuideCodes, problem: Problem, search: Search, least: Array, limits: Limits, settings: Settings
) -> Search:
    """Go on with B searches until fewer than `least` of them, at least 1, are going on.

    Where a search stands after a number of its own steps does not depend on the others, nor on when they end.

    Args:
      ask: the model.
      codes: what leads the searches.
      problem: the tasks, `[B, ...]`.
      search: where they stand, `[B, ...]`.
      least: int32 `[]`.
      limits: static sizes.
      settings: static sizes of the machine.
    """
    chex.assert_equal_shape_prefix([problem.start.op, problem.judged, search.done], 1)
    chex.assert_shape(problem.judged, problem.examples.targets.type.shape)
    execute = jax.vmap(functools.partial(run_all, settings=settings))
    starts = pack(problem.start, settings)

    def step(search: Search) -> Search:
        search, entry, active = jax.vmap(functools.partial(_take, limits=limits))(search, starts)
        program = unpack(entry.key, settings)
        results = execute(program, problem.examples.inputs)
        search, seen = jax.vmap(functools.partial(_judge, limits=limits))(search, entry, active, results, problem)
        wanted = active & ~search.done & (entry.edits < limits.horizon)
        if limits.same_outputs == "drop":
            wanted = wanted & (seen.before == 0)
        confirm = codes.asks_model & limits.confirm
        wanted = wanted & (confirm | ~seen.right)
        advice = ask(program, results, entry.edits)
        read = codes.asks_model & (wanted | (seen.right & confirm))
        settle = functools.partial(_settle, confirm=confirm, limits=limits)
        search = jax.vmap(settle)(search, seen, advice, read)
        wanted = wanted & ~search.done
        expand = functools.partial(_expand, codes=codes, limits=limits, settings=settings)
        return jax.vmap(lambda *each: expand(*each))(search, entry, program, seen, advice, wanted, problem)

    def going(search: Search) -> Array:
        return jnp.sum(~search.done, dtype=jnp.int32) >= jnp.maximum(least, 1)

    return jax.lax.while_loop(going, step, search)
