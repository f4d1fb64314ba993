"""The controller: what its tokens tell apart, what its heads see, and that a cache of prompts changes nothing."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from task_samples import LISTINGS, tasks

import vm
from fuyu_jax.controller import Controller
from fuyu_jax.controller.state_tokens import StateEmbedder, word_features
from fuyu_jax.qwen3 import Qwen3, Qwen3Config
from vm.observation import observe, run_all

COUNT = len(LISTINGS)
CONFIG = Qwen3Config(
    vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, rope_theta=1e6, tie_word_embeddings=True,
)  # fmt: skip


def build(show_targets=False):
    rngs = nnx.Rngs(jax.random.key(0, impl="threefry2x32"))
    return Controller(Qwen3(CONFIG, rngs=rngs), vm.DEFAULT_SETTINGS, examples=4, show_targets=show_targets, rngs=rngs)


@pytest.fixture(scope="module")
def controller():
    return build()


@jax.jit
def see(program, step, budget):
    """Observations `[B, S]` of programs `[B, S, L]` with the tasks' public inputs."""

    def one(program, inputs):
        return observe(program, inputs, run_all(program, inputs), step, budget)

    return jax.vmap(jax.vmap(one, (0, None)))(program, tasks().public.inputs)


@pytest.fixture(scope="module")
def seen():
    """The start and the reference program of each task."""
    pair = jax.tree.map(lambda a, b: jnp.stack([a, b], axis=1), tasks().start, tasks().reference)
    return see(pair, jnp.int32(2), jnp.int32(5))


@pytest.fixture(scope="module")
def prompts():
    ids = jax.random.randint(jax.random.key(1), (COUNT, 9), 0, 50)
    lengths = jnp.array([9, 4, 6, 9, 1])
    return ids, jnp.arange(9)[None, :] < lengths[:, None]


def test_any_two_words_are_told_apart():
    """Neighbours, sign, single bits and the extremes; nothing is clipped to a small range."""
    words = jnp.array(
        [0, 1, -1, 40, 41, 2**30, 2**31 - 1, -(2**31), -(2**31) + 1, 123456789, 123456788, 1 << 16, 1 << 24]
    )
    features = np.asarray(word_features(words[:, None]))
    assert len(np.unique(features[:, :32], axis=0)) == len(words)
    assert np.abs(features).max() < 4


def test_a_state_is_fourteen_tokens_and_the_readout_has_its_shapes(controller, seen, prompts):
    readout = controller.read(seen, controller.prompt(*prompts))
    assert controller.embedder.num_tokens == 14
    chex.assert_shape(readout.edit_logits, (COUNT, 2, 480))
    chex.assert_shape([readout.stop_logit, readout.value_logit], (COUNT, 2))
    chex.assert_shape(readout.distance_logits, (COUNT, 2, 18))
    echo = controller.echo(readout, jnp.ones((COUNT, 2), jnp.int32))
    chex.assert_shape(echo.bytes, (COUNT, 2, 4, 8, 4, 256))
    chex.assert_shape([echo.status, echo.type, echo.length], (COUNT, 2, 4, None))


def test_every_part_of_a_state_reaches_every_edit_logit(controller, seen, prompts):
    """Change one thing about a state: all 480 logits, STOP and the distance must move."""
    cache = controller.prompt(*prompts)
    before = controller.read(seen, cache)
    bump = lambda value: value._replace(words=value.words.at[..., 0].add(1))  # noqa: E731
    changes = {
        "last opcode": seen._replace(op=seen.op.at[..., 7].set(5)),
        "first argument": seen._replace(arg=seen.arg.at[..., 0].add(1)),
        "last public output": seen._replace(
            outputs=seen.outputs._replace(words=seen.outputs.words.at[..., 3, 0].add(1))
        ),
        "an input": seen._replace(inputs=seen.inputs._replace(words=seen.inputs.words.at[..., 1, 0, 0].add(1))),
        "a stack top": seen._replace(tops=bump(seen.tops)),
        "the fault's place": seen._replace(pc=seen.pc - 1),
        "step": seen._replace(step=seen.step + 1),
        "budget": seen._replace(budget=seen.budget - 1),
        "status": seen._replace(status=seen.status.at[..., 2].set(3)),
    }
    for name, changed in changes.items():
        after = controller.read(changed, cache)
        for part in ("edit_logits", "stop_logit", "distance_logits"):
            same = np.asarray(getattr(before, part)) == np.asarray(getattr(after, part))
            assert same.mean() < 0.05, (name, part)


def test_states_do_not_see_each_other(controller, seen, prompts):
    cache = controller.prompt(*prompts)
    both = controller.read(seen, cache)
    alone = controller.read(jax.tree.map(lambda leaf: leaf[:, 1:], seen), cache)
    np.testing.assert_allclose(both.edit_logits[:, 1:], alone.edit_logits, atol=1e-5)


def test_the_cache_gives_what_one_full_pass_a_state_gives(controller, seen, prompts):
    """Outputs and gradients, with unequal prompt lengths: each state as one sequence of prompt and state tokens."""
    ids, mask = prompts
    graph, params = nnx.split(controller)

    def cached(params):
        model = nnx.merge(graph, params)
        return model.read(seen, model.prompt(ids, mask)).edit_logits

    def full(params):
        model = nnx.merge(graph, params)
        tokens = model.embedder(seen)  # [B, S, 14, d]
        rows = []
        for s in range(2):
            x = jnp.concatenate([model.trunk.embed(ids), tokens[:, s]], axis=1)
            real = jnp.concatenate([mask, jnp.ones((COUNT, 14), bool)], axis=1)
            rows.append(model.trunk(inputs_embeds=x, attention_mask=real)[:, -14:])
        return model.heads(jnp.stack(rows, axis=1)).edit_logits

    weights = jax.random.normal(jax.random.key(2), (COUNT, 2, 480))
    loss = lambda f: jax.jit(jax.value_and_grad(lambda p: jnp.sum(f(p) * weights)))(params)  # noqa: E731
    np.testing.assert_allclose(jax.jit(cached)(params), jax.jit(full)(params), atol=1e-5)
    (_, one), (_, other) = loss(cached), loss(full)
    chex.assert_trees_all_close(one, other, atol=2e-4, rtol=1e-3)


def test_targets_are_seen_only_when_shown(seen, prompts):
    targets = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], 2, axis=1), tasks().public.targets)
    other = targets._replace(words=targets.words + 1)
    blind, told = build(False), build(True)
    read = lambda model, t: model.read(seen, model.prompt(*prompts), t).edit_logits  # noqa: E731
    np.testing.assert_array_equal(read(blind, targets), read(blind, other))
    assert (np.asarray(read(told, targets)) != np.asarray(read(told, other))).any()
    with pytest.raises(ValueError, match="targets"):
        told.read(seen, told.prompt(*prompts))


def test_bad_opcodes_and_arguments_have_tokens_of_their_own():
    embedder = StateEmbedder(vm.DEFAULT_SETTINGS, 4, 32, scale=0.02, rngs=nnx.Rngs(0))
    plain = jax.tree.map(lambda leaf: leaf[0], see(jax.tree.map(lambda x: x[:, None], tasks().start), 0, 5))
    token = lambda op, arg: np.asarray(  # noqa: E731
        embedder(plain._replace(op=plain.op.at[..., 3].set(op), arg=plain.arg.at[..., 3].set(arg)))[..., 7, :]
    )
    assert (token(44, 0) == token(-1, 0)).all() and (token(44, 0) != token(43, 0)).any()
    assert (token(2, 16) == token(2, -9)).all() and (token(2, 16) != token(2, 15)).any()
