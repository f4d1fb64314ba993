"""From a run's settings to what is trained: the one place that knows which option sets what."""

from __future__ import annotations

from typing import cast

from fuyu_jax.learn.arms.awr import RegressionOptions, awr_arm
from fuyu_jax.learn.arms.bc import Cloning, CloningOptions
from fuyu_jax.learn.arms.dagger import LabelOptions, dagger_arm, oracle_path_arm
from fuyu_jax.learn.arms.expert_iteration import expert_arm
from fuyu_jax.learn.arms.grpo_echo import GrpoOptions, grpo_arm
from fuyu_jax.learn.arms.process_dpo import PreferenceOptions, process_dpo_arm
from fuyu_jax.learn.arms.value_search import value_search_arm
from fuyu_jax.learn.credit import CreditOptions
from fuyu_jax.learn.demos import DemonstrationSource
from fuyu_jax.learn.experience import RolloutOptions
from fuyu_jax.learn.improvement import Arm, UpdateOptions
from fuyu_jax.learn.objective import ImitationWeights
from fuyu_jax.learn.searching import make_search
from fuyu_jax.learn.states import Teaching
from fuyu_jax.policy import Play, Policy
from fuyu_jax.runs.settings import PilotSettings
from vm.oracle import Placement
from vm.streams import TaskStream

DEMONSTRATIONS, ROLLOUTS = range(2)  # purposes of a run's task streams


def task_stream(settings: PilotSettings, purpose: int) -> TaskStream:
    """Fresh train tasks; each purpose has a stream of its own."""
    return TaskStream(2 * settings.seed + purpose, settings.start, settings.public, settings.hidden)


def demonstrations(settings: PilotSettings) -> DemonstrationSource:
    """What copying sees."""
    return DemonstrationSource(task_stream(settings, DEMONSTRATIONS), settings.seed, settings.demos)


def make_cloning(settings: PilotSettings, policy: Policy, source: DemonstrationSource) -> Cloning:
    """Behaviour cloning as the settings ask for it."""
    options = CloningOptions(
        updates=settings.bc_updates,
        epochs=settings.bc_epochs,
        tasks=settings.batch_tasks,
        states=settings.states_per_task,
        learning_rate=settings.learning_rate,
        echo_weight=settings.echo_loss_weight,
        pieces=settings.accumulate,
        teaching=_teaching(settings),
    )
    return Cloning(policy, source, options)


def update_options(settings: PilotSettings) -> UpdateOptions:
    """Sizes of the decision update."""
    return UpdateOptions(
        updates=settings.updates,
        rounds=settings.rounds,
        turn_tasks=settings.rollout_tasks,
        reuse=settings.reuse,
        batch_tasks=settings.rollout_batch,
        learning_rate=settings.update_lr,
        replay_weight=settings.bc_replay,
        pieces=settings.accumulate,
    )


def make_arm(settings: PilotSettings, policy: Policy, play: Play, source: DemonstrationSource) -> Arm:
    """The arm that the settings name; `source` is what copying saw.

    Raises:
      ValueError: for `bc`, which is no update.
    """
    stream, count = task_stream(settings, ROLLOUTS), settings.rollout_tasks
    rollouts = RolloutOptions(settings.group, settings.states_per_rollout, _teaching(settings))
    credits = CreditOptions(
        reward=settings.reward,
        shaping=settings.shaping,
        credit=settings.credit,
        norm_std=settings.norm_std,
        shuffle=settings.shuffle_signal,
    )
    weights = ImitationWeights(stop_caution=settings.stop_caution)
    labels = LabelOptions(
        echo_weight=settings.echo_loss_weight,
        label_weight=settings.policy_weight,
        shuffle=settings.shuffle_signal,
        weights=weights,
    )
    path_labels = LabelOptions(echo_weight=settings.echo_loss_weight, value_weight=0.0, weights=weights)
    grpo = GrpoOptions(
        kl_weight=settings.kl_weight,
        anchor_weight=settings.anchor_weight,
        echo_weight=settings.echo_loss_weight,
        policy_weight=settings.policy_weight,
        drop_zero_spread=settings.drop_zero_spread,
        weights=weights,
    )
    preferences = PreferenceOptions(
        pairs=settings.pairs,
        beta=settings.dpo_beta,
        likelihood_weight=settings.likelihood_weight,
        echo_weight=settings.echo_loss_weight,
        policy_weight=settings.policy_weight,
        shuffle=settings.shuffle_signal,
        weights=weights._replace(edit=0.0),
    )
    regression = RegressionOptions(
        actions=settings.awr_actions,
        samples=settings.awr_samples,
        nats=settings.awr_nats,
        kl_weight=settings.kl_weight,
        echo_weight=settings.echo_loss_weight,
        policy_weight=settings.policy_weight,
        shuffle=settings.shuffle_signal,
        weights=weights,
    )
    match settings.arm:
        case "bc_continued":
            return oracle_path_arm(policy, source, count, rollouts, path_labels)
        case "bc_matched":
            fresh = DemonstrationSource(stream, settings.seed)
            return oracle_path_arm(policy, fresh, count, rollouts, path_labels)
        case "dagger":
            return dagger_arm(policy, play, stream, count, rollouts, credits, labels)
        case "expert_iteration":
            search = make_search(policy, settings.search_budget) if settings.search_budget else None
            return expert_arm(policy, play, stream, count, rollouts, credits, labels, search)
        case "value_search":
            search = make_search(policy, settings.search_budget)
            judged = LabelOptions(
                echo_weight=0.0,  # no edit is taken in the states that a search visits
                label_weight=settings.policy_weight,
                shuffle=settings.shuffle_signal,
                weights=weights._replace(edit=0.0, distance=1.0),
            )
            return value_search_arm(policy, search, stream, count, rollouts, judged)
        case "grpo_echo" | "grpo_terminal":
            return grpo_arm(policy, play, stream, count, rollouts, credits, grpo)
        case "process_dpo":
            return process_dpo_arm(policy, play, stream, count, rollouts, credits, preferences)
        case "awr":
            return awr_arm(policy, play, stream, count, rollouts, credits, regression)
    raise ValueError(f"{settings.arm!r} is no decision update.")


def _teaching(settings: PilotSettings) -> Teaching:
    return Teaching(cast(Placement, settings.placement), settings.layout_gaps)
