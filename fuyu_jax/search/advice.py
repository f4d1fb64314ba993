"""From a policy to what a search asks of a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import vm
from fuyu_jax.policy import Params, Policy
from fuyu_jax.search.state import Advice, Ask
from vm.observation import observe

Array = jax.Array
MakeAsk = Callable[[Any, Any, Array], Ask]  # of parameters, B tasks, and the public examples that judge, bool [B, E]


def ask_policy(policy: Policy, horizon: int) -> MakeAsk:
    """A policy's heads as advice on programs of B tasks, told that it has `horizon` edits on a path.

    It sees as many public inputs as it was built for. A policy that reads targets gets those that judge; the others
    are EMPTY to it.
    """
    look = jax.vmap(functools.partial(observe, settings=policy.settings))
    valid = jax.vmap(lambda program: vm.valid_actions(program, policy.settings)[1:])

    def make(params: Params, tasks: Any, judged: Array) -> Ask:
        shown = policy.controller(params).heads.num_examples
        inputs = jax.tree.map(lambda leaf: leaf[:, :shown], tasks.public.inputs)

        def blank(leaf: Array) -> Array:
            seen = judged[:, :shown].reshape(leaf.shape[0], shown, *[1] * (leaf.ndim - 2))
            return jnp.where(seen, leaf[:, :shown], 0)

        _, read = policy.reader(params, tasks, jax.tree.map(blank, tasks.public.targets))

        def ask(program: vm.Program, results: vm.Result, edits: Array) -> Advice:
            visible = jax.tree.map(lambda leaf: leaf[:, :shown], results)
            seen = look(program, inputs, visible, edits, horizon - edits)
            readout = jax.tree.map(lambda leaf: leaf[:, 0], read(jax.tree.map(lambda leaf: leaf[:, None], seen)))
            share = jax.nn.softmax(readout.distance_logits, axis=-1)
            classes = jnp.arange(share.shape[-1], dtype=jnp.float32)
            stop = policy.rules.stop_logit(readout, policy.rules.allowed(valid(program)))
            return Advice(readout.edit_logits, jnp.sum(share * classes[None], axis=-1), jax.nn.sigmoid(stop))

        return ask

    return make


def ask_nobody(settings: vm.Settings) -> MakeAsk:
    """Advice that says nothing, for guides that ask no model."""

    def make(params: Any, tasks: Any, judged: Array) -> Ask:
        lanes = judged.shape[0]
        nothing = Advice(jnp.zeros((lanes, settings.num_actions - 1)), jnp.zeros(lanes), jnp.zeros(lanes))
        return lambda program, results, edits: nothing

    return make
