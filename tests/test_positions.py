"""Positions of prompts: counted, or with one gap that is drawn from the prompt itself."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuyu_jax.controller.positions import prompt_positions

WIDTH = 9


def rows_of(prompts):
    ids = np.zeros((len(prompts), WIDTH), np.int32)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
    mask = np.arange(WIDTH) < np.array([[len(prompt)] for prompt in prompts])
    return jnp.asarray(ids), jnp.asarray(mask)


def test_without_a_gap_tokens_are_counted():
    places = prompt_positions(*rows_of([[5, 5, 5], [7]]), 0)
    assert places.tolist() == [[0, 1, 2, 2, 2, 2, 2, 2, 2], [0] * 9]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 500), min_size=1, max_size=WIDTH), min_size=3, max_size=3), st.integers(1, 20))
def test_a_prompt_has_one_gap_at_most_and_none_before_its_first_token(prompts, most):
    places = np.asarray(prompt_positions(*rows_of(prompts), most))
    for row, prompt in zip(places, prompts, strict=True):
        assert row[0] == 0
        blanks = np.diff(row[: len(prompt)]) - 1
        assert np.count_nonzero(blanks) <= 1
        assert all(0 <= blank <= most for blank in blanks)


def test_every_width_and_place_of_the_gap_occurs_about_as_often():
    rng = np.random.default_rng(0)
    places = np.asarray(prompt_positions(*rows_of(rng.integers(1, 500, (4_000, WIDTH))), 3))
    blanks = np.diff(places, axis=1) - 1
    widths = np.bincount(blanks.sum(axis=1), minlength=4) / len(blanks)
    assert widths == pytest.approx([0.25] * 4, abs=0.04)
    cuts = np.count_nonzero(blanks, axis=0) / np.count_nonzero(blanks)
    assert cuts == pytest.approx([1 / 8] * 8, abs=0.03)


def test_a_prompt_reads_the_same_among_others():
    some = [[3, 1, 4, 1, 5], [9, 2, 6]]
    both, alone = (prompt_positions(*rows_of(prompts), 16) for prompts in (some, some[1:]))
    np.testing.assert_array_equal(both[1], alone[0])
