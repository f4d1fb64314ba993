"""Checkpoints: what is saved comes back bit for bit, or a sentence says why it doesn't."""

import json
import os
import resource
import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from fuyu_jax.runs.checkpoints import (
    CheckpointSeries,
    DamagedCheckpoint,
    first_difference,
    load_checkpoint,
    read_metadata,
    save_checkpoint,
    tree_digest,
)
from fuyu_jax.runs.errors import UserError


class Carry(NamedTuple):
    params: nnx.State
    opt: optax.OptState
    key: jax.Array
    rest: dict


RULE = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))


def make_carry(seed=0):
    """Everything a run may have to keep: parameters, moments, typed keys, every dtype, counters, odd leaves."""
    key = jax.random.key(seed, impl="threefry2x32")
    params = nnx.split(nnx.Linear(3, 2, rngs=nnx.Rngs(key)))[1]
    rest = {
        "half": jnp.asarray([1.5, -2.25, 3e38], jnp.bfloat16),
        "codes": np.arange(256, dtype=np.uint8),
        "keys": jax.random.split(jax.random.key(seed, impl="rbg"), 3),
        "counters": (7, True, 0.1, float("inf")),
        "numpy": np.float32(0.3),
        "empty": jnp.zeros((0, 3)),
        "nothing": None,
        "list": [jnp.int32(3), (jnp.zeros((), bool),)],
    }
    return Carry(params, RULE.init(params), key, rest)


@jax.jit
def train_step(carry):
    """One update with random gradients from the carried key."""
    key, noise = jax.random.split(carry.key)
    gradients = jax.tree.map(lambda p: p + jax.random.normal(noise, p.shape), carry.params)
    updates, opt = RULE.update(gradients, carry.opt, carry.params)
    return optax.apply_updates(carry.params, updates), opt, key


def advance(carry):
    return Carry(*train_step(carry._replace(rest=None)), carry.rest)


def bits(leaf):
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(jax.random.key_impl(leaf)), np.asarray(jax.random.key_data(leaf)).tobytes()
    array = np.asarray(leaf)
    return str(array.dtype), array.shape, array.tobytes()


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert bits(a) == bits(b)
        assert isinstance(b, jax.Array) if isinstance(a, jax.Array) else type(a) is type(b)


def test_everything_comes_back_and_training_goes_on_the_same(tmp_path):
    carry = advance(make_carry())
    save_checkpoint(tmp_path / "saved", carry, {"phase": "bc_policy"})
    restored = load_checkpoint(tmp_path / "saved", make_carry(seed=1))
    assert restored.metadata == {"phase": "bc_policy"}
    assert_same(carry, restored.tree)
    assert_same(advance(advance(carry)), advance(advance(restored.tree)))


def test_a_restored_array_is_as_free_to_move_as_the_one_it_replaces(tmp_path):
    device = jax.devices()[0]
    target = {"free": jnp.ones(3), "put": jax.device_put(jnp.ones(3), device)}
    save_checkpoint(tmp_path / "saved", target, {})
    tree = load_checkpoint(tmp_path / "saved", target).tree
    assert (tree["free"].committed, tree["put"].committed) == (False, True)


def test_shapes_alone_are_target_enough(tmp_path):
    tree = {"key": jax.random.key(3, impl="threefry2x32"), "weights": jnp.arange(4.0)}
    save_checkpoint(tmp_path / "saved", tree, {})
    restored = load_checkpoint(tmp_path / "saved", jax.eval_shape(lambda: tree)).tree
    assert_same(tree, restored)


