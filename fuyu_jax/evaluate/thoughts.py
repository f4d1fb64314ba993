"""What a policy made of the states that its episodes passed through: a second read of what the rollout read first.

It adds what a rollout has no need to keep: the likeliest edits, the value, the distance, and what the ECHO head
expected of the edit that was taken.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

import vm
from fuyu_jax.evaluate.metrics import HARD_BUDGET
from fuyu_jax.learn.losses.echo import likeliest_outputs
from fuyu_jax.policy import Params, Policy
from fuyu_jax.rollout import Episodes
from vm.observation import observe, run_all
from vm.tasks import TaskArrays

STEPS = HARD_BUDGET  # decisions at most
TOP = 5  # edits that are kept with their probabilities


class Thoughts(NamedTuple):
    """What a policy made of the states of B episodes before each of T decisions, and of the program it ended with.

    Attributes:
      outputs: `Value[B, T + 1, E]`, of the public examples; status: int32 `[B, T + 1, E]`.
      top_edits: int32 `[B, T, 5]`, flat, the likeliest first.
      top_probs: float32 `[B, T, 5]`, their probabilities among all actions, STOP included; 0 for what is not allowed.
      value: float32 `[B, T]`, the probability that this episode ends solved, as the value head has it.
      distance: float32 `[B, T]`, mean of the distance head's classes, edits; the last, "more", counts as 17.
      echo: `Value[B, T, E]`, predicted next outputs of the edit taken; echo_status: int32 `[B, T, E]`.
    """

    outputs: vm.Value
    status: jax.Array
    top_edits: jax.Array
    top_probs: jax.Array
    value: jax.Array
    distance: jax.Array
    echo: vm.Value
    echo_status: jax.Array


Think = Callable[[Params, TaskArrays, Episodes, jax.Array], Thoughts]


def make_think(policy: Policy) -> Think:
    """A jitted function of parameters, B tasks, their episodes (of which it reads the first lane) and budgets `[B]`.

    States are read one step at a time, so that it needs no more memory than the rollout did.
    """
    settings = policy.settings

    @jax.jit
    def think(params: Params, tasks: TaskArrays, episodes: Episodes, budget: jax.Array) -> Thoughts:
        chex.assert_rank(budget, 1)
        chex.assert_equal(episodes.program.op.shape[1], budget.shape[0])
        controller, read = policy.reader(params, tasks)
        execute = jax.vmap(lambda program, inputs: run_all(program, inputs, settings))
        look = jax.vmap(functools.partial(observe, settings=settings))

        def at(step: tuple) -> tuple:
            t, program, action, allowed = step
            results = execute(program, tasks.public.inputs)
            seen = look(program, tasks.public.inputs, results, jnp.broadcast_to(t, budget.shape), budget - t)
            readout = read(jax.tree.map(lambda leaf: leaf[:, None], seen))
            probs = jnp.exp(policy.log_probs(readout, allowed[:, None]))[:, 0, 1:]  # [B, N - 1]
            top_probs, top = jax.lax.top_k(probs, TOP)
            spread = jax.nn.softmax(readout.distance_logits[:, 0], axis=-1)  # [B, 18]
            echo = likeliest_outputs(controller.echo(readout, jnp.maximum(action, 0)[:, None]))
            echo_value, echo_status = jax.tree.map(lambda leaf: leaf[:, 0], echo)
            distance = spread @ jnp.arange(spread.shape[-1], dtype=jnp.float32)
            value = jax.nn.sigmoid(readout.value_logit[:, 0])
            return results.output, results.status, top + 1, top_probs, value, distance, echo_value, echo_status

        first = jax.tree.map(lambda leaf: leaf[:, :, 0], episodes)
        decided = jax.tree.map(lambda leaf: leaf[:STEPS], (first.program, first.action, first.allowed))
        outputs, status, *rest = jax.lax.map(at, (jnp.arange(STEPS, dtype=jnp.int32), *decided))
        last = execute(jax.tree.map(lambda leaf: leaf[STEPS], first.program), tasks.public.inputs)
        outputs, status = jax.tree.map(
            lambda leaf, end: jnp.concatenate([leaf, end[None]]), (outputs, status), (last.output, last.status)
        )
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), Thoughts(outputs, status, *rest))

    return think
