"""Every arm goes on from a point with the same parameters, moments, metrics and tasks as if it had not stopped."""

import shlex

import jax
import numpy as np
import pytest
from sharded_sweeps import small_policy, some_tasks

from fuyu_jax import recipes
from fuyu_jax.learn.arms.bc import clone
from fuyu_jax.learn.improvement import improve
from fuyu_jax.learn.training import RULE, TrainingPoint, TrainState
from fuyu_jax.policy import make_play
from fuyu_jax.runs.arguments import parse_runs
from fuyu_jax.runs.checkpoints import load_checkpoint, save_checkpoint, tree_digest
from fuyu_jax.runs.policies import policy_rules
from fuyu_jax.runs.settings import ARMS
from vm.types import THREEFRY

KEY = jax.random.key(11, impl=THREEFRY)
LITTLE = shlex.split(
    "--rollout_tasks 4 --rollout_batch 2 --group 2 --states_per_rollout 1 --updates 6 --rounds 2 --reuse 1 "
    "--batch_tasks 4 --states_per_task 2 --bc_updates 6 --bc_epochs 2 --awr_actions 2"
)
FAST = ("bc_matched",)


class Cycle:
    """A stream that gives the same few tasks again and again, one after another."""

    def __init__(self, start):
        self.cursor = start

    @property
    def position(self):
        return {"cursor": self.cursor}

    def move_to(self, position):
        self.cursor = position["cursor"]

    def next_batch(self, count):
        first, self.cursor = self.cursor, self.cursor + count
        return jax.tree.map(lambda leaf: leaf[first % 8 : first % 8 + count], some_tasks(8 + count)), self.cursor


@pytest.fixture(scope="module")
def policy_and_params():
    return small_policy()


class Journal:
    """Everything that training says, and the points it comes by with where the sources of tasks stood."""

    def __init__(self, sources):
        self.sources, self.points, self.said = sources, [], []

    def at_point(self, point):
        self.points.append((point, [dict(source.position) for source in self.sources]))

    def report(self, number, metrics):
        self.said.append((number, {name: np.asarray(value).tobytes() for name, value in metrics.items()}))

    def signals(self, number, metrics):
        self.said.append((f"signals before {number}", {n: np.asarray(v).tobytes() for n, v in metrics.items()}))


def restored(point, params, folder):
    """The point out of a checkpoint, restored into fresh arrays."""
    save_checkpoint(folder / "point", (point.state.params.trained, point.state.opt), {})
    like = (params.trained, jax.eval_shape(RULE.init, params.trained))
    trained, opt = load_checkpoint(folder / "point", like).tree
    return TrainingPoint(TrainState(params._replace(trained=trained), opt), point.done, point.parts)


def check_going_on(train, sources, params, folder, done):
    """Trains straight; then moves the sources to the point after `done` updates and trains on from there."""
    straight = Journal(sources)
    ends = [tree_digest(handed.trained) for handed in train(straight, None)]
    after = [source.position for source in sources]
    begun = next(i for i, (found, _) in enumerate(straight.points) if found.done == done)
    point, positions = straight.points[begun]
    for source, position in zip(sources, positions, strict=True):
        source.move_to({"taken": -1, "cursor": 10**6})
        source.move_to(position)
    resumed = Journal(sources)
    assert [tree_digest(handed.trained) for handed in train(resumed, restored(point, params, folder))] == (
        ends[point.parts :]
    )
    assert [number for number, _ in straight.said if isinstance(number, int)] == [1, 2, 3, 4, 5, 6]
    first = next(i for i, (number, _) in enumerate(straight.said) if number in (f"signals before {done}", done + 1))
    assert resumed.said == straight.said[first:]
    later = straight.points[begun:]
    assert [tree_digest(found.state.opt) for found, _ in resumed.points] == [
        tree_digest(found.state.opt) for found, _ in later
    ]
    assert [(found.done, found.parts, where) for found, where in resumed.points] == [
        (found.done, found.parts, where) for found, where in later
    ]
    assert [source.position for source in sources] == after


@pytest.fixture
def cloning(policy_and_params, monkeypatch):
    monkeypatch.setattr(recipes, "task_stream", lambda settings, purpose: Cycle(3 * purpose))
    (settings,) = parse_runs(LITTLE)
    source = recipes.demonstrations(settings)
    return recipes.make_cloning(settings, policy_and_params[0], source), source


@pytest.mark.parametrize("done", [3, 4])
def test_copying_goes_on(done, cloning, policy_and_params, tmp_path):
    """At the end of an epoch, and inside one."""
    _, params = policy_and_params
    some, source = cloning

    def train(journal, begin):
        return clone(some, params, KEY, journal.report, begin, journal.at_point)

    check_going_on(train, [source], params, tmp_path, done)


@pytest.mark.parametrize(
    "arm", [pytest.param(arm, marks=() if arm in FAST else pytest.mark.slow) for arm in ARMS if arm != "bc"]
)
def test_an_arm_goes_on(arm, cloning, policy_and_params, tmp_path):
    """At the end of a round, which is the beginning of a turn."""
    policy, params = policy_and_params
    some, source = cloning
    (settings,) = parse_runs(["--arm", arm, *LITTLE])
    assert policy_rules(settings) == policy.rules
    made = recipes.make_arm(settings, policy, make_play(policy, True), source)
    options = recipes.update_options(settings)

    def train(journal, begin):
        return improve(made, params, some, options, KEY, journal.report, journal.signals, begin, journal.at_point)

    check_going_on(train, [source, made.tasks], params, tmp_path, 3)
