"""The settings of a pilot run: one dataclass, from which its checks and (in `arguments`) its command line are made."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.fields import check, setting, to_text

COPYING_ARMS = ("bc", "bc_continued", "bc_matched")  # they learn from the oracle's own path
ARMS = (*COPYING_ARMS, "grpo_terminal", "grpo_echo", "dagger", "expert_iteration", "process_dpo", "awr",
        "value_search")  # fmt: skip
SEARCHING_ARMS = ("expert_iteration", "value_search")
PRESET_NAMES = ("smoke", "pilot", "original", "study")
RECIPE_NAMES = ("guarded", "original")
QUANTS = ("none", "int8", "nf4")
DTYPES = ("float32", "bfloat16")
REWARDS = ("terminal", "execution", "reachability")
SHAPINGS = ("potential", "fixed")
CREDITS = ("step", "trajectory")
DEPLOYMENTS = ("policy", "scorer")
PLACEMENTS = ("first", "nearest", "leftmost")
HEADS = ("flat", "factored")
STOP_HEADS = ("separate", "joint")
STARTS = ("mixed", "blank", "corrupted")
# Where a run reads, where and when it writes, and what it shows on the way: not what it computes.
PLACES = ("out", "checkpoint_dir", "bc_from", "save_every", "keep", "quiet", "tensorboard")
PROGRAM = "experiments/pilot.py"
MAX_BUDGET = 16
MAX_SEED = 2**30 - 1  # twice it still seeds a task stream


@dataclass(frozen=True)
class PilotSettings:
    """Everything that decides what a pilot run does. The defaults are the `pilot` preset.

    Raises:
      UserError: on construction, where a value is outside what the field allows.
    """

    arm: str = setting("grpo_echo", "what is run after (or instead of) copying", choices=ARMS, aliases=("algorithm",))
    preset: str = setting("pilot", "sizes to start from; any other option overrides it", choices=PRESET_NAMES)
    recipe: str = setting(
        "guarded", "`original` runs an arm as the original did; `guarded` has what cures it", choices=RECIPE_NAMES
    )
    model: str = setting("tiny", "`tiny` (embedded), a folder in Hugging Face layout, or a hub id")
    quant: str = setting(
        "none", "how a model folder's matrices are kept: as they are, or in 8 or 4 bits", choices=QUANTS
    )
    dtype: str = setting("float32", "what the transformer computes in", choices=DTYPES)
    lora_rank: int = setting(
        16, "rank of the adapters on a model folder's frozen weights (0: train the weights)", low=0, high=1_024
    )
    lora_alpha: float = setting(32.0, "adapters count alpha / rank", above=0.0, high=100_000.0)
    lora_targets: str = setting(
        "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
        "projections that get an adapter, with commas between",
    )
    seed: int = setting(
        0, "decides initialisation, the train stream and sampling; evaluation tasks never change", low=0, high=MAX_SEED
    )
    out: str | None = setting(None, "folder of the run, new or empty (default: the next number under runs/)")
    checkpoint_dir: str | None = setting(None, "folder for the policies (default: checkpoints/ in the run's folder)")
    bc_from: str | None = setting(None, "run whose copied policy is taken (default: a shared one, made when missing)")
    save_every: float = setting(
        60.0, "seconds between points that --resume goes on from (0: every one there is)", low=0.0, high=1e9
    )
    keep: int = setting(2, "how many of these points are kept (-1: all)", low=-1, high=1_000_000)
    quiet: bool = setting(False, "whether progress is left out")
    tensorboard: bool = setting(False, "whether the train log is also written as TensorBoard events")

    bc_updates: int = setting(300, "updates of behaviour cloning", low=1, high=1_000_000)
    bc_epochs: int = setting(2, "parts of behaviour cloning; the policy is measured after each", low=1, high=100)
    batch_tasks: int = setting(64, "demonstrations in one update of behaviour cloning", low=1, high=100_000)
    states_per_task: int = setting(4, "states of each demonstration in one update", low=1, high=17)
    updates: int = setting(200, "updates of the decision update, over all rounds", low=1, high=1_000_000)
    rounds: int = setting(1, "parts of the decision update; the policy is measured after each", low=1, high=1_000)
    rollout_tasks: int = setting(64, "train tasks that are rolled out at a time", low=1, high=100_000)
    group: int = setting(4, "sampled rollouts of each of these tasks", low=2, high=1_024)
    rollout_batch: int = setting(
        32, "of these tasks, how many are in one update; divides rollout_tasks", low=1, high=100_000
    )
    states_per_rollout: int = setting(4, "decisions of each rollout that are trained on", low=1, high=16)
    reuse: int = setting(1, "updates that each rollout is used for", low=1, high=1_000)
    accumulate: int = setting(
        1,
        "parts that an update's gradient is made of, for less memory; divides the tasks of an update",
        low=1,
        high=4_096,
    )
    full_pass: bool = setting(
        False, "whether each state is read in a pass of its own, prompt included: slower, the same numbers"
    )
    demos: int = setting(
        0,
        "tasks that copying may see, with one oracle trajectory each (0: a stream without end)",
        low=0,
        high=1_000_000,
    )

    learning_rate: float = setting(4e-3, "peak learning rate of behaviour cloning", above=0.0, high=1.0)
    update_lr: float = setting(3e-3, "peak learning rate of the decision update", low=0.0, high=1.0)
    kl_weight: float = setting(0.1, "weight of the KL divergence to the copied policy", low=0.0, high=1000.0)
    anchor_weight: float = setting(
        1.0, "weight of the oracle's labels on the policy's own states", low=0.0, high=1000.0
    )
    echo_loss_weight: float = setting(0.1, "weight of predicting the machine's next outputs", low=0.0, high=1000.0)
    bc_replay: float = setting(0.5, "weight of copied demonstrations during the decision update", low=0.0, high=1000.0)
    stop_caution: float = setting(
        3.0,
        "how many times as much a false STOP weighs as a missed one, where the decision update learns STOP from labels",
        above=0.0,
        high=1000.0,
    )
    policy_weight: float = setting(
        1.0, "weight of the arm's own signal: 0 leaves the anchor alone", low=0.0, high=1000.0
    )
    reward: str = setting("reachability", "what a rollout is rewarded for", choices=REWARDS)
    shaping: str = setting(
        "potential", "differences of a potential, or a fixed bonus and fine for each edit", choices=SHAPINGS
    )
    credit: str = setting("step", "whether rewards are credited to single decisions or whole rollouts", choices=CREDITS)
    norm_std: bool = setting(False, "whether a group's advantages are divided by their standard deviation")
    drop_zero_spread: bool = setting(True, "whether groups of equal returns are left out of the policy's loss")
    pairs: int = setting(4, "preference pairs of each state that process_dpo learns from", low=1, high=64)
    dpo_beta: float = setting(0.1, "how strongly process_dpo holds on to the copied policy", above=0.0, high=100.0)
    likelihood_weight: float = setting(
        1.0, "weight of the better action's likelihood in process_dpo", low=0.0, high=1000.0
    )
    awr_actions: int = setting(6, "edits that awr evaluates in each state, beside STOP", low=1, high=256)
    awr_samples: int = setting(1, "rollouts by which awr evaluates each of them", low=1, high=256)
    awr_nats: float = setting(
        0.1, "mean KL divergence of awr's target from the policy of the turn", above=0.0, high=100.0
    )
    search_budget: int = setting(
        0,
        "programs that a verified search runs for each train task: further solutions for expert_iteration, or the "
        "states of value_search",
        low=0,
        high=4_096,
    )
    deploy: str = setting(
        "policy",
        "what process_dpo trains acts alone, or only ranks the best edits of the copied policy, which keeps STOP",
        choices=DEPLOYMENTS,
    )
    shuffle_signal: bool = setting(
        False, "the control: the arm's own signal handed to the wrong owners", aliases=("shuffle_rollout_rewards",)
    )
    placement: str = setting(
        "leftmost",
        "where the oracle puts the reference: from slot 0, wherever it is nearest, or of these places the leftmost",
        choices=PLACEMENTS,
    )
    layout_gaps: float = setting(
        0.5,
        "share of training layouts with blank slots between instructions; not with --placement first",
        low=0.0,
        high=1.0,
    )

    position_gap: int = setting(
        16, "most blank positions in a training prompt, so that longer ones can be read (0: none)", low=0, high=4_096
    )

    start: str = setting("mixed", "programs that tasks start from", choices=STARTS)
    public: int = setting(4, "examples whose inputs the controller sees", low=1, high=16)
    hidden: int = setting(16, "further examples that score only", low=1, high=64)
    show_targets: bool = setting(False, "whether the controller sees the public targets")
    heads: str = setting(
        "flat",
        "one choice among all edits, or the original's independent ones of kind, slot and value, with a joint STOP",
        choices=HEADS,
    )
    stop_head: str = setting(
        "separate", "P(STOP) from a head of its own (implies flat heads), or as one more action", choices=STOP_HEADS
    )
    mask: bool = setting(
        True, "whether only edits that change the program are allowed; others cost budget and do nothing"
    )
    no_repeat: bool = setting(True, "whether an edit is taken at most once in the same program of an episode")

    eval_tasks: int = setting(256, "tasks of each evaluation split", low=2, high=4096)
    budgets: tuple[int, ...] = setting(
        (0, 4, 8, 12), "edit budgets K that are measured, with commas between", low=0, high=MAX_BUDGET
    )
    oracle_width: int = setting(16, "beam width of the oracle's search", low=1, high=4_096)

    def __post_init__(self) -> None:
        """Refuses values that the fields do not allow."""
        for item in dataclasses.fields(self):
            check(item, getattr(self, item.name))
        if self.layout_gaps and self.placement == "first":
            raise UserError(f"--layout_gaps is {self.layout_gaps:g}; use 0, or --placement leftmost beside it.")
        if self.shuffle_signal and self.arm in COPYING_ARMS:
            raise UserError(f"--shuffle_signal is 1 but {self.arm} has no signal of its own; leave it out.")
        if self.search_budget and self.arm not in SEARCHING_ARMS:
            raise UserError(f"--search_budget is {self.search_budget} but {self.arm} does not search; leave it out.")
        if self.arm == "value_search" and not self.search_budget:
            raise UserError("--search_budget is 0 but value_search learns from what it searches; use at least 1.")
        if self.deploy == "scorer" and self.arm != "process_dpo":
            raise UserError(f"--deploy is 'scorer' but {self.arm} trains no scorer; leave it out, or use process_dpo.")
        if self.deploy == "scorer" and self.stop_head == "joint":
            raise UserError("--deploy is 'scorer' but a joint STOP cannot be kept apart; use --stop_head separate.")
        if self.rollout_tasks % self.rollout_batch:
            raise UserError(
                f"--rollout_batch is {self.rollout_batch}; use a divisor of --rollout_tasks, {self.rollout_tasks}."
            )
        for name in ("batch_tasks", "rollout_batch"):
            if getattr(self, name) % self.accumulate:
                raise UserError(f"--accumulate is {self.accumulate}; use a divisor of --{name}, {getattr(self, name)}.")
        if self.model == _defaults()["model"] and self.quant != "none":
            raise UserError(
                f"--quant is {self.quant!r} but the embedded model has no pretrained weights and is trained whole; "
                "give a model folder with --model, or --quant none."
            )
        if self.quant != "none" and self.lora_rank == 0:
            raise UserError("--lora_rank is 0 but weights in 8 or 4 bits cannot be trained; use a rank of at least 1.")
        if self.heads == "factored" and self.stop_head == "separate":
            raise UserError(
                "--stop_head is 'separate' but factored heads have STOP among their kinds; use joint, or --heads flat."
            )
        if self.keep == 0:
            raise UserError("--keep is 0 but a run has to be able to go on; use at least 1, or -1 to keep all.")
        if self.bc_epochs > self.bc_updates:
            raise UserError(f"--bc_epochs is {self.bc_epochs}; use at most --bc_updates, {self.bc_updates}.")
        if self.rounds > self.updates:
            raise UserError(f"--rounds is {self.rounds}; use at most --updates, {self.updates}.")

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON values, in the order of the fields."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> PilotSettings:
        """The settings in a `config.json`; keys that are no setting are left out."""
        names = [item.name for item in dataclasses.fields(cls) if item.name in config]
        values: dict[str, Any] = {
            name: tuple(config[name]) if isinstance(config[name], list) else config[name] for name in names
        }
        return cls(**values)

    def options(self) -> dict[str, str]:
        """The fewest options that give these settings again, but for places, as texts by name."""
        named = {"arm": self.arm, "preset": self.preset, "recipe": self.recipe, "seed": self.seed}
        base = {**_defaults(), **chosen_values(self.arm, self.preset, self.recipe), "recipe": "guarded"}
        others = {key: value for key, value in vars(self).items() if key not in (*named, *PLACES)}
        kept = {key: value for key, value in others.items() if value != base[key]}
        return {key: to_text(value) for key, value in (named | kept).items() if key != "recipe" or value != base[key]}

    def command(self) -> str:
        """The shortest command that repeats this run in a folder of its own."""
        options = (word for name, text in self.options().items() for word in (f"--{name}", text))
        return shlex.join(["python", PROGRAM, *options])


PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"bc_updates": 8, "updates": 4, "eval_tasks": 16, "oracle_width": 1},
    "pilot": {},
    "original": {"demos": 32, "eval_tasks": 16, "budgets": (0, 4, 8), "start": "blank"},
    "study": {"bc_updates": 1000, "updates": 800, "rounds": 2},
}


# Sizes that suit an arm, for presets and recipes that do not say otherwise. The oracle labels any state, so many tasks
# serve better than large groups, and its labels hold on to copying without demonstrations.
_OWN_STATES = {"updates": 400, "group": 2, "rollout_tasks": 128, "rollout_batch": 64, "bc_replay": 0.0}
ARM_SIZES: dict[str, dict[str, Any]] = {"dagger": _OWN_STATES, "bc_matched": _OWN_STATES}

# What an arm is by its nature; an option that is given wins over it.
ARM_DEFAULTS: dict[str, dict[str, Any]] = {
    "grpo_terminal": {"reward": "terminal", "shaping": "potential", "credit": "trajectory", "anchor_weight": 0.0},
    "expert_iteration": {"reward": "execution"},
    "value_search": {"reward": "execution", "search_budget": 32},
    "awr": {"reward": "terminal", "states_per_rollout": 2, "reuse": 4},  # each state costs it many rollouts
}

# An option that is given settles what cannot be combined with it, unless that is given too.
IMPLIED: dict[tuple[str, Any], dict[str, Any]] = {
    ("heads", "factored"): {"stop_head": "joint"},
    ("stop_head", "separate"): {"heads": "flat"},
    ("placement", "first"): {"layout_gaps": 0.0},
}

RECIPES: dict[str, dict[str, Any]] = {
    "guarded": {},
    # What the original's report says of its decision update: one round, on 605 states that the copied policy's rollouts
    # of its 32 train tasks came to, rewarded by fixed bonuses and fines. So here: one turn of 32 tasks, 4 rollouts of
    # each and 4 decisions of each rollout, gone through four times in parts of eight tasks while they grow stale. The
    # report gives no learning rate; this is the peak of copying's own.
    "original": {
        "heads": "factored",
        "stop_head": "joint",
        "mask": False,
        "placement": "first",
        "layout_gaps": 0.0,
        "position_gap": 0,
        "group": 4,
        "rollout_tasks": 32,
        "rollout_batch": 8,
        "reuse": 4,
        "updates": 16,
        "update_lr": 4e-3,
        "shaping": "fixed",
        "credit": "trajectory",
        "norm_std": True,
        "drop_zero_spread": False,
        "kl_weight": 0.0,
        "bc_replay": 0.0,
        "likelihood_weight": 0.0,
        "no_repeat": False,
    },
}


def chosen_values(arm: str, preset: str, recipe: str) -> dict[str, Any]:
    """What arm, preset and recipe set in place of the defaults.

    The arm's nature wins over the recipe, that over the preset, and the arm's sizes come last.
    """
    return {**ARM_SIZES.get(arm, {}), **PRESETS[preset], **RECIPES[recipe], **ARM_DEFAULTS.get(arm, {})}


def preset_settings(preset: str, arm: str, seed: int = 0) -> PilotSettings:
    """The settings of an arm with a preset's sizes and nothing else given."""
    return PilotSettings(**{**chosen_values(arm, preset, "guarded"), "arm": arm, "preset": preset, "seed": seed})


def sees_oracle_labels(config: Mapping[str, Any]) -> bool:
    """Whether a run with this `config.json` learned from the oracle in more than the copied demonstrations."""
    arm = config["arm"]
    if arm in ("bc", "bc_continued", "expert_iteration", "value_search", "awr"):
        return False
    rewarded = config["reward"] == "reachability" or config.get("shaping") == "fixed"
    return arm in ("bc_matched", "dagger", "process_dpo") or config["anchor_weight"] > 0 or rewarded


def _defaults() -> dict[str, Any]:
    return {item.name: item.default for item in dataclasses.fields(PilotSettings)}