def test_the_digest_sees_names_dtypes_shapes_and_every_bit():
    trees = [
        {"a": jnp.zeros(4)}, {"b": jnp.zeros(4)}, {"a": jnp.zeros((2, 2))}, {"a": jnp.zeros(4, jnp.int32)},
        {"a": jnp.zeros(4).at[0].set(-0.0)}, {"a": jnp.zeros(4), "b": jnp.zeros(1)},
    ]  # fmt: skip
    assert len({tree_digest(tree) for tree in trees}) == len(trees)
    assert tree_digest({"b": 1, "a": np.arange(3)}) == tree_digest({"a": np.arange(3), "b": 1})


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"net": {"w": jnp.zeros((2, 4)), "b": jnp.zeros(3)}}, r"net/w is float32\[2, 3\] .* float32\[2, 4\] here"),
        ({"net": {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3, jnp.bfloat16)}}, r"net/b is float32\[3\] .* bfloat16\[3\]"),
        ({"net": {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3), "c": jnp.zeros(1)}}, "lacks net/c"),
        ({"net": {"w": jnp.zeros((2, 3))}}, "has net/b, for which there is no place"),
        ({"net": {"w": jax.random.key(0, impl="rbg"), "b": jnp.zeros(3)}}, "net/w is float32.*key<rbg>"),
        ({"net": {"w": jnp.zeros((2, 3)), "b": 3.0}}, "net/b is float32.*float as"),
    ],
)
def test_another_tree_is_refused_by_its_leaf(target, said, tmp_path):
    save_checkpoint(tmp_path / "saved", {"net": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}}, {})
    with pytest.raises(UserError, match=said) as refused:
        load_checkpoint(tmp_path / "saved", target)
    assert not isinstance(refused.value, DamagedCheckpoint)


def test_other_metadata_is_refused_by_its_entry(tmp_path):
    saved = {"lora": {"rank": 8, "targets": ["q_proj"]}, "phase": "bc_policy"}
    save_checkpoint(tmp_path / "saved", jnp.ones(2), saved)
    assert load_checkpoint(tmp_path / "saved", jnp.ones(2), {"lora": {"targets": ("q_proj",)}}).metadata == saved
    with pytest.raises(UserError, match=r"made with lora\.rank 8, but here lora\.rank is 16"):
        load_checkpoint(tmp_path / "saved", jnp.ones(2), {"lora": {"rank": 16}})
    with pytest.raises(UserError, match='quant missing, but here quant is "nf4"'):
        load_checkpoint(tmp_path / "saved", jnp.ones(2), {"quant": "nf4"})


def test_differences_are_found_one_by_one():
    assert first_difference({"a": 1, "b": {"c": [1, 2]}}, {"b": {"c": (1, 2)}}) is None
    assert first_difference({"a": 1}, {"a": True}) == ("a", "1", "true")
    assert first_difference({"a": {"b": 1}}, {"a": {"b": 1, "d": None}}) == ("a.d", "missing", "null")


def test_a_checkpoint_is_never_overwritten(tmp_path):
    save_checkpoint(tmp_path / "saved", jnp.ones(2), {"n": 1})
    with pytest.raises(UserError, match="exists already"):
        save_checkpoint(tmp_path / "saved", jnp.zeros(2), {"n": 2})
    assert read_metadata(tmp_path / "saved") == {"n": 1}


def test_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    series = CheckpointSeries(type(tmp_path)("runs/checkpoints"))
    series.save(3, jnp.arange(3), {})
    assert series.restore(jnp.zeros(3, jnp.int32), print).tree.tolist() == [0, 1, 2]


