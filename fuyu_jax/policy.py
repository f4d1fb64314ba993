"""A policy: a controller's structure with the tokens it reads, and the episodes it plays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fuyu_jax.controller import DEFAULT_RULES, Controller, Readout, Rules
from fuyu_jax.controller.positions import prompt_positions
from fuyu_jax.controller.state_tokens import MAX_BUDGET
from fuyu_jax.rollout import Episodes, Read, rollout
from fuyu_jax.sharding import split_batch
from vm.observation import Observation
from vm.prompts import TokenTable, render_tokens
from vm.tasks import TaskArrays
from vm.types import Program, Settings, Value


class Params(NamedTuple):
    """A controller's arrays: `trained` ones (float32: adapters, heads, state embedder) and the `frozen` base.

    Gradients, optimisers and checkpoints see `trained` only. The embedded model has no base: all of it is trained.
    """

    trained: nnx.State
    frozen: nnx.State


def split_controller(controller: Controller) -> tuple[nnx.GraphDef, Params]:
    """A controller's structure and its arrays; an `nnx.Param` is trained, any other variable is frozen."""
    graph, *states = nnx.split(controller, nnx.Param, ...)
    return graph, Params(*states)


@dataclass(frozen=True)
class Policy:
    """A controller without its parameters, and the tokens it reads: what jitted functions close over.

    Attributes:
      graph: the controller's structure, from `split_controller`.
      settings: the machine's sizes.
      tokens: token ids of prompt fragments.
      prompt_tokens: static length P that prompts are padded to.
      full_pass: read each state in a pass of its own over prompt and state, without the prompt's cache: the slow path,
        which the fast one is compared with.
      rules: how the heads make a distribution over the actions.
      position_gap: most blank positions in a prompt, see `prompt_positions`; for training.
    """

    graph: nnx.GraphDef
    settings: Settings
    tokens: TokenTable
    prompt_tokens: int
    full_pass: bool = False
    rules: Rules = DEFAULT_RULES
    position_gap: int = 0

    def controller(self, params: Params) -> Controller:
        """The controller with the given parameters."""
        return nnx.merge(self.graph, *params)

    def reader(self, params: Params, tasks: TaskArrays, targets: Value | None = None) -> tuple[Controller, Read]:
        """The controller, and a function that reads observations `[B, S]` behind the prompts of B tasks.

        The prompts are encoded once, here, unless the policy makes a full pass a state. A policy that is shown targets
        sees `targets`, `Value[B, E]`, by default all public ones.
        """
        controller = self.controller(params)
        ids, mask = self.prompt_ids(tasks)
        places = prompt_positions(ids, mask, self.position_gap)
        cache = None if self.full_pass else controller.prompt(ids, mask, places)
        shown = tasks.public.targets if targets is None else targets

        def read(seen: Observation) -> Readout:
            states = seen.step.shape[1]
            spread = jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf[:, None], (leaf.shape[0], states, *leaf.shape[1:])), shown
            )
            if cache is None:
                return controller.read_in_full(seen, ids, mask, places, spread)
            return controller.read(seen, cache, spread)

        return controller, read

    def log_probs(self, readout: Readout, allowed: jax.Array) -> jax.Array:
        """Log-probabilities of all actions, `[..., N]`, where edits `[..., N - 1]` are allowed."""
        return self.rules.log_probs(readout, allowed)

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


Play = Callable[[Params, TaskArrays, Program, jax.Array, jax.Array, jax.Array], Episodes]


def make_play(policy: Policy, no_repeat: bool) -> Play:
    """A jitted function of parameters, B tasks, where each lane starts, its budget and key, and whether to sample.

    Starts are `Program[B, G, L]`, budgets int32 `[B, G]`, keys typed `[B, G]`. Sampled episodes may stop; argmax
    episodes never do. Training and measuring share its one compilation.
    """

    @jax.jit
    @functools.partial(split_batch, shared=(0, 5), axis=1)
    def play(
        params: Params, tasks: TaskArrays, start: Program, budget: jax.Array, keys: jax.Array, sampled: jax.Array
    ) -> Episodes:
        return rollout(
            policy.reader(params, tasks)[1],
            tasks.public,
            tasks.hidden,
            start,
            budget,
            steps=MAX_BUDGET,
            keys=keys,
            sampled=sampled,
            no_repeat=no_repeat,
            rules=policy.rules,
            settings=policy.settings,
        )

    return play


Score = Callable[[Params, TaskArrays, Observation, jax.Array], jax.Array]


def make_score(policy: Policy) -> Score:
    """A jitted function of parameters, B tasks, observations `[B, S]` and allowed edits `[B, S, N - 1]`.

    It gives the log-probabilities of all actions, float32 `[B, S, N]`.
    """

    @jax.jit
    def score(params: Params, tasks: TaskArrays, seen: Observation, allowed: jax.Array) -> jax.Array:
        return policy.log_probs(policy.reader(params, tasks)[1](seen), allowed)

    return score
