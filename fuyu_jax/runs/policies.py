"""The policies of a run: built from its settings, saved after each phase, loaded again to be measured or built on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
from flax import nnx

import vm
from fuyu_jax.controller import Rules
from fuyu_jax.controller.build import ModelOptions, build_controller
from fuyu_jax.deployment import Roles, ScoredPolicy
from fuyu_jax.evaluate.metrics import COPIED_PHASE
from fuyu_jax.policy import Params, Policy, split_controller
from fuyu_jax.qwen3 import ModelError, resolve_model, weight_bytes
from fuyu_jax.qwen3.locate import TINY
from fuyu_jax.runs.checkpoints import (
    Metadata,
    Restored,
    check_metadata,
    first_difference,
    load_checkpoint,
    read_metadata,
    save_checkpoint,
)
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import remove_drafts
from fuyu_jax.runs.manifest import package_versions
from fuyu_jax.runs.progress import Progress
from fuyu_jax.runs.settings import PilotSettings
from vm.prompts import longest_prompt
from vm.types import THREEFRY

MACHINE = vm.DEFAULT_SETTINGS
TRAIN_LENGTH, LONGEST = 5, 7  # instructions of the longest train prompt, and of the longest of all
INIT, CLONING, UPDATING = range(3)  # what a run's key is folded with
CHECKPOINTS, TRAINING = "checkpoints", "training"


class BuiltPolicy(NamedTuple):
    """A policy before any training.

    Attributes:
      policy: for training prompts.
      reader: the same for prompts of any split, which may be longer.
      params: its parameters, as drawn and loaded.
      source: where the trunk came from, as in `Built`.
    """

    policy: Policy
    reader: Policy
    params: Params
    source: dict[str, Any]


def build_policy(settings: PilotSettings) -> BuiltPolicy:
    """The policy that a run with these settings starts from.

    Raises:
      UserError: where the model cannot be found or read.
    """
    key = jax.random.fold_in(jax.random.key(settings.seed, impl=THREEFRY), INIT)
    try:
        with _loading(settings) as progress:
            built = build_controller(
                settings.model,
                MACHINE,
                examples=settings.public,
                show_targets=settings.show_targets,
                factored=settings.heads == "factored",
                key=key,
                options=model_options(settings),
                advance=progress.update,
            )
    except ValueError as error:
        raise UserError(str(error)) from error
    graph, params = split_controller(built.controller)
    prompt_tokens = longest_prompt(built.tokens, TRAIN_LENGTH)
    policy = Policy(
        graph,
        MACHINE,
        built.tokens,
        prompt_tokens,
        full_pass=settings.full_pass,
        rules=policy_rules(settings),
        position_gap=settings.position_gap,
    )
    reader = replace(policy, prompt_tokens=longest_prompt(built.tokens, LONGEST), position_gap=0)
    return BuiltPolicy(policy, reader, params, built.source)


def policy_rules(settings: PilotSettings) -> Rules:
    """How a run's policies choose among actions."""
    return Rules(settings.mask, joint_stop=settings.stop_head == "joint", factored=settings.heads == "factored")


def model_options(settings: PilotSettings) -> ModelOptions:
    """How a run keeps and trains its model's weights."""
    return ModelOptions(
        settings.dtype,
        cast(Any, settings.quant),
        settings.lora_rank,
        settings.lora_alpha,
        tuple(name.strip() for name in settings.lora_targets.split(",")),
    )


def _loading(settings: PilotSettings) -> Progress:
    """Progress over the bytes of a model folder's weights; the embedded model has none to read."""
    folder = resolve_model(settings.model)
    return Progress("loading weights", 0 if settings.model == TINY else weight_bytes(folder), unit="B")


@dataclass(frozen=True)
class PolicyFolder:
    """The trained parameters after each phase of one run, a checkpoint each, named by its phase.

    Attributes:
      path: the folder; made by the first save.
    """

    path: Path

    @classmethod
    def of_run(cls, run: Path, checkpoint_dir: str | None = None) -> PolicyFolder:
        """Where a run keeps its policies: in its folder, or under its name in another one."""
        return cls(run / CHECKPOINTS if checkpoint_dir is None else Path(checkpoint_dir) / run.resolve().name)

    def claim(self) -> None:
        """Makes the folder of a new run.

        Raises:
          UserError: where it exists with something in it, or cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            taken = any(self.path.iterdir())
        except OSError as error:
            raise UserError(f"the folder {self.path} cannot be made ({error.strerror}); use another one.") from None
        if taken:
            raise UserError(f"the folder {self.path} holds another run's files; use another one.")

    def save(self, phase: str, trained: nnx.State, about: Mapping[str, Any]) -> None:
        """Saves a phase's trained parameters with what is known about them; `phase` and its `number` are added.

        Raises:
          UserError: where the phase was saved before, or cannot be written.
        """
        save_checkpoint(self.path / phase, trained, {**about, "phase": phase, "number": len(self.phases()) + 1})

    def phases(self) -> list[str]:
        """The saved phases, in the order of training.

        Raises:
          DamagedCheckpoint: where one cannot be read.
        """
        folders = [path for path in self.path.iterdir() if _is_phase(path)] if self.path.is_dir() else []
        number = {path.name: read_metadata(path)["number"] for path in folders}
        return sorted(number, key=number.__getitem__)

    @property
    def training(self) -> Path:
        """Where the points are that training can go on from."""
        return self.path / TRAINING

    def keep_only(self, phases: Sequence[str]) -> None:
        """Removes the policies of other phases, and what a process that is gone left half written."""
        remove_drafts(self.path)
        remove_drafts(self.training)
        for path in [path for path in self.path.glob("*") if _is_phase(path) and path.name not in phases]:
            draft = path.with_name(f".{path.name}.tmp")
            os.rename(path, draft)  # a folder that is half removed must not look like a policy
            remove_drafts(self.path)

    def load(self, phase: str, like: nnx.State, expected: Mapping[str, Any]) -> Restored:
        """A phase's trained parameters, in the structure of `like`; see `load_checkpoint`."""
        return load_checkpoint(self.path / phase, like, expected)


