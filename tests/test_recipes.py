"""Recipes in little: what learns nothing changes nothing, and every cure can be given or taken away alone."""

import functools
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_sweeps import FixedStream, small_policy, some_tasks
from test_training_paths import FixedSource

from fuyu_jax import recipes
from fuyu_jax.controller import Rules
from fuyu_jax.learn.arms.grpo_echo import taken
from fuyu_jax.learn.experience import RolloutOptions, make_explore, sample_decisions
from fuyu_jax.learn.improvement import improve
from fuyu_jax.learn.losses.policy_gradient import clipped_policy_loss, exact_kl
from fuyu_jax.policy import make_play, make_score
from fuyu_jax.rollout import repeat_lanes
from fuyu_jax.runs.arguments import parse_runs
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.fields import to_text
from fuyu_jax.runs.policies import policy_rules
from fuyu_jax.runs.settings import RECIPES
from fuyu_jax.runs.shared_bc import NOT_COPYING
from vm.types import THREEFRY

KEY = jax.random.key(11, impl=THREEFRY)
LITTLE = ["--rollout_tasks", "4", "--rollout_batch", "4", "--group", "2", "--states_per_rollout", "2", "--updates", "2"]
LITTLE += ["--reuse", "2", "--batch_tasks", "4", "--states_per_task", "2"]
SIZES = ("group", "rollout_tasks", "rollout_batch", "reuse", "updates")
LAYOUTS = ("placement", "layout_gaps", "position_gap")  # of what is copied as well
CURES = [name for name in RECIPES["original"] if name not in (*SIZES, *LAYOUTS, "likelihood_weight")] + ["rounds"]


@pytest.fixture(autouse=True)
def fixed_tasks(monkeypatch):
    monkeypatch.setattr(recipes, "task_stream", lambda settings, purpose: FixedStream())


@functools.cache
def policy_of(rules):
    return small_policy(rules)


@functools.cache
def play_of(rules, no_repeat):
    return make_play(policy_of(rules)[0], no_repeat)


@functools.cache
def cloning_of(rules):
    (settings,) = parse_runs(LITTLE)
    return recipes.make_cloning(settings, policy_of(rules)[0], FixedSource())


def update(*argv):
    """A tiny decision update: parameters before and after, what it said of each step, and how it plays."""
    (settings,) = parse_runs([*LITTLE, *argv])
    rules = policy_rules(settings)
    policy, params = policy_of(rules)
    play = play_of(rules, settings.no_repeat)
    arm = recipes.make_arm(settings, policy, play, FixedSource())
    said = []
    options = recipes.update_options(settings)
    report = lambda number, metrics: said.append(jax.tree.map(float, metrics))  # noqa: E731
    *_, after = improve(arm, params, cloning_of(rules), options, KEY, report, lambda number, signals: None)
    return params, after, said, functools.partial(argmax, play)


def argmax(play, params):
    """Two argmax episodes of each of four tasks, with budgets 3 and 12."""
    tasks = some_tasks(4)
    budget = jnp.broadcast_to(jnp.array([3, 12], jnp.int32), (4, 2))
    keys = jax.random.split(KEY, (4, 2))
    return play(params, tasks, repeat_lanes(tasks.start, 2), budget, keys, jnp.asarray(False))


@pytest.mark.parametrize(
    ("arm", "shuffle"),
    [
        ("dagger", "1"),
        ("grpo_echo", "0"),
        *(
            pytest.param(arm, shuffle, marks=pytest.mark.slow)
            for arm in ("dagger", "expert_iteration", "grpo_echo", "grpo_terminal")
            for shuffle in "01"
            if (arm, shuffle) not in {("dagger", "1"), ("grpo_echo", "0")}
        ),
    ],
)
def test_a_learning_rate_of_zero_leaves_the_copied_policy(arm, shuffle):
    before, after, said, play = update("--arm", arm, "--update_lr", "0", "--shuffle_signal", shuffle)
    assert len(said) == 2 and all(step["gradient_norm"] > 0 and step["skipped_updates"] == 0 for step in said)
    assert all(("replay_loss" in step) == (arm != "dagger") for step in said), "dagger's labels need no demonstrations"
    for one, other in zip(jax.tree.leaves(play(before)), jax.tree.leaves(play(after)), strict=True):
        np.testing.assert_array_equal(one, other)


def values_of(recipe):
    (settings,) = parse_runs(["--recipe", recipe])
    return settings.to_dict()


