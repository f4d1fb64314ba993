"""Finished runs read back from their folders, for whatever sets several of them side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuyu_jax.evaluate.metrics import last_update
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.figures import BASELINE_ARM
from fuyu_jax.runs.settings import PLACES

MODE = "learned"  # the deployed policy: it alone decides to stop
Needed = Mapping[str, Any]
CONFIG: Needed = {"seed": int, "arm": str}
MANIFEST: Needed = {
    "command": str,
    "git": {"commit": str, "dirty": bool | None},
    "machine": {"processor": str, "cores": int},
    "packages": {},
}


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run as its folder tells it.

    Attributes:
      folder: the run's folder.
      config, manifest: `config.json` and `dataset_manifest.json`, checked to have what is read here.
      outcomes: `outcomes.csv`, each rollout once.
    """

    folder: Path
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    outcomes: Outcomes

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["seed"])

    @property
    def arm(self) -> str:
        """The arm of the run."""
        return str(self.config["arm"])

    @property
    def policy(self) -> Outcomes:
        """The outcomes of the run's own policies in the learned mode."""
        rows = self.outcomes.select(mode=MODE)
        return rows.take(rows.arm != BASELINE_ARM)

    @property
    def last_phase(self) -> str | None:
        """The phase after the last round, or None for a run without a decision update."""
        return last_update(self.policy.phase.tolist())

    def settings(self, without: tuple[str, ...] = ("seed",)) -> dict[str, Any]:
        """What decides what the run did, without these settings and without places."""
        return {name: value for name, value in self.config.items() if name not in (*without, *PLACES)}

    def origin(self) -> dict[str, Any]:
        """Seed, command, commit, machine and packages, as plain data."""
        machine, git = self.manifest["machine"], self.manifest["git"]
        return {
            "seed": self.seed,
            "command": self.manifest["command"],
            "commit": git["commit"] + (" with local changes" if git["dirty"] else ""),
            "machine": f"{machine['processor']}, {machine['cores']} cores",
            "packages": self.manifest["packages"],
        }


def read_run(folder: Path) -> FinishedRun:
    """A finished run.

    Raises:
      UserError: where the folder is no finished run, or its parts are damaged or of different runs.
    """
    try:
        config, manifest = (read_object(folder / name) for name in ("config.json", "dataset_manifest.json"))
        outcomes = Outcomes.read(folder / "outcomes.csv")
        outcomes.check_unique()
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{folder} is no finished run ({error}); give the folder of a run that ended.") from error
    except KeyError as error:
        raise UserError(f"{folder}: outcomes.csv has no column {error}; give the folder of a run that ended.") from None
    for name, content, needed in (("config.json", config, CONFIG), ("dataset_manifest.json", manifest, MANIFEST)):
        if wrong := _first_wrong(content, needed):
            raise UserError(f"{folder}: {name} has no valid {wrong}; give the folder of a run that ended.")
    run = FinishedRun(folder, config, manifest, outcomes)
    if others := set(run.policy.seed.tolist()) - {run.seed}:
        raise UserError(
            f"{folder}: outcomes.csv holds seed {min(others)}, config.json says {run.seed}; copy the run again."
        )
    return run


def read_object(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def _first_wrong(content: Any, needed: Needed) -> str | None:
    """The first needed entry that is absent or of another kind, as `git.commit`."""
    if not isinstance(content, dict):
        return "object"
    for name, kind in needed.items():
        value = content.get(name)
        if isinstance(kind, dict):
            if not isinstance(value, dict):
                return name
            if inner := _first_wrong(value, kind):
                return f"{name}.{inner}"
        elif name not in content or not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            return name
    return None
