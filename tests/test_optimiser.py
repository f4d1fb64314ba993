"""The optimiser step: float32 throughout, deaf to gradients that are no numbers, and still where there is no signal."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from fuyu_jax.learn.training import (
    BAD_IN_A_ROW,
    CHECKED_EVERY,
    Diverged,
    accumulated_gradient,
    learning_rates,
    start_training,
    stop_if_diverged,
    take_step,
)
from fuyu_jax.policy import Params


class Toy(nnx.Module):
    """A matrix, a vector, and a frozen base in bfloat16 beside them."""

    def __init__(self):
        self.matrix = nnx.Param(jnp.eye(4, 6) + 0.1)
        self.vector = nnx.Param(jnp.ones(3))
        self.base = nnx.Variable(jnp.ones(5, jnp.bfloat16))


def toy_params():
    _, trained, frozen = nnx.split(Toy(), nnx.Param, ...)
    return Params(trained, frozen)


def gradients(seed=0, scale=0.1):
    leaves, tree = jax.tree.flatten(toy_params().trained)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return tree.unflatten([scale * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)])


def spoil(tree, value):
    """One number of the vector's gradient replaced."""
    return jax.tree.map(lambda leaf: leaf.at[0].set(value) if leaf.ndim == 1 else leaf, tree)


RATE = jnp.float32(0.01)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_gradient_that_is_no_number_changes_nothing_and_is_counted(value):
    state, _ = take_step(start_training(toy_params()), gradients(0), RATE)
    after, metrics = take_step(state, spoil(gradients(1), value), RATE)
    chex.assert_trees_all_equal(after.params, state.params)
    chex.assert_trees_all_equal(after.opt.inner_state, state.opt.inner_state)  # moments and counters
    assert int(metrics["skipped_updates"]) == 1
    after, metrics = take_step(after, spoil(gradients(2), value), RATE)
    assert int(metrics["skipped_updates"]) == 2
    resumed, _ = take_step(after, gradients(3), RATE)
    never_met, _ = take_step(state, gradients(3), RATE)
    chex.assert_trees_all_equal(resumed.params, never_met.params)


def test_a_loss_that_is_no_number_takes_no_step_though_its_gradient_is_one():
    def loss(params, rows):
        del params
        return jnp.sum(rows) + jnp.inf, {"tokens": jnp.sum(rows)}

    for pieces in (1, 2):
        gradient, metrics = accumulated_gradient(loss, toy_params(), jnp.ones(4), pieces)
        assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(gradient))
        assert float(metrics["tokens"]) == 4.0


def test_training_stops_after_some_bad_steps_in_a_row_and_keeps_what_was_there():
    state = start_training(toy_params())
    state, _ = take_step(state, gradients(0), RATE)
    bad = spoil(gradients(1), jnp.nan)
    for _ in range(BAD_IN_A_ROW - 1):
        state, _ = take_step(state, bad, RATE)
    stop_if_diverged(state, CHECKED_EVERY)
    good, _ = take_step(state, gradients(2), RATE)
    good, _ = take_step(good, bad, RATE)
    stop_if_diverged(good, CHECKED_EVERY)  # as many bad steps, but not in a row
    state, _ = take_step(state, bad, RATE)
    stop_if_diverged(state, CHECKED_EVERY + 1)  # no look at this update
    with pytest.raises(Diverged, match=f"before update {2 * CHECKED_EVERY} were not finite") as caught:
        stop_if_diverged(state, 2 * CHECKED_EVERY)
    assert caught.value.update == 2 * CHECKED_EVERY
    first, _ = take_step(start_training(toy_params()), gradients(0), RATE)
    chex.assert_trees_all_equal(caught.value.params, first.params)


def test_a_gradient_of_zero_changes_nothing():
    """The clip divides by the norm and the orthogonalisation by the matrix's; neither may give NaN."""
    state = start_training(toy_params())
    after, metrics = take_step(state, gradients(scale=0.0), RATE)
    chex.assert_trees_all_equal(after.params, state.params)
    assert float(metrics["gradient_norm"]) == 0.0
    assert int(metrics["skipped_updates"]) == 0


def test_a_rate_of_zero_changes_no_parameter():
    state = start_training(toy_params())
    for seed in range(3):
        state, _ = take_step(state, gradients(seed), jnp.float32(0.0))
    chex.assert_trees_all_equal(state.params, toy_params())