def _is_phase(path: Path) -> bool:
    """Whether a folder holds a policy; saves that were cut short begin with a dot."""
    return path.is_dir() and not path.name.startswith(".") and path.name != TRAINING


def about_policy(settings: PilotSettings, source: Mapping[str, Any], **more: Any) -> Metadata:
    """What is saved with a policy: the settings, model and versions that made it, and what else the caller knows."""
    return {"settings": settings.to_dict(), "model": dict(source), "packages": package_versions(), **more}


class LoadedPolicy(NamedTuple):
    """A saved policy, ready to play.

    Attributes:
      policy: for prompts of any split.
      params: what the policy takes: the saved trained parameters, beside the base model's frozen ones, in `Params`; or
        `Roles`, where the run deploys them as a scorer.
      settings: the run's.
      phase: which of its policies this is.
      notes: sentences on what may make numbers differ: packages of other versions than those it was trained with.
    """

    policy: Policy
    params: Any
    settings: PilotSettings
    phase: str
    notes: tuple[str, ...]


def load_policy(
    run: Path,
    phase: str | None = None,
    checkpoint_dir: str | None = None,
    model: str | None = None,
    alone: bool = False,
) -> LoadedPolicy:
    """Loads a policy of a run, as the run deploys it.

    Args:
      run: the run's folder.
      phase: as in `bc_policy` or `grpo_echo_r1_policy`; None takes the last.
      checkpoint_dir: where the run's checkpoints are, if neither in its folder nor where its `config.json` says.
      model: where the base model is now, if not under the run's name for it.
      alone: load what was trained even where the run deploys it as the copied policy's scorer.

    Raises:
      UserError: where the folder is no run, has no such policy, or its policy is damaged or belongs to another run or
        base model.
    """
    config = read_config(run)
    settings = PilotSettings.from_dict(config)
    folder = _find_policies(run, checkpoint_dir or config.get("checkpoint_dir"))
    phases = folder.phases()
    phase = phase or phases[-1]
    if phase not in phases:
        raise UserError(f"{folder.path} has no policy {phase!r}; use one of {', '.join(phases)}.")
    check_metadata(folder.path / phase, {"settings": config})
    settings = _with_base(settings, run, model)
    built = build_policy(settings)
    # A model's name may be a path, and folders move; its digest is what counts.
    expected = {name: value for name, value in built.source.items() if name != "name"}
    if difference := first_difference(read_metadata(folder.path / phase)["model"], expected):
        name, there, here = difference
        raise UserError(
            f"{phase} of {run} was trained on another base model than {settings.model} is now, with {name} {there} "
            f"in place of {here}; put the files it was trained on back, or say with --model where they are."
        )
    restored = folder.load(phase, built.params.trained, {})
    params = built.params._replace(trained=restored.tree)
    loaded = LoadedPolicy(built.reader, params, settings, phase, version_notes(restored.metadata))
    if alone or settings.deploy == "policy" or phase.startswith(COPIED_PHASE):
        return loaded
    copied = folder.load(COPIED_PHASE, built.params.trained, {}).tree
    roles = Roles(built.params._replace(trained=copied), params)
    return loaded._replace(policy=ScoredPolicy.of(built.reader), params=roles)


def _with_base(settings: PilotSettings, run: Path, model: str | None) -> PilotSettings:
    """The settings with the place where the base model is now."""
    if model is not None:
        return replace(settings, model=model)
    try:
        resolve_model(settings.model)
    except ModelError:
        raise UserError(
            f"{run} was trained on {settings.model}, which is neither a folder nor in the Hugging Face cache now; "
            "say with --model where it is."
        ) from None
    return settings


def read_config(run: Path) -> dict[str, Any]:
    """The `config.json` of a run.

    Raises:
      UserError: where there is none, or it cannot be read.
    """
    path = run / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{run} is no run: it has no config.json; give the folder of a run.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); copy the run again.") from None
    if not isinstance(config, dict) or not {"arm", "seed"} <= config.keys():
        raise UserError(f"{path} does not hold the settings of a training run; give the folder of one.")
    return config


def version_notes(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each package whose version is not the one that was saved."""
    here = package_versions()
    return tuple(
        f"saved with {name} {version}, read with {name} {here.get(name, 'not installed')}: numbers may differ."
        for name, version in metadata["packages"].items()
        if here.get(name) != version
    )


def _find_policies(run: Path, checkpoint_dir: str | None) -> PolicyFolder:
    places = [PolicyFolder.of_run(run)]
    if checkpoint_dir is not None:
        places += [PolicyFolder.of_run(run, checkpoint_dir), PolicyFolder(Path(checkpoint_dir))]
    for place in places:
        if place.path.is_dir() and any(_is_phase(path) for path in place.path.iterdir()):
            return place
    raise UserError(f"{run} has no saved policies; say with --checkpoint_dir where its checkpoints are.")
