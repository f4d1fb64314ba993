"""A policy: a controller's structure with the tokens it reads, and the episodes it plays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fuyu_jax.controller import Controller, Readout
from fuyu_jax.controller.state_tokens import MAX_BUDGET
from fuyu_jax.rollout import Episodes, Read, repeat_lanes, rollout
from fuyu_jax.sharding import split_batch
from vm.observation import Observation
from vm.prompts import TokenTable, render_tokens
from vm.tasks import TaskArrays
from vm.types import Settings

Params = Any  # an nnx.State: a pytree of float32 arrays


@dataclass(frozen=True)
class Policy:
    """A controller without its parameters, and the tokens it reads: what jitted functions close over.

    Attributes:
      graph: the controller's structure, from `nnx.split`.
      settings: the machine's sizes.
      tokens: token ids of prompt fragments.
      prompt_tokens: static length P that prompts are padded to.
    """

    graph: nnx.GraphDef
    settings: Settings
    tokens: TokenTable
    prompt_tokens: int

    def controller(self, params: Params) -> Controller:
        """The controller with the given parameters."""
        return nnx.merge(self.graph, params)

    def reader(self, params: Params, tasks: TaskArrays) -> tuple[Controller, Read]:
        """The controller, and a function that reads observations `[B, S]` behind the prompts of B tasks.

        The prompts are encoded once, here.
        """
        controller = self.controller(params)
        cache = controller.prompt(*self.prompt_ids(tasks))

        def read(seen: Observation) -> Readout:
            states = seen.step.shape[1]
            targets = jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf[:, None], (leaf.shape[0], states, *leaf.shape[1:])),
                tasks.public.targets,
            )
            return controller.read(seen, cache, targets)

        return controller, read

    def count_tokens(self, tasks: TaskArrays, weight: jax.Array) -> jax.Array:
        """Tokens, padding left out, of states with weights `[B, S]` and their prompts: int32 `[]`."""
        prompt = jnp.sum(self.prompt_ids(tasks)[1])
        state = tasks.public.targets.type.shape[-1] + self.settings.slots + 2
        return prompt + state * jnp.sum(weight > 0)

    def prompt_ids(self, tasks: TaskArrays) -> tuple[jax.Array, jax.Array]:
        """Token ids and mask of the tasks' prompts: int32 and bool `[B, P]`."""
        return jax.vmap(lambda plan, reference: render_tokens(self.tokens, plan, reference, self.prompt_tokens))(
            tasks.plan, tasks.reference
        )


Play = Callable[[Params, TaskArrays, jax.Array, jax.Array, jax.Array], Episodes]


def make_play(policy: Policy, no_repeat: bool) -> Play:
    """A jitted function of parameters, B tasks, budgets int32 `[B, G]`, a key for each lane, and whether to sample.

    Sampled episodes may stop; argmax episodes never do. Training and measuring share its one compilation.
    """

    @jax.jit
    @functools.partial(split_batch, shared=(0, 4), axis=1)
    def play(params: Params, tasks: TaskArrays, budget: jax.Array, keys: jax.Array, sampled: jax.Array) -> Episodes:
        return rollout(
            policy.reader(params, tasks)[1],
            tasks.public,
            tasks.hidden,
            repeat_lanes(tasks.start, budget.shape[1]),
            budget,
            steps=MAX_BUDGET,
            keys=keys,
            sampled=sampled,
            no_repeat=no_repeat,
            settings=policy.settings,
        )

    return play
