"""A run's policies: saved by phase, loaded to the bit, refused where they belong to something else."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest

from fuyu_jax.runs import policies
from fuyu_jax.runs.checkpoints import DamagedCheckpoint, tree_digest
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.policies import PolicyFolder, about_policy, build_policy, load_policy
from fuyu_jax.runs.settings import PilotSettings

build_once = functools.cache(build_policy)
SETTINGS = PilotSettings(preset="smoke", seed=5, public=2, show_targets=True)


@pytest.fixture(scope="module")
def built():
    return build_once(SETTINGS)


@pytest.fixture
def quick_building(monkeypatch):
    """Drawing a model's weights compiles; policies of the same settings are drawn once."""
    monkeypatch.setattr(policies, "build_policy", build_once)


def trained_policy(built, change):
    """The policy's parameters moved away from where they began."""
    return built.params._replace(trained=jax.tree.map(lambda leaf: leaf + change, built.params.trained))


@pytest.fixture(scope="module")
def run(built, tmp_path_factory):
    """A run with two policies, whose names are not in the order of training."""
    folder = RunFolder.create(str(tmp_path_factory.mktemp("runs") / "one"), "one")
    folder.write_json("config.json", SETTINGS.to_dict())
    saved = PolicyFolder.of_run(folder.path)
    saved.claim()
    for phase, change in (("zz_policy", 1.0), ("bc_policy", 2.0)):
        saved.save(phase, trained_policy(built, change).trained, about_policy(SETTINGS, built.source))
    return folder.path


def copy_of(run, tmp_path):
    return shutil.copytree(run, tmp_path / "moved")


def test_the_last_policy_comes_back_bit_for_bit(built, run, tmp_path, monkeypatch):
    monkeypatch.chdir(run.parent)
    loaded = load_policy(type(run)("one"))
    assert (loaded.phase, loaded.settings, loaded.notes) == ("bc_policy", SETTINGS, ())
    assert tree_digest(loaded.params) == tree_digest(trained_policy(built, 2.0))
    assert jax.tree.structure(loaded.params) == jax.tree.structure(built.params)
    assert loaded.policy.prompt_tokens == built.reader.prompt_tokens
    assert np.array_equal(loaded.policy.tokens.ids, built.policy.tokens.ids)


@pytest.mark.usefixtures("quick_building")
def test_phases_are_in_the_order_of_training(built, run):
    assert PolicyFolder.of_run(run).phases() == ["zz_policy", "bc_policy"]
    loaded = load_policy(run, "zz_policy")
    assert tree_digest(loaded.params.trained) == tree_digest(trained_policy(built, 1.0).trained)


def test_only_what_was_trained_is_saved(built, run):
    about = json.loads((run / "checkpoints" / "bc_policy" / "metadata.json").read_text())
    assert len(about["leaves"]) == len(jax.tree.leaves(built.params.trained))
    assert about["metadata"]["model"]["weights"] == "drawn at random"
    assert about["metadata"]["settings"] == SETTINGS.to_dict()


def test_unknown_phases_are_refused_with_those_there_are(run):
    with pytest.raises(UserError, match="no policy 'bc'; use one of zz_policy, bc_policy"):
        load_policy(run, "bc")


def test_folders_without_a_run_or_policies_are_refused(run, tmp_path):
    with pytest.raises(UserError, match="no config.json"):
        load_policy(tmp_path)
    moved = copy_of(run, tmp_path)
    shutil.rmtree(moved / "checkpoints")
    with pytest.raises(UserError, match="no saved policies"):
        load_policy(moved)
    (moved / "config.json").write_text("{")
    with pytest.raises(UserError, match="config.json cannot be read"):
        load_policy(moved)


def test_settings_that_are_not_the_policys_are_refused(run, tmp_path):
    moved = copy_of(run, tmp_path)
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps(config | {"bc_updates": 77}))
    with pytest.raises(UserError, match=r"settings\.bc_updates 300, but here settings\.bc_updates is 77"):
        load_policy(moved)


def test_a_base_model_that_changed_is_refused(built, run, monkeypatch):
    changed = built._replace(source=built.source | {"weights": "0" * 64})
    monkeypatch.setattr(policies, "build_policy", lambda settings: changed)
    with pytest.raises(
        UserError, match=r"another base model.*weights \"drawn at random\" in place of \"0{64}\".*--model"
    ):
        load_policy(run)


def test_a_base_model_may_be_elsewhere_now(built, run, tmp_path, monkeypatch):
    gone = SETTINGS.to_dict() | {"model": str(tmp_path / "gone")}
    moved = copy_of(run, tmp_path)
    (moved / "config.json").write_text(json.dumps(gone))
    shutil.rmtree(moved / "checkpoints")
    about = about_policy(PilotSettings.from_dict(gone), built.source)
    PolicyFolder.of_run(moved).save("bc_policy", built.params.trained, about)
    with pytest.raises(UserError, match=r"trained on \S*gone, which is neither .* say with --model"):
        load_policy(moved)
    monkeypatch.setattr(policies, "build_policy", build_once)
    assert load_policy(moved, model="tiny").settings == SETTINGS


def test_a_policy_of_other_sizes_is_refused_by_its_leaf(built, run):
    other = build_policy(PilotSettings(public=3))
    with pytest.raises(UserError, match=r"embedder/.*\[2, 128\].*\[3, 128\]"):
        PolicyFolder.of_run(run).load("bc_policy", other.params.trained, {})


@pytest.mark.usefixtures("quick_building")
def test_damage_is_named(run, tmp_path):
    moved = copy_of(run, tmp_path)
    shutil.rmtree(moved / "checkpoints" / "bc_policy" / "arrays")
    with pytest.raises(DamagedCheckpoint, match="bc_policy is not whole: arrays"):
        load_policy(moved)


@pytest.mark.usefixtures("quick_building")
def test_other_versions_are_said(run, monkeypatch):
    versions = policies.package_versions()
    monkeypatch.setattr(policies, "package_versions", lambda: versions | {"jax": "0.1"})
    assert load_policy(run).notes == (f"saved with jax {versions['jax']}, read with jax 0.1: numbers may differ.",)


@pytest.mark.usefixtures("quick_building")
def test_checkpoints_elsewhere(built, run, tmp_path):
    """A folder for the checkpoints of many runs: told by the run's settings, or by hand."""
    elsewhere = tmp_path / "elsewhere"
    moved = copy_of(run, tmp_path)
    PolicyFolder.of_run(moved, str(elsewhere)).claim()
    shutil.copytree(moved / "checkpoints" / "bc_policy", elsewhere / "moved" / "bc_policy")
    shutil.rmtree(moved / "checkpoints")
    for place in (elsewhere, elsewhere / "moved"):
        assert load_policy(moved, checkpoint_dir=str(place)).phase == "bc_policy"
    with pytest.raises(UserError, match="holds another run's files"):
        PolicyFolder.of_run(moved, str(elsewhere)).claim()
    with pytest.raises(UserError, match="cannot be made"):
        PolicyFolder.of_run(moved, str(moved / "config.json")).claim()


def test_a_model_that_is_not_there_is_one_sentence():
    with pytest.raises(UserError, match="no/such/folder"):
        build_policy(PilotSettings(model="no/such/folder"))