@pytest.mark.usefixtures("no_programs_kept")
def test_a_failing_save_raises_and_leaves_nothing(tmp_path):
    """Files may not grow past a few bytes, as on a full disk."""
    save_checkpoint(tmp_path / "before", jnp.ones(2), {})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))
    try:
        with pytest.raises(UserError, match=r"saved cannot be written \(.*\); free space"):
            save_checkpoint(tmp_path / "saved", jnp.ones(1000), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert os.listdir(tmp_path) == ["before"]
    assert load_checkpoint(tmp_path / "before", jnp.zeros(2)).tree.tolist() == [1, 1]


def test_a_file_in_the_folders_place_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        save_checkpoint(tmp_path / "file" / "saved", jnp.ones(2), {})


def break_file(path, name):
    (path / name).unlink()


def cut_arrays(path, name):
    """Cuts the largest file of arrays in half, as a lost write would."""
    largest = max((path / name).rglob("*"), key=lambda file: file.stat().st_size if file.is_file() else 0)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


def cut_file(path, name):
    (path / name).write_text((path / name).read_text()[:20])


DAMAGES = [
    (break_file, "metadata.json"),
    (cut_file, "metadata.json"),
    (lambda path, name: (path / name).write_text("[]"), "metadata.json"),
    (lambda path, name: shutil.rmtree(path / name), "arrays"),
    (cut_arrays, "arrays"),
]


@pytest.mark.parametrize(("damage", "name"), DAMAGES)
def test_a_damaged_newest_falls_back_and_says_so(damage, name, tmp_path):
    series = CheckpointSeries(tmp_path)
    for step in (1, 2):
        series.save(step, {"w": jnp.full(100, step)}, {})
    damage(series.path(2), name)
    said = []
    restored = series.restore({"w": jnp.zeros(100, jnp.int32)}, said.append)
    assert restored.metadata == {"step": 1} and restored.tree["w"].tolist() == [1] * 100
    assert len(said) == 1 and "step_2" in said[0] and name in said[0]


def test_changed_numbers_are_noticed(tmp_path):
    """The arrays of one checkpoint under the metadata of another, both whole."""
    save_checkpoint(tmp_path / "one", jnp.ones(2), {})
    save_checkpoint(tmp_path / "other", jnp.zeros(2), {})
    shutil.rmtree(tmp_path / "one" / "arrays")
    shutil.copytree(tmp_path / "other" / "arrays", tmp_path / "one" / "arrays")
    with pytest.raises(DamagedCheckpoint, match="was changed"):
        load_checkpoint(tmp_path / "one", jnp.ones(2))


def test_no_whole_checkpoint_is_no_fresh_start(tmp_path):
    series = CheckpointSeries(tmp_path)
    assert series.restore(jnp.ones(2), print) is None
    series.save(1, jnp.ones(2), {})
    break_file(series.path(1), "metadata.json")
    with pytest.raises(DamagedCheckpoint, match="no checkpoint in"):
        series.restore(jnp.ones(2), lambda text: None)


def test_one_that_does_not_fit_is_refused_and_not_passed_over(tmp_path):
    series = CheckpointSeries(tmp_path)
    for step, size in ((1, 2), (2, 3)):
        series.save(step, jnp.ones(size), {})
    with pytest.raises(UserError, match=r"float32\[3\]"):
        series.restore(jnp.ones(2), print)


def test_steps_are_numbers_and_leftovers_do_no_harm(tmp_path):
    series = CheckpointSeries(tmp_path)
    for step in (900, 1000, 2500, 500):
        series.save(step, jnp.int32(step), {})
    for name in ("best", "step_9999x", ".step_3000.17.tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / f".step_9000.{os.getpid()}.tmp").mkdir()
    assert series.steps() == [500, 900, 1000, 2500]
    assert series.restore(jnp.int32(0), print).tree == 2500
    series.save(9000, jnp.int32(9000), {})
    assert series.restore(jnp.int32(0), print).tree == 9000


@pytest.mark.parametrize(
    ("keep", "left"), [(2, [1000, 2500]), (1, [2500]), (9, [500, 900, 1000, 2500]), (-1, [500, 900, 1000, 2500])]
)
def test_only_the_newest_steps_are_kept(keep, left, tmp_path):
    series = CheckpointSeries(tmp_path)
    for step in (900, 1000, 2500, 500):
        (tmp_path / f"step_{step}").mkdir()
    (tmp_path / "best").mkdir()
    series.prune(keep)
    assert series.steps() == left
    assert sorted(os.listdir(tmp_path)) == sorted(["best", *(f"step_{step}" for step in left)])


def test_later_steps_are_removed(tmp_path):
    series = CheckpointSeries(tmp_path)
    for step in (900, 1000, 2500):
        (tmp_path / f"step_{step}").mkdir()
    series.remove_after(900)
    assert series.steps() == [900]


def test_metadata_is_plain_json(tmp_path):
    save_checkpoint(tmp_path / "saved", {"w": jnp.ones((2, 3))}, {"model": "tiny", "targets": ("a", "b")})
    about = json.loads((tmp_path / "saved" / "metadata.json").read_text())
    assert about["metadata"] == {"model": "tiny", "targets": ["a", "b"]}
    assert about["leaves"] == {"w": {"kind": "array", "dtype": "float32", "shape": [2, 3]}}
