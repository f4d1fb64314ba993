"""Copying done once: what a run that finds its copied policies has afterwards is what training would have left."""

import dataclasses
import json
import multiprocessing
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from fuyu_jax.policy import Params, Policy
from fuyu_jax.runs.checkpoints import tree_digest
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.policies import BuiltPolicy, PolicyFolder, about_policy
from fuyu_jax.runs.settings import PilotSettings
from fuyu_jax.runs.shared_bc import (
    NOT_COPYING,
    Shelf,
    code_digest,
    copied_epochs,
    copied_phases,
    copying_recipe,
    recipe_hash,
)
from fuyu_jax.runs.tables import TRAIN_LOG_COLUMNS
from vm.prompts import TokenTable
from vm.types import DEFAULT_SETTINGS

RECIPE = {
    "settings": {"bc_epochs": 2, "bc_updates": 5, "learning_rate": 0.1, "seed": 3},
    "model": {"weights": "none"},
    "initial_parameters": "00",
    "tokens": "11",
}
LIKE = {"w": jnp.zeros(3)}


class FakeDemos:
    """Counts the demonstrations taken."""

    def __init__(self):
        self.taken = 0

    @property
    def position(self):
        return {"taken": self.taken}

    def move_to(self, position):
        self.taken = position["taken"]


class FakeRun:
    """A run that copies: its training adds the update's number to the parameters."""

    def __init__(self, path):
        self.folder = RunFolder.create(str(path), "run")
        self.counts, self.demos, self.trained_updates = Counter(), FakeDemos(), 0

    def train(self):
        parameters = LIKE
        for update in range(1, 6):
            parameters = {"w": parameters["w"] + update}
            self.trained_updates += 1
            self.demos.taken += 64
            self.counts.update({"updates": 1, "training tokens": 100 * update})
            row = {"phase": "bc_policy", "kind": "update", "update": update, "loss": 1 / update}
            self.folder.append_csv("train_log.csv", TRAIN_LOG_COLUMNS, [row])
            if update in (2, 5):
                yield parameters

    def copy(self, shelf, recipe=RECIPE, bc_from=None):
        """The phases with their parameters, and the run's state after each."""
        seen = []
        for epoch in copied_epochs(
            shelf, recipe, LIKE, self.train, self.folder, self.counts, self.demos, bc_from=bc_from
        ):
            log = (self.folder.path / "train_log.csv").read_text()
            state = (log, dict(self.counts), self.demos.position)
            seen.append((epoch.phase, epoch.trained["w"].tolist(), epoch.counts, epoch.position, state))
            row = {"phase": epoch.phase, "kind": "diagnostics", "state_set": "oracle_path", "action_accuracy": 0.5}
            self.folder.append_csv("train_log.csv", TRAIN_LOG_COLUMNS, [row])
            self.counts["rollout decisions"] += 1
        return seen


def test_the_second_run_has_what_the_first_trained(tmp_path):
    shelf = Shelf(tmp_path / "runs" / ".bc")
    first, second = FakeRun(tmp_path / "a"), FakeRun(tmp_path / "b")
    trained, found = first.copy(shelf), second.copy(shelf)
    assert [epoch[:3] for epoch in trained] == [
        ("bc_policy_e1", [3.0] * 3, {"updates": 2, "training tokens": 300}),
        ("bc_policy", [15.0] * 3, {"updates": 3, "training tokens": 1200}),
    ]
    assert found == trained
    assert (first.trained_updates, second.trained_updates) == (5, 0)
    logs = [(run.folder.path / "train_log.csv").read_bytes() for run in (first, second)]
    assert logs[0] == logs[1]
    assert first.counts == second.counts and first.demos.position == second.demos.position == {"taken": 320}


