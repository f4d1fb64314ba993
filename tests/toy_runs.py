"""Pilot runs in seconds: all that saves, stops and resumes is the real thing, what trains and measures is a toy.

The toys use keys, tasks, parameters and optimiser as the real ones do, and what they measure is made of the bits of the
parameters: one wrong bit shows in every table.
"""

import hashlib
import json
import shlex
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from fuyu_jax import pilot, recipes
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.learn.improvement import Arm
from fuyu_jax.policy import Params
from fuyu_jax.runs.checkpoints import tree_digest
from fuyu_jax.runs.policies import BuiltPolicy
from vm.types import DEFAULT_SETTINGS, THREEFRY

SPLITS = ("val_mixed", "hard_composition")
OPTIONS = shlex.split(
    "--bc_updates 6 --bc_epochs 2 --batch_tasks 4 --updates 7 --rounds 2 --rollout_tasks 4 --rollout_batch 2 "
    "--reuse 1 --budgets 0,4 --save_every 0 --seed 3"
)
TABLES = ("metrics.csv", "outcomes.csv", "train_log.csv", "results.json", "episodes.jsonl")


class ToyStream:
    """Tasks are numbers."""

    def __init__(self, cursor=0):
        self.cursor = cursor

    @property
    def position(self):
        return {"cursor": self.cursor}

    def move_to(self, position):
        self.cursor = position["cursor"]

    def next_batch(self, count):
        first, self.cursor = self.cursor, self.cursor + count
        return jnp.arange(first, first + count, dtype=jnp.float32), self.cursor


def loss_of(trained, rows):
    """A sum over rows `[B, 8]`."""
    value = jnp.sum(jnp.tanh(rows @ trained["matrix"] + trained["bias"][None]) ** 2)
    return value, {"loss": value, "tokens": jnp.int32(10 * len(rows))}


def rows_of(tasks, key):
    return jnp.sin(tasks)[:, None] + jax.random.normal(key, (len(tasks), 8))


class ToyCloning:
    """Learns from the next demonstrations and the key."""

    def __init__(self, settings, source):
        self.options = SimpleNamespace(
            updates=settings.bc_updates, epochs=settings.bc_epochs, learning_rate=settings.learning_rate
        )
        self._tasks, self._source = settings.batch_tasks, source
        self._ask = jax.jit(jax.value_and_grad(loss_of, has_aux=True))

    def gradient(self, params, key):
        demos = self._source.next_batch(self._tasks)
        (_, metrics), gradient = self._ask(params.trained, rows_of(demos.tasks, key))
        return gradient, metrics


def toy_arm(settings, policy, play, source):
    """Learns from the distance between the policy now and the copied one, on tasks of a stream of its own."""
    stream = source if settings.arm == "bc_continued" else ToyStream(1_000)

    def collect(params, copied, key):
        batch = stream.next_batch(settings.rollout_tasks)
        tasks = batch.tasks if settings.arm == "bc_continued" else batch[0]
        moved = sum(jnp.sum(jnp.abs(a - b)) for a, b in zip(*map(jax.tree.leaves, (params, copied)), strict=True))
        return rows_of(tasks, key) + moved, {"states": jnp.float32(len(tasks)), "reward_mean": moved}

    return Arm(stream, collect, lambda rows: (), lambda params, batch: loss_of(params.trained, batch[0]))


def bits_of(params, count):
    """Booleans made of all bits of the parameters."""
    digest = hashlib.sha256(tree_digest(params.trained).encode()).digest()
    return np.unpackbits(np.frombuffer(digest, np.uint8))[:count].astype(bool)


def toy_outcomes(arm, phase, seed, bits, modes=("forced", "learned")):
    tasks = np.arange(len(bits))
    return Outcomes.concatenate([
        Outcomes.build(
            arm=arm, phase=phase, seed=seed, mode=mode, split=split, k=k, task=tasks, start_solved=tasks == 0,
            solved=bits, ever_solved=bits, false_stop=~bits, steps=0 * tasks, valid_edits=0 * tasks, edits="",
        )
        for mode in modes for split in SPLITS for k in (0, 4)
    ])  # fmt: skip


class ToyDiagnosis:
    """Says how many bits of two policies agree."""

    def __init__(self, *settings):
        self.reference = None

    def refer_to(self, copied):
        self.reference = copied

    def rows(self, params):
        if self.reference is not None:
            same = bits_of(params, 64) == bits_of(self.reference, 64)
            yield "oracle_path", {"action_accuracy": np.mean(same)}


def build_toy(settings):
    key = jax.random.key(settings.seed, impl=THREEFRY)
    trained = {"matrix": jax.random.normal(key, (8, 8)), "bias": jnp.zeros(8)}
    policy = SimpleNamespace(tokens={"ids": np.arange(3)}, settings=DEFAULT_SETTINGS)
    return BuiltPolicy(policy, policy, Params(trained, {}), {"name": "toy", "weights": "drawn"})


def install(patch, before_update=lambda: None):
    """Puts the toys in place of training and measuring; `before_update` is called before each gradient of copying."""

    def make_cloning(settings, policy, source):
        cloning = ToyCloning(settings, source)
        ask = cloning.gradient

        def gradient(params, key):
            before_update()
            return ask(params, key)

        cloning.gradient = gradient
        return cloning

    def measure(roll, splits, budgets, labels, advance):
        return toy_outcomes(labels.arm, labels.phase, labels.seed, bits_of(roll, 16))

    def baselines(splits, budgets, width, settings, advance):
        phases = ("do_nothing", "random_valid", "oracle_reference", "oracle_search")
        bits = np.arange(16) % 8 == 0
        return Outcomes.concatenate([toy_outcomes("baseline", phase, 0, bits, ("forced",)) for phase in phases]), {}

    def write_report(folder):
        (folder / "report.md").write_text("done\n")
        return folder / "report.md"

    patch.setattr(recipes, "task_stream", lambda settings, purpose: ToyStream())
    patch.setattr(recipes, "make_cloning", make_cloning)
    patch.setattr(recipes, "make_arm", toy_arm)
    patch.setattr(pilot.baselines, "measure_all", baselines)
    for name, toy in {
        "build_policy": build_toy,
        "make_tasks": lambda split, *sizes: [],
        "split_manifest": lambda tasks: {"sha256": "same"},
        "make_play": lambda *settings: None,
        "greedy": lambda play, params: params,
        "measure_policy": measure,
        "pass_at": lambda play, params, *rest: {split: float(np.mean(bits_of(params, 32))) for split in SPLITS},
        "record_episodes": lambda reader, play, params, *rest: [{"share": float(np.mean(bits_of(params, 32)))}],
        "Diagnosis": ToyDiagnosis,
        "chunks": lambda tasks: [(None, None)],
        "write_report": write_report,
        "headline_text": lambda folder: "",
    }.items():
        patch.setattr(pilot, name, toy)


def contents(run):
    """What has to be the same in a run that never stopped: the tables' bytes, and the digest of every checkpoint."""
    tables = {name: (run / name).read_bytes() for name in TABLES}
    saved = {
        str(path.parent.relative_to(run)): json.loads(path.read_text())["sha256"]
        for path in run.rglob("checkpoints/**/metadata.json")
    }
    names = {str(path.relative_to(run)) for path in run.rglob("*") if "arrays" not in path.parts}
    return {**tables, **saved, "names": names}
