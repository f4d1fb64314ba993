"""Parameters in training, and the optimiser step they all share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from fuyu_jax.policy import Params

Metrics = dict[str, jax.Array]
NEVER_GIVE_UP = 2**31 - 1  # consecutive bad gradients after which optax would let one through


class TrainState(NamedTuple):
    """What training carries: parameters, and the optimiser's state with float32 moments and the steps skipped."""

    params: Params
    opt: optax.OptState


def _matrices(params: Params) -> Params:
    """Which parameters are matrices, stacked or not, and along which axes; tables of embeddings and norms are not."""

    def axes(path: tuple, leaf: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        name = jax.tree_util.keystr(path)
        if leaf.ndim < 2 or any(table in name for table in ("embedding", "embed_tokens", "norm")):
            return None
        return optax.contrib.MuonDimensionNumbers(reduction_axis=leaf.ndim - 2, output_axis=leaf.ndim - 1)

    return jax.tree_util.tree_map_with_path(axes, params)


# Muon (Jordan et al., 2024) orthogonalises a matrix's momentum; scaled to the size of Adam's steps (Liu et al.,
# arXiv 2502.16982) it shares Adam's rate. Everything else is Adam's. The rate is applied by `take_step`.
RULE = optax.apply_if_finite(
    optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.contrib.muon(1.0, consistent_rms=0.2, adam_b2=0.99, muon_weight_dimension_numbers=_matrices),
    ),
    max_consecutive_errors=NEVER_GIVE_UP,
)


def start_training(params: Params) -> TrainState:
    """A fresh training state."""
    return TrainState(params, RULE.init(params))


@jax.jit
def take_step(state: TrainState, gradients: Params, rate: jax.Array) -> tuple[TrainState, Metrics]:
    """One step of Muon and Adam at a learning rate, clipped at norm 1; none where a gradient is not finite.

    Compiled once for all arms.

    Returns:
      The new state, with the gradient's norm and the number of steps skipped so far.
    """
    changes, opt = RULE.update(gradients, state.opt, state.params)
    params = optax.apply_updates(state.params, jax.tree.map(lambda change: rate * change, changes))
    return TrainState(params, opt), {
        "gradient_norm": optax.global_norm(gradients),
        "skipped_updates": opt.total_notfinite,
    }


def learning_rates(peak: float, updates: int) -> Callable[[int], jax.Array]:
    """The rate of each update, from 1: a linear warm-up over a twentieth, then a cosine down to a tenth of the peak."""
    warmup = updates // 20 + 1
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, max(updates, warmup + 1), end_value=0.1 * peak)
    return lambda update: jnp.float32(schedule(update))


@jax.jit
def add_scaled(one: Params, other: Params, weight: jax.Array) -> Params:
    """One gradient plus another times a weight."""
    return jax.tree.map(lambda a, b: a + weight * b, one, other)