def alone(cure, recipe):
    """The options that give a cure alone to the original's recipe, or take it alone from the guarded one."""
    other = {"original": "guarded", "guarded": "original"}[recipe]
    value = 2 if cure == "rounds" else values_of(other)[cure]
    return ["--recipe", recipe, f"--{cure}", to_text(value)]


@pytest.mark.parametrize("recipe", ["original", "guarded"])
@pytest.mark.parametrize("cure", CURES)
def test_a_cure_alone_changes_nothing_else(cure, recipe):
    (settings,) = parse_runs(alone(cure, recipe))
    base = values_of(recipe)
    changed = {name for name, value in settings.to_dict().items() if value != base[name]}
    pulled = {("stop_head", "original"): {"heads"}, ("heads", "guarded"): {"stop_head"}}  # cannot be had without
    assert changed == {cure} | pulled.get((cure, recipe), set())
    words = shlex.split(settings.command())
    assert parse_runs(words[2:]) == [settings]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["original", "guarded"])
@pytest.mark.parametrize("cure", CURES)
def test_every_cure_alone_makes_a_sound_update(cure, recipe):
    before, after, said, _ = update(*alone(cure, recipe))
    check_sound(before, after, said)


def check_sound(before, after, said):
    assert len(said) == 2 and all(step["skipped_updates"] == 0 for step in said)
    assert all(np.isfinite(list(step.values())).all() for step in said)
    moved = jax.tree.map(lambda one, other: bool((one != other).any()), before.trained, after.trained)
    assert any(jax.tree.leaves(moved))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(after.trained))


def test_the_original_recipe_makes_invalid_edits_and_a_sound_update():
    before, after, said, play = update("--recipe", "original")
    check_sound(before, after, said)
    episodes = play(before)
    edited = np.asarray(episodes.active & (episodes.action > 0))
    assert (edited & ~np.asarray(episodes.valid)).any(), "one of its edits changes nothing"
    np.testing.assert_array_equal(edited.sum(axis=0), [[3, 12]] * 4)


def test_under_the_original_recipe_nothing_has_moved_before_the_first_update():
    """What was sampled is what is scored: ratios of exactly 1 and a KL of exactly 0."""
    (settings,) = parse_runs([*LITTLE, "--recipe", "original"])
    rules = policy_rules(settings)
    assert rules == Rules(mask=False, joint_stop=True, factored=True)
    policy, params = policy_of(rules)
    play, score = play_of(rules, settings.no_repeat), make_score(policy)
    arm = recipes.make_arm(settings, policy, play, FixedSource())
    turn, signals = arm.collect(params, params, KEY)
    visits = turn.visits
    log_probs = score(params, visits.tasks, visits.states.seen, visits.allowed)
    counts = np.asarray(visits.states.weight > 0)
    ratio = clipped_policy_loss(taken(log_probs, visits.states.action), turn.old_log_prob, turn.advantage).ratio
    np.testing.assert_array_equal(np.asarray(ratio)[counts], 1.0)
    np.testing.assert_array_equal(exact_kl(log_probs, turn.reference), np.zeros(counts.shape))
    np.testing.assert_allclose(np.exp(np.asarray(log_probs)).sum(axis=-1), 1, rtol=1e-5)
    assert float(signals["candidates_per_state"]) == policy.settings.num_actions - 1
    assert float(signals["valid_edits"]) < 1

    explored = make_explore(policy, play, RolloutOptions(2, 2))(params, visits.tasks, jax.random.split(KEY, 3)[0])
    chosen = sample_decisions(explored, jax.random.split(KEY, 3)[1], 2, explored.episodes.log_prob)
    np.testing.assert_array_equal(chosen.action, visits.states.action)
    np.testing.assert_allclose(np.asarray(chosen.extra)[counts], np.asarray(turn.old_log_prob)[counts], atol=1e-4)


def test_heads_masks_and_stop_are_part_of_what_is_copied():
    assert not {"heads", "stop_head", "mask"} & NOT_COPYING and "no_repeat" in NOT_COPYING


def test_an_arm_is_what_it_is_under_the_original_recipe_too():
    """Defaults, then the preset, then the recipe, then the arm, then what is given."""
    (settings,) = parse_runs(["--recipe", "original", "--arm", "grpo_terminal", "--preset", "smoke", "--mask", "1"])
    assert (settings.reward, settings.shaping, settings.credit) == ("terminal", "potential", "trajectory")
    assert (settings.bc_updates, settings.updates) == (8, 16)
    assert (settings.heads, settings.mask) == ("factored", True)
    with pytest.raises(UserError, match="--stop_head is 'separate'.*joint"):
        parse_runs(["--heads", "factored", "--stop_head", "separate"])
