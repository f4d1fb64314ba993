"""Verified search on train tasks: what it tried and what it solved, for arms that learn from it.

On train tasks every example, public or hidden, belongs to the verifier, as it does for rewards. So an answer is right,
and the search ends with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp

import vm
from fuyu_jax.controller.state_tokens import MAX_BUDGET
from fuyu_jax.learn.states import Repairs
from fuyu_jax.policy import Params, Policy
from fuyu_jax.search.advice import ask_policy
from fuyu_jax.search.best_first import advance
from fuyu_jax.search.frontier import unpack
from fuyu_jax.search.guide import GUIDES, Limits
from fuyu_jax.search.state import Problem, Search, begin
from vm import oracle
from vm.layout import close_gaps
from vm.observation import join_examples
from vm.tasks import TaskArrays

GUIDE = GUIDES["policy_value"]

SearchTasks = Callable[[Params, TaskArrays, vm.Program, jax.Array], Search]


def make_search(policy: Policy, budget: int) -> SearchTasks:
    """A jitted function of parameters, B tasks, their start programs `[B, L]` and a key: B finished searches.

    The policy leads them, by its edits and its distance head (PHS*, see `fuyu_jax.search`), for `budget` executions.
    """
    limits = Limits(budget=budget, horizon=MAX_BUDGET, confirm=False)
    make_ask = ask_policy(replace(policy, position_gap=0), limits.horizon)

    @jax.jit
    def search(params: Params, tasks: TaskArrays, start: vm.Program, key: jax.Array) -> Search:
        examples = join_examples(tasks.public, tasks.hidden)
        judged = jnp.ones(examples.targets.type.shape, bool)
        keys = jax.random.split(key, judged.shape[0])
        problem = Problem(start, examples, judged, tasks.reference, keys)
        fresh = jax.vmap(lambda program: begin(program, limits, policy.settings))(start)
        ask = make_ask(params, tasks, judged)
        return advance(ask, GUIDE.codes(), problem, fresh, jnp.int32(1), limits, policy.settings)

    return search


def solutions(search: Search, settings: vm.Settings, placement: oracle.Placement) -> Repairs:
    """The right program that each of B searches ended with: `Repairs[B, 1]`.

    Unless the placement is "first" its blank slots are closed, as labels then may lead to any layout.
    """
    chex.assert_rank(search.tried.score, 2)
    place = jnp.argmax(search.tried.score, axis=1)[:, None]  # [B, 1]
    key = jnp.take_along_axis(search.tried.key, place[..., None], axis=1)  # [B, 1, W]
    program = unpack(key, settings)
    closed, length = jax.vmap(jax.vmap(lambda program: close_gaps(program, settings)))(program)
    known = jnp.take_along_axis(search.tried.score, place, axis=1) >= 1
    return Repairs(program if placement == "first" else closed, length, known)


def were_read(search: Search) -> jax.Array:
    """Which of the programs tried the model read: bool `[B, S]`."""
    tried = search.tried
    place = jnp.arange(tried.passes.shape[1], dtype=jnp.int32)[None]
    before = jnp.pad(tried.passes[:, :-1], ((0, 0), (1, 0)))
    return (place < search.taken[:, None]) & (tried.passes > before)


def count_examples(tasks: TaskArrays) -> int:
    """Examples that each program is run on, public and hidden."""
    return int(tasks.public.targets.type.shape[-1] + tasks.hidden.targets.type.shape[-1])