def test_an_entry_is_readable_and_alone(tmp_path):
    FakeRun(tmp_path / "a").copy(Shelf(tmp_path / "bc"))
    (entry,) = (tmp_path / "bc").iterdir()
    assert entry.name == recipe_hash(RECIPE)
    assert json.loads((entry / "recipe.json").read_text()) == RECIPE
    assert sorted(path.name for path in entry.iterdir()) == ["checkpoints", "recipe.json", "train_log.csv"]


def test_another_recipe_is_another_entry(tmp_path):
    shelf = Shelf(tmp_path / "bc")
    FakeRun(tmp_path / "a").copy(shelf)
    other = FakeRun(tmp_path / "b")
    other.copy(shelf, {**RECIPE, "code": "changed"})
    assert other.trained_updates == 5 and len(list((tmp_path / "bc").iterdir())) == 2


@pytest.mark.parametrize("broken", ["train_log.csv", "checkpoints/bc_policy/metadata.json"])
def test_a_damaged_entry_is_said_and_made_anew(broken, tmp_path, capsys):
    shelf = Shelf(tmp_path / "bc")
    FakeRun(tmp_path / "a").copy(shelf)
    (shelf.root / recipe_hash(RECIPE) / broken).unlink()
    runs = [FakeRun(tmp_path / name) for name in ("b", "c")]
    assert [run.copy(shelf)[-1][1] for run in runs] == [[15.0] * 3] * 2
    assert [run.trained_updates for run in runs] == [5, 0]
    assert "copying anew" in capsys.readouterr().err


def test_a_run_that_stops_half_way_leaves_nothing(tmp_path):
    shelf = Shelf(tmp_path / "bc")
    run = FakeRun(tmp_path / "a")
    epochs = copied_epochs(shelf, RECIPE, LIKE, run.train, run.folder, run.counts, run.demos)
    next(epochs)
    epochs.close()
    assert list((tmp_path / "bc").iterdir()) == []
    assert shelf.find(RECIPE, LIKE) is None


