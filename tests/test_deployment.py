"""The trained policy as a scorer: it ranks what the copied policy proposes, and nothing else of it is heard."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_sweeps import small_policy, some_tasks

from fuyu_jax.deployment import Roles, ScoredPolicy, rank_proposals
from fuyu_jax.evaluate.measure import lane_keys
from fuyu_jax.policy import make_play
from fuyu_jax.rollout import repeat_lanes
from fuyu_jax.runs.arguments import parse_runs
from fuyu_jax.runs.errors import UserError
from vm.types import THREEFRY

COUNT = 4


def test_the_scorer_chooses_among_the_proposers_best_valid_edits():
    draw = np.random.default_rng(3)
    proposed, scored = draw.normal(size=(2, 50, 20)).astype(np.float32)
    valid = draw.random((50, 20)) < 0.7
    ranked = np.asarray(rank_proposals(*map(jnp.asarray, (proposed, scored, valid)), 4))
    for row in range(50):
        edits = [edit for edit in range(20) if valid[row, edit]]
        best = sorted(edits, key=lambda edit: -proposed[row, edit])[:4]
        by_score = sorted(best, key=lambda edit: -scored[row, edit])
        rest = sorted(set(edits) - set(best), key=lambda edit: -proposed[row, edit])
        assert sorted(edits, key=lambda edit: -ranked[row, edit]) == by_score + rest


@pytest.fixture(scope="module")
def episodes():
    """Argmax episodes of the policy alone, of it in both roles, and of it with a stranger's ranking."""
    policy, params = small_policy()
    other = jax.tree.map(lambda leaf: leaf[::-1] if leaf.ndim == 1 else -leaf, params)
    scored = ScoredPolicy.of(policy)
    tasks = some_tasks(COUNT)
    keys = lane_keys(jax.random.key(0, impl=THREEFRY), jnp.arange(COUNT), 1)
    budget = jnp.full((COUNT, 1), 5, jnp.int32)
    rest = (tasks, repeat_lanes(tasks.start, 1), budget, keys, jnp.asarray(False))
    play = make_play(scored, True)
    return make_play(policy, True)(params, *rest), play(Roles(params, params), *rest), play(Roles(params, other), *rest)


def test_a_policy_that_scores_its_own_proposals_acts_as_alone(episodes):
    alone, both, _ = episodes
    np.testing.assert_array_equal(alone.action, both.action)
    np.testing.assert_allclose(alone.stop_prob, both.stop_prob, rtol=1e-6)


def test_stop_is_the_proposers_and_edits_are_the_scorers(episodes):
    alone, _, mixed = episodes
    assert (np.asarray(alone.action[0]) != np.asarray(mixed.action[0])).any()
    np.testing.assert_allclose(alone.stop_prob[0], mixed.stop_prob[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--arm", "dagger", "--deploy", "scorer"], "--deploy is 'scorer' but dagger trains no scorer"),
        (["--arm", "process_dpo", "--deploy", "scorer", "--stop_head", "joint"], "a joint STOP cannot be kept apart"),
        (["--arm", "grpo_echo", "--search_budget", "8"], "--search_budget is 8 but grpo_echo does not search"),
        (["--arm", "value_search", "--search_budget", "0"], "value_search learns from what it searches"),
    ],
)
def test_what_an_arm_cannot_do_is_refused(words, says):
    with pytest.raises(UserError, match=says):
        parse_runs(words)