def test_long_gradients_are_clipped_and_their_norm_is_told():
    gradient = gradients(scale=5.0)
    norm = float(np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(gradient))))
    assert norm > 1.0
    state, metrics = take_step(start_training(toy_params()), gradient, RATE)
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-5)
    unit, _ = take_step(start_training(toy_params()), jax.tree.map(lambda leaf: leaf / norm, gradient), RATE)
    chex.assert_trees_all_close(state.opt.inner_state, unit.opt.inner_state, rtol=1e-4, atol=1e-7)


def test_parameters_and_moments_are_float32_and_the_base_is_left_alone():
    state = start_training(toy_params())
    moments = [leaf for leaf in jax.tree.leaves(state.opt) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert len(moments) >= 3  # one of the matrix, two of the vector
    state, _ = take_step(state, gradients(), RATE)
    for leaf in jax.tree.leaves((state.params.trained, state.opt)):
        assert leaf.dtype in (jnp.float32, jnp.int32, jnp.bool_)
    chex.assert_trees_all_equal(state.params.frozen, toy_params().frozen)


def test_small_steps_add_up():
    """A hundred steps of 0.001 from 1, the first few longer by Nesterov's look ahead; bfloat16 would stay at 1."""
    assert float(jnp.bfloat16(1.0) + jnp.bfloat16(0.001)) == 1.0
    state = start_training(toy_params())
    down = jax.tree.map(lambda leaf: jnp.full(leaf.shape, -0.1 if leaf.ndim == 1 else 0.0), state.params.trained)
    for _ in range(100):
        state, _ = take_step(state, down, jnp.float32(0.001))
    t = np.arange(1, 101)
    steps = 0.9 * (1 - 0.9**t) / (1 - 0.9 ** (t + 1)) + 0.1 / (1 - 0.9**t)
    assert 100 < steps.sum() < 101
    np.testing.assert_allclose(state.params.trained["vector"][...], np.full(3, 1 + 0.001 * steps.sum()), atol=2e-6)


def test_vectors_take_the_step_of_adam_with_nesterov_momentum():
    """The second step of a vector, by hand (Dozat 2016)."""
    first, second = np.array([0.3, -0.2, 0.0]), np.array([-0.1, -0.2, 0.4])
    state = start_training(toy_params())
    for gradient in (first, second):
        tree = jax.tree.map(lambda leaf, g=gradient: jnp.asarray(g, jnp.float32) if leaf.ndim == 1 else 0.0 * leaf,
                            state.params.trained)  # fmt: skip
        before = np.asarray(state.params.trained["vector"][...])
        state, _ = take_step(state, tree, RATE)
    b1, b2 = 0.9, 0.99
    momentum = b1 * (1 - b1) * first + (1 - b1) * second
    mean = b1 * momentum / (1 - b1**3) + (1 - b1) * second / (1 - b1**2)
    square = (b2 * (1 - b2) * first**2 + (1 - b2) * second**2) / (1 - b2**2)
    step = np.asarray(state.params.trained["vector"][...]) - before
    np.testing.assert_allclose(step, -0.01 * mean / (np.sqrt(square) + 1e-8), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("updates", [1, 7, 100, 2000])
def test_learning_rates_rise_fall_and_never_vanish(updates):
    rate = learning_rates(3e-3, updates)
    warmup = updates // 20 + 1
    rates = np.array([float(rate(update)) for update in range(1, updates + 1)])
    assert rates.max() == pytest.approx(3e-3, rel=1e-6) and (rates > 0).all()
    assert rates.argmax() + 1 == warmup
    if updates > 1:
        assert rates[-1] == pytest.approx(6e-5, rel=1e-5)
    at = (warmup + updates) // 2
    progress = (at - warmup) / max(updates - warmup, 1)
    assert rates[at - 1] == pytest.approx(3e-3 * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * progress))), rel=1e-4)


def test_one_compilation_for_all_rates():
    chex.clear_trace_counter()
    state = start_training(toy_params())
    step = jax.jit(chex.assert_max_traces(lambda *arguments: take_step(*arguments), n=1))
    for update in range(1, 4):
        state, _ = step(state, gradients(update), learning_rates(1e-3, 10)(update))
    assert optax.tree.norm(state.params.trained) > 0