def test_a_shelf_that_cannot_be_written_costs_the_run_nothing(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    run = FakeRun(tmp_path / "a")
    assert [epoch[1] for epoch in run.copy(Shelf(tmp_path / "file" / "bc"))] == [[3.0] * 3, [15.0] * 3]
    told = capsys.readouterr().err
    assert told.count("copied policies are not shared") == 1 and "Not a directory" in told


def copy_at_once(folder, name, barrier):
    run = FakeRun(folder / name)
    train = run.train

    def wait_and_train():
        barrier.wait(60)
        yield from train()

    run.train = wait_and_train
    assert run.copy(Shelf(folder / "bc"))[-1][1] == [15.0] * 3


def test_two_processes_at_once(tmp_path):
    """Both look before either has written, so both train, and both try to put the same entry there."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=copy_at_once, args=(tmp_path, name, barrier)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert [path.name for path in (tmp_path / "bc").iterdir()] == [recipe_hash(RECIPE)]
    third = FakeRun(tmp_path / "c")
    assert third.copy(Shelf(tmp_path / "bc"))[-1][1] == [15.0] * 3 and third.trained_updates == 0


def make_run(tmp_path):
    """A run that copied and saved its policies, as the pilot does."""
    run = FakeRun(tmp_path / "made")
    settings = PilotSettings(**RECIPE["settings"])
    run.folder.write_json("config.json", settings.to_dict())
    epochs = copied_epochs(Shelf(tmp_path / "bc"), RECIPE, LIKE, run.train, run.folder, run.counts, run.demos)
    for epoch in epochs:
        about = about_policy(settings, {}, copying=RECIPE, counts=epoch.counts, position=epoch.position)
        PolicyFolder.of_run(run.folder.path).save(epoch.phase, epoch.trained, about)
    return run.folder.path


def test_a_named_runs_policy_is_used(tmp_path):
    made = make_run(tmp_path)
    run = FakeRun(tmp_path / "b")
    recipe = {**RECIPE, "code": "changed", "packages": {"jax": "another"}}
    seen = run.copy(Shelf(tmp_path / "another"), recipe, bc_from=str(made))
    assert [epoch[1] for epoch in seen] == [[3.0] * 3, [15.0] * 3]
    assert run.trained_updates == 0 and run.demos.taken == 320 and run.counts["updates"] == 5
    assert not (tmp_path / "another").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"settings": {**RECIPE["settings"], "learning_rate": 0.2}}, r"--learning_rate 0\.1, but here it is 0\.2"),
        ({"model": {"weights": "abc"}}, r"copying\.model\.weights"),
        ({"initial_parameters": "77"}, r"copying\.initial_parameters"),
    ],
)
def test_a_named_run_that_copied_otherwise_is_refused(change, said, tmp_path):
    made = make_run(tmp_path)
    run = FakeRun(tmp_path / "b")
    with pytest.raises(UserError, match=said):
        run.copy(Shelf(tmp_path / "another"), {**RECIPE, **change}, bc_from=str(made))


def test_a_named_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is no run"):
        FakeRun(tmp_path / "b").copy(Shelf(tmp_path / "bc"), bc_from=str(tmp_path))


def test_what_a_recipe_depends_on():
    settings = PilotSettings()
    source = {"name": "tiny", "weights": "drawn at random", "layers": 4}
    table = TokenTable(jnp.zeros((2, 3), jnp.int32), jnp.ones(2, jnp.int32))
    policy = Policy(None, DEFAULT_SETTINGS, table, prompt_tokens=48)
    built = BuiltPolicy(policy, policy, Params(LIKE, {}), source)
    recipe = copying_recipe(settings, built)
    assert recipe_hash(recipe) == recipe_hash(json.loads(json.dumps(recipe)))
    same = dataclasses.replace(settings, arm="bc", budgets=(0, 1), update_lr=0.5, out="elsewhere", preset="smoke")
    assert recipe_hash(copying_recipe(same, built)) == recipe_hash(recipe)
    moved = built._replace(source={**built.source, "name": "/another/place"})
    assert recipe_hash(copying_recipe(settings, moved)) == recipe_hash(recipe)
    others = [
        {"seed": 1}, {"bc_updates": 301}, {"demos": 7}, {"dtype": "bfloat16"}, {"hidden": 8}, {"start": "blank"},
        {"echo_loss_weight": 0.0}, {"learning_rate": 1e-3}, {"batch_tasks": 32}, {"lora_rank": 4},
    ]  # fmt: skip
    recipes = [copying_recipe(dataclasses.replace(settings, **other), built) for other in others]
    weights = built._replace(source={**built.source, "weights": "0" * 64})
    heads = built._replace(params=built.params._replace(trained=jax.tree.map(lambda x: x + 1, built.params.trained)))
    words = built._replace(policy=dataclasses.replace(policy, tokens=table._replace(ids=table.ids + 1)))
    recipes += [copying_recipe(settings, other) for other in (weights, heads, words)]
    recipes += [{**recipe, "code": "another"}, {**recipe, "packages": {}}]
    assert len({recipe_hash(other) for other in [recipe, *recipes]}) == 1 + len(recipes)
    assert recipe["initial_parameters"] == tree_digest(built.params.trained)


def test_any_change_of_the_code_changes_its_digest(tmp_path):
    digests = []
    for number, (name, text) in enumerate(
        [("vm/a.py", "1"), ("vm/a.py", "2"), ("vm/b.py", "1"), ("fuyu_jax/a.py", "1")]
    ):
        (tmp_path / str(number) / name).parent.mkdir(parents=True)
        (tmp_path / str(number) / name).write_text(text)
        digests.append(code_digest(tmp_path / str(number)))
    assert len({*digests, code_digest()}) == 5


def test_settings_left_out_of_the_recipe_exist():
    assert {field.name for field in dataclasses.fields(PilotSettings)} >= NOT_COPYING


def test_the_names_of_epochs():
    assert copied_phases(1) == ["bc_policy"]
    assert copied_phases(3) == ["bc_policy_e1", "bc_policy_e2", "bc_policy"]
