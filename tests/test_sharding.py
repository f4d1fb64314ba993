"""Batches over several devices: the same integers as on one, and one device does without any of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from sharded_sweeps import experience, rollouts, search, sweeps

from fuyu_jax.sharding import gather, split_batch

TESTS = Path(__file__).resolve().parent


def on_four_devices(*command):
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    paths = {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    done = subprocess.run(
        [sys.executable, *command], env={**os.environ, **flags, **paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sweeps_and_rollouts_give_the_integers_of_one_device():
    assert jax.device_count() == 1
    assert on_four_devices(TESTS / "sharded_sweeps.py", "sweeps", "rollouts") == [4, sweeps(), rollouts()]


@pytest.mark.slow
def test_search_and_experience_give_the_integers_of_one_device():
    assert on_four_devices(TESTS / "sharded_sweeps.py", "search", "experience") == [4, search(), experience()]


PARTS = """
import json
import jax, jax.numpy as jnp, numpy as np
from fuyu_jax.sharding import gather, split_batch

def tell(table, rows, none):
    return jnp.broadcast_to((rows[0] * table[0])[None], (2, *rows[0].shape)), (rows[1] + 1)[None]

whole = split_batch(tell, shared=(0,), axis=1)
told = {}
for batch in (1, 4, 5, 6, 8):
    rows = (jnp.arange(batch * 3).reshape(batch, 3), jnp.arange(batch))
    results = jax.jit(whole)(jnp.array([7]), rows, None)
    for got, right in zip(results, tell(jnp.array([7]), rows, None)):
        np.testing.assert_array_equal(got, right)
        assert got.sharding.shard_shape(got.shape)[1] == results[1].sharding.shard_shape((1, batch))[1]
    told[batch] = [batch // results[1].sharding.shard_shape((1, batch))[1], len(results[1].sharding.device_set)]
    back = gather(results)
    assert all(leaf.devices() == {jax.devices()[0]} for leaf in back)
    jax.jit(whole)(jnp.array([7]), (back[0][0], back[1][0]), None)  # what is gathered can be split again
print(json.dumps(told))
"""


def test_a_batch_is_split_in_as_many_parts_as_divide_it():
    """Parts, and devices that take part."""
    assert on_four_devices("-c", PARTS) == {"1": [1, 1], "4": [4, 4], "5": [1, 1], "6": [2, 4], "8": [4, 4]}


def test_one_device_does_without():
    def function(rows):
        return rows * 2 + 1

    rows = jnp.arange(4)
    assert str(jax.make_jaxpr(split_batch(function))(rows)) == str(jax.make_jaxpr(function)(rows))
    assert gather(rows) is rows
