"""Demonstrations from a fixed set: every pass shows each once, in an order and along paths that never change."""

import jax
import numpy as np
import pytest

from fuyu_jax.learn.demos import DemonstrationSource


class Numbers:
    """A stream whose tasks are the numbers from 0."""

    def __init__(self):
        self.cursor = 0

    def next_batch(self, count):
        first, self.cursor = self.cursor, self.cursor + count
        return np.arange(first, first + count), self.cursor


def taken(sizes, count, seed=3):
    source = DemonstrationSource(Numbers(), seed, count)
    batches = [source.next_batch(size) for size in sizes]
    tasks = np.concatenate([np.asarray(batch.tasks) for batch in batches])
    return tasks, np.concatenate([np.asarray(jax.random.key_data(batch.path_keys)) for batch in batches])


@pytest.mark.parametrize("sizes", [[15], [5, 5, 5], [7, 1, 7], [2, 13]])
def test_batch_sizes_do_not_matter_and_each_pass_shows_every_task_once(sizes):
    tasks, paths = taken(sizes, 5)
    expected_tasks, expected_paths = taken([1] * 15, 5)
    np.testing.assert_array_equal(tasks, expected_tasks)
    np.testing.assert_array_equal(paths, expected_paths)
    passes = tasks.reshape(3, 5)
    assert (np.sort(passes, axis=1) == np.arange(5)).all()
    assert (passes[0] != passes[1]).any(), "another pass, another order"
    for task in range(5):
        assert len(np.unique(paths[tasks == task], axis=0)) == 1, "a demonstration has one path"


def test_a_stream_is_fresh_and_gives_every_task_a_path_of_its_own():
    tasks, paths = taken([4, 3], 0)
    np.testing.assert_array_equal(tasks, np.arange(7))
    assert len(np.unique(paths, axis=0)) == 7
