"""Parameters in training, and the optimiser step they all share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from flax import nnx

from fuyu_jax.policy import Params

Metrics = dict[str, jax.Array]
Gradients = nnx.State  # shaped like the trained parameters, float32
Batch = Any  # a pytree of arrays [B, ...]
Loss = Callable[[Params, Batch], tuple[jax.Array, Metrics]]
NEVER_GIVE_UP = 2**31 - 1  # consecutive bad gradients after which optax would let one through


BAD_IN_A_ROW = 5  # skipped steps after which training stops
CHECKED_EVERY = 10  # updates between looks at the count, each of which waits for the device


class Diverged(Exception):
    """Gradients or losses were not finite several times in a row.

    Attributes:
      update: the update after which it was seen.
      params: the parameters, which the bad steps left alone.
    """

    def __init__(self, update: int, params: Params) -> None:
        """Training stopped after this update, with these parameters."""
        super().__init__(f"the last {BAD_IN_A_ROW} or more gradients before update {update} were not finite")
        self.update, self.params = update, params


class TrainState(NamedTuple):
    """What training carries: parameters, and the optimiser's state with float32 moments and the steps skipped.

    The moments are of the trained parameters only.
    """

    params: Params
    opt: optax.OptState


class TrainingPoint(NamedTuple):
    """A place that training can go on from: nothing of the next update has happened, and no data were taken for it.

    Attributes:
      state: parameters and optimiser.
      done: updates made.
      parts: epochs or rounds whose policy was handed out.
    """

    state: TrainState
    done: int = 0
    parts: int = 0


AtPoint = Callable[[TrainingPoint], object]


def pass_by(point: TrainingPoint) -> None:
    """What training does at a point where nobody wants to keep it: nothing."""


def _matrices(trained: nnx.State) -> Any:
    """Which parameters are matrices, stacked or not, and along which axes; tables of embeddings and norms are not."""

    def axes(path: tuple, leaf: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        name = jax.tree_util.keystr(path)
        if leaf.ndim < 2 or any(table in name for table in ("embedding", "embed_tokens", "norm")):
            return None
        return optax.contrib.MuonDimensionNumbers(reduction_axis=leaf.ndim - 2, output_axis=leaf.ndim - 1)

    return jax.tree_util.tree_map_with_path(axes, trained)


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
    return TrainState(params, RULE.init(params.trained))


def take_step(state: TrainState, gradients: Gradients, rate: jax.Array) -> tuple[TrainState, Metrics]:
    """One step of Muon and Adam at a learning rate, clipped at norm 1; none where a gradient is not finite.

    Compiled once for all arms.

    Returns:
      The new state, with the gradient's norm and the number of steps skipped so far.
    """
    trained, opt, metrics = _step(state.params.trained, state.opt, gradients, rate)
    return TrainState(state.params._replace(trained=trained), opt), metrics


@jax.jit
def _step(
    trained: nnx.State, opt: optax.OptState, gradients: Gradients, rate: jax.Array
) -> tuple[nnx.State, optax.OptState, Metrics]:
    changes, opt = RULE.update(gradients, opt, trained)
    trained = optax.apply_updates(trained, jax.tree.map(lambda change: rate * change, changes))
    return trained, opt, {"gradient_norm": optax.tree.norm(gradients), "skipped_updates": opt.total_notfinite}


def stop_if_diverged(state: TrainState, update: int) -> None:
    """Ends training that no longer moves; looks every few updates only.

    Raises:
      Diverged: where the last steps were all skipped.
    """
    if update % CHECKED_EVERY == 0 and int(state.opt.notfinite_count) >= BAD_IN_A_ROW:
        raise Diverged(update, state.params)


def learning_rates(peak: float, updates: int) -> Callable[[int], jax.Array]:
    """The rate of each update, from 1: a linear warm-up over a twentieth, then a cosine down to a fiftieth."""
    warmup = updates // 20 + 1
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, max(updates, warmup + 1), end_value=peak / 50)
    return lambda update: jnp.float32(schedule(update))


def accumulated_gradient(loss: Loss, params: Params, batch: Batch, pieces: int) -> tuple[Gradients, Metrics]:
    """Gradient of a loss with respect to the trained parameters, made from one part of the batch after another.

    Exact, not an average of averages: the loss and its metrics must be sums over the batch's rows, with weights that
    were divided by the whole batch's total beforehand (`shares`).

    Args:
      loss: of parameters and rows; gives the scalar to minimise, and metrics.
      params: where the gradient is taken.
      batch: arrays `[B, ...]`.
      pieces: parts, a divisor of B; memory for activations falls with it.

    Returns:
      The gradient, float32, all NaN where the loss is not finite; and the metrics, summed over the parts.
    """

    def gradient(rows: Batch) -> tuple[Gradients, Metrics]:
        ask = jax.value_and_grad(lambda trained: loss(params._replace(trained=trained), rows), has_aux=True)
        (value, metrics), gradients = ask(params.trained)
        # A loss may be infinite where its gradient is not; then no step may be taken either.
        return jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(value), leaf, jnp.nan), gradients), metrics

    if pieces == 1:
        return gradient(batch)
    parts = jax.tree.map(lambda leaf: leaf.reshape(pieces, -1, *leaf.shape[1:]), batch)
    first = jax.tree.map(lambda leaf: leaf[0], parts)
    zeros = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(gradient, first))

    def add(total: tuple[Gradients, Metrics], rows: Batch) -> tuple[tuple[Gradients, Metrics], None]:
        return jax.tree.map(jnp.add, total, gradient(rows)), None

    return jax.lax.scan(add, zeros, parts)[0]


@jax.jit
def add_scaled(one: Gradients, other: Gradients, weight: jax.Array) -> Gradients:
    """One gradient plus another times a weight."""
    return jax.tree.map(lambda a, b: a + weight * b, one, other)
