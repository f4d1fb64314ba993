"""Advantage-weighted regression over the exact action set: a closed-form better policy, and the step toward it."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from fuyu_jax.controller.distribution import NEVER
from fuyu_jax.learn.losses.policy_gradient import exact_kl
from fuyu_jax.learn.losses.reduce import masked_mean

BETA_RANGE = (1e-4, 1e4)  # of advantages that are differences of success probabilities
HALVINGS = 32  # of the range of log(beta), down to the resolution of float32


def action_advantages(values: jax.Array, reference: jax.Array, evaluated: jax.Array) -> jax.Array:
    """Values of actions less their mean under the reference, over the actions that were evaluated.

    Equal values give exactly 0: that is decided on the raw numbers, as the mean of equal float32 numbers may differ
    from them.

    Args:
      values: float32 `[..., N]`, expected success after each action; may hold anything where not evaluated.
      reference: float32 `[..., N]`, log-probabilities of the policy the values belong to.
      evaluated: bool `[..., N]`.

    Returns:
      float32 `[..., N]`, 0 where not evaluated.
    """
    chex.assert_equal_shape([values, reference, evaluated])
    probs = jax.nn.softmax(jnp.where(evaluated, reference, NEVER), axis=-1)
    known = jnp.where(evaluated, values, 0.0)
    mean = jnp.sum(probs * known, axis=-1, keepdims=True)
    high = jnp.max(jnp.where(evaluated, values, -jnp.inf), axis=-1, keepdims=True)
    low = jnp.min(jnp.where(evaluated, values, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(evaluated & (high > low), known - mean, 0.0)


def improved_log_probs(
    reference: jax.Array, advantage: jax.Array, evaluated: jax.Array, beta: jax.Array | float
) -> jax.Array:
    """The policy q proportional to reference * exp(advantage / beta) over the evaluated actions.

    It maximises the expected advantage less beta times KL(q || reference) (the closed form of advantage-weighted
    regression, arXiv 1910.00177, and of MPO's E-step, arXiv 1806.06920). The evaluated actions share the mass they
    had among themselves, every other action keeps its own; without any difference of advantages q is the reference.

    Args:
      reference: float32 `[..., N]`, log-probabilities; `NEVER` for what is not allowed.
      advantage: float32 `[..., N]`; may hold anything where not evaluated.
      evaluated: bool `[..., N]`. Actions that are not allowed keep probability 0 even if they were evaluated.
      beta: temperature of the advantages, above 0.

    Returns:
      float32 `[..., N]`, log-probabilities, without a gradient.
    """
    chex.assert_equal_shape([reference, advantage, evaluated])
    known = evaluated & (reference > NEVER / 2)
    best = jnp.max(jnp.where(known, advantage, -jnp.inf), axis=-1, keepdims=True)
    tilt = jnp.where(known, (advantage - best) / beta, 0.0)  # at most 0, and exactly 0 for equal advantages
    before = jax.nn.logsumexp(jnp.where(known, reference, NEVER), axis=-1, keepdims=True)
    after = jax.nn.logsumexp(jnp.where(known, reference + tilt, NEVER), axis=-1, keepdims=True)
    tilted = jnp.maximum(reference + (tilt + (before - after)), NEVER)
    return jax.lax.stop_gradient(jnp.where(known, tilted, reference))


def regression_loss(log_probs: jax.Array, target_log_probs: jax.Array) -> jax.Array:
    """KL(target || policy) over the whole action set, in nats: two float32 `[..., N]` to `[...]`."""
    return exact_kl(jax.lax.stop_gradient(target_log_probs), log_probs)


def choose_beta(
    reference: jax.Array, advantage: jax.Array, evaluated: jax.Array, weight: jax.Array, nats: float
) -> tuple[jax.Array, jax.Array]:
    """The temperature at which the improved policy is a given mean KL away from the reference.

    KL(q || reference) falls as beta grows, so bisection of log(beta) finds it. Where even the smallest beta moves the
    policy less, that one is returned; the KL tells.

    Args:
      reference: float32 `[..., N]`, as for `improved_log_probs`.
      advantage: float32 `[..., N]`, likewise.
      evaluated: bool `[..., N]`, likewise.
      weight: float32 or bool `[...]`, how much each state counts.
      nats: the mean KL to spend a state, above 0.

    Returns:
      beta float32 `[]` and the mean KL(q || reference) at it.
    """

    def mean_kl(log_beta: jax.Array) -> jax.Array:
        improved = improved_log_probs(reference, advantage, evaluated, jnp.exp(log_beta))
        return masked_mean(exact_kl(improved, reference), weight)

    def halve(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = 0.5 * (low + high)
        too_far = mean_kl(middle) > nats
        return jnp.where(too_far, middle, low), jnp.where(too_far, high, middle)

    low, high = jnp.log(jnp.array(BETA_RANGE, jnp.float32))
    _, log_beta = jax.lax.fori_loop(0, HALVINGS, halve, (low, high))
    return jnp.exp(log_beta), mean_kl(log_beta)
