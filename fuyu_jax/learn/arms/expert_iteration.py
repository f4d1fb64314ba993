"""Arm `expert_iteration`: the policy's own verified solutions become the labels of its own states.

No oracle: the verifier says which programs of the rollouts are right, and that is all. Every state of a task leads to
the nearest right program that one of the task's rollouts came to; STOP is labelled by the verifier on all states, and
tasks without a solution teach STOP alone. On-policy states are what matters: the same solutions used as demonstrations
leave the policy's mistakes unlabelled.

Where a search is given, it looks for one more solution of each task, led by the policy (ExIt, Anthony et al., 2017,
arXiv 1705.08439: the search is the expert whom the policy then imitates).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

import vm
from fuyu_jax.learn.arms.dagger import LabelOptions, hand_on, label_loss
from fuyu_jax.learn.credit import CreditOptions, decision_rewards
from fuyu_jax.learn.experience import (
    Explored,
    RolloutOptions,
    Visits,
    label_decisions,
    make_explore,
    process_signals,
    sample_decisions,
)
from fuyu_jax.learn.improvement import Arm
from fuyu_jax.learn.objective import state_shares
from fuyu_jax.learn.searching import SearchTasks, count_examples, solutions
from fuyu_jax.learn.states import Repairs
from fuyu_jax.learn.training import Metrics
from fuyu_jax.policy import Params, Play, Policy
from vm import oracle
from vm.layout import close_gaps
from vm.streams import TaskStream


@functools.partial(jax.jit, static_argnames=("settings", "placement"))
def own_solutions(explored: Explored, settings: vm.Settings, placement: oracle.Placement) -> Repairs:
    """The first right program of each of G rollouts of B tasks: `Repairs[B, G]`.

    Unless the placement is "first" its blank slots are closed, as labels then may lead to any layout.
    """
    right = explored.episodes.solved  # [T + 1, B, G]
    first = jnp.argmax(right, axis=0)[None, ..., None]
    program = jax.tree.map(lambda leaf: jnp.take_along_axis(leaf, first, axis=0)[0], explored.episodes.program)
    closed, length = jax.vmap(jax.vmap(lambda program: close_gaps(program, settings)))(program)
    return Repairs(program if placement == "first" else closed, length, jnp.any(right, axis=0))


@functools.partial(jax.jit, static_argnames=("settings", "placement"))
def nearest_repairs(program: vm.Program, found: Repairs, settings: vm.Settings, placement: oracle.Placement) -> Repairs:
    """For each of M programs of B tasks the nearest of the task's G solutions, ties to the first: `Repairs[B, M]`.

    Args:
      program: `Program[B, M, L]`.
      found: `[B, G]`.
      settings: static sizes.
      placement: as in `vm.oracle.distance`.
    """

    def far(program: vm.Program, one: Repairs) -> jax.Array:
        distance = oracle.distance(program, one.program, settings, placement, one.length).distance
        return jnp.where(one.known, distance, jnp.int32(4 * settings.slots))

    each_solution = jax.vmap(far, (None, 0))
    distances = jax.vmap(jax.vmap(each_solution, (0, None)))(program, found)  # [B, M, G]
    best = jnp.argmin(distances, axis=-1)
    row = jnp.arange(best.shape[0], dtype=jnp.int32)[:, None]
    return jax.tree.map(lambda leaf: leaf[row, best], found)


def expert_arm(
    policy: Policy,
    play: Play,
    stream: TaskStream,
    turn_tasks: int,
    rollouts: RolloutOptions,
    credits: CreditOptions,
    options: LabelOptions,
    search: SearchTasks | None = None,
) -> Arm:
    """The arm on tasks of a stream, `turn_tasks` at a time; rewards and distances are for the signals only.

    `search` looks for further solutions, from where the rollouts start.
    """
    explore = make_explore(policy, play, rollouts)
    placement = rollouts.teaching.placement

    def collect(params: Params, copied: Params, key: jax.Array) -> tuple[Visits, Metrics]:
        del copied
        tasks, _ = stream.next_batch(turn_tasks)
        roll_key, sample_key, shuffle_key, search_key = jax.random.split(key, 4)
        explored = explore(params, tasks, roll_key)
        signals = process_signals(explored, jnp.sum(decision_rewards(explored, credits), axis=0))
        chosen = sample_decisions(explored, sample_key, rollouts.states)
        found = own_solutions(explored, policy.settings, placement)
        if search is not None:
            start = jax.tree.map(lambda leaf: leaf[0, :, 0], explored.episodes.program)
            searched = search(params, tasks, start, search_key)
            more = solutions(searched, policy.settings, placement)
            found = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), found, more)
            ran = jnp.sum(searched.executions) * count_examples(tasks)
            signals = {**signals, "executions": signals["executions"] + ran, "search_solved": jnp.mean(more.known)}
        if options.shuffle:
            found = hand_on(found, shuffle_key)
        repairs = nearest_repairs(chosen.program, found, policy.settings, placement)
        visits = label_decisions(tasks, chosen, policy.settings, rollouts.teaching, repairs)
        solved_tasks = jnp.mean(jnp.any(found.known, axis=1).astype(jnp.float32))
        return visits, {**signals, "solved_tasks": solved_tasks, "oracle_labels": jnp.float32(0.0)}

    return Arm(stream, collect, lambda rows: state_shares(rows.states, options.weights), label_loss(policy, options))
