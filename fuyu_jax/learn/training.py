"""Parameters in training, and the optimiser step they all share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from flax import nnx

from fuyu_jax.controller import Controller, Readout
from fuyu_jax.rollout import Read
from vm import Settings
from vm.observation import Observation
from vm.prompts import TokenTable, render_tokens
from vm.tasks import TaskArrays

Params = Any  # an nnx.State: a pytree of float32 arrays
Metrics = dict[str, jax.Array]


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


class TrainState(NamedTuple):
    """What training carries: parameters, optimiser state (float32 moments, skipped steps) and the number of updates."""

    params: Params
    opt: optax.OptState
    updates: jax.Array


def make_optimizer(peak: float, updates: int, warmup: int) -> optax.GradientTransformation:
    """Muon for matrices and Adam for the rest, clipped at norm 1, with no step where a gradient is not finite.

    The learning rate warms up and decays as a cosine to a tenth. Muon (Jordan et al., 2024) orthogonalises a matrix's
    momentum; scaled to the size of Adam's steps (Liu et al., arXiv 2502.16982) it shares Adam's rate. On the embedded
    model it needs less than half the updates of AdamW for the same imitation loss.
    """
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, peak, min(warmup, updates), max(updates, warmup + 1), end_value=0.1 * peak
    )
    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.contrib.muon(schedule, consistent_rms=0.2, adam_b2=0.99, muon_weight_dimension_numbers=_matrices),
    )
    never = 2**31 - 1  # consecutive errors after which optax would let a bad step through
    return optax.apply_if_finite(rule, max_consecutive_errors=never)


def _matrices(params: Params) -> Params:
    """Which parameters are matrices, stacked or not, and along which axes; tables of embeddings and norms are not."""

    def axes(path: tuple, leaf: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        name = jax.tree_util.keystr(path)
        if leaf.ndim < 2 or any(table in name for table in ("embedding", "embed_tokens", "norm")):
            return None
        return optax.contrib.MuonDimensionNumbers(reduction_axis=leaf.ndim - 2, output_axis=leaf.ndim - 1)

    return jax.tree_util.tree_map_with_path(axes, params)


def start_training(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """A fresh training state; the parameters are copied, since updates reuse the memory of their input."""
    params = jax.tree.map(jnp.copy, params)
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def apply_update(
    state: TrainState,
    optimizer: optax.GradientTransformation,
    loss: Callable[[Params], tuple[jax.Array, Metrics]],
) -> tuple[TrainState, Metrics]:
    """One optimiser step on a loss with its metrics; adds the gradient norm and the steps skipped so far."""
    (_, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
    changes, opt = optimizer.update(gradients, state.opt, state.params)
    params = optax.apply_updates(state.params, changes)
    metrics = {**metrics, "gradient_norm": optax.global_norm(gradients), "skipped_updates": opt.total_notfinite}
    return TrainState(params, opt, state.updates + 1), metrics
