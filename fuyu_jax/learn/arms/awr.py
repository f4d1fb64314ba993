"""Arm `awr`: a closed-form better policy from the exact consequences of actions, and a regression to it.

Each turn: roll out the policy; in each sampled state run STOP and some of the policy's own edits to their end, which
the machine allows from any program: is the program solved, and does the policy solve it from the edited program
within the budget left (Monte Carlo values from resets, Kazemnejad et al., arXiv 2410.01679). Actions better than the
policy's average are made likelier by exp(advantage / beta), with the beta that moves the policy a given KL (Peng et
al., arXiv 1910.00177), and the policy is trained toward that target, held near the copied policy.

No oracle: the verifier alone says what is solved, and labels STOP.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

import vm
from fuyu_jax.controller.distribution import sample_distinct
from fuyu_jax.learn.credit import CreditOptions, decision_rewards
from fuyu_jax.learn.experience import (
    RolloutOptions,
    Visits,
    count_executions,
    label_decisions,
    make_explore,
    process_signals,
    sample_decisions,
)
from fuyu_jax.learn.improvement import Arm
from fuyu_jax.learn.losses.policy_gradient import entropy, exact_kl
from fuyu_jax.learn.losses.reduce import masked_mean, weighted_sum
from fuyu_jax.learn.losses.shuffle import shuffle_within
from fuyu_jax.learn.losses.weighted import action_advantages, choose_beta, improved_log_probs, regression_loss
from fuyu_jax.learn.objective import (
    ImitationWeights,
    Shares,
    echo_terms,
    imitation_terms,
    state_shares,
    value_term,
)
from fuyu_jax.learn.states import to_references
from fuyu_jax.learn.training import Metrics
from fuyu_jax.policy import Params, Play, Policy, make_score
from fuyu_jax.sharding import gather
from vm.streams import TaskStream
from vm.tasks import TaskArrays


@dataclass(frozen=True)
class RegressionOptions:
    """How actions are evaluated, and the weights of the loss terms.

    Attributes:
      actions: edits evaluated in each state, beside STOP.
      samples: rollouts after each of them.
      nats: the mean KL of the target from the policy of the turn.
      policy_weight, kl_weight, echo_weight, value_weight: of the loss terms.
      shuffle: permute advantages among the actions evaluated in a state: the control.
      weights: of the supervised terms, of which STOP's alone has labels.
    """

    actions: int
    samples: int
    nats: float
    kl_weight: float
    echo_weight: float
    policy_weight: float = 1.0
    value_weight: float = 0.25
    shuffle: bool = False
    weights: ImitationWeights = ImitationWeights()


class Evaluated(NamedTuple):
    """What actions lead to; leading axes `[...]` are states.

    Attributes:
      values: float32 `[..., N]`, probability of a solved end after each action; 0 where not evaluated.
      known: bool `[..., N]`, the actions that were evaluated.
    """

    values: jax.Array
    known: jax.Array


class Improved(NamedTuple):
    """Decisions with the better policy found for them, M of each of B tasks.

    Attributes:
      visits: the decisions; the verifier's labels only.
      target: float32 `[B, M, N]`, log-probabilities of the better policy.
      reference: float32 `[B, M, N]`, of the copied policy.
    """

    visits: Visits
    target: jax.Array
    reference: jax.Array


def awr_arm(
    policy: Policy,
    play: Play,
    stream: TaskStream,
    turn_tasks: int,
    rollouts: RolloutOptions,
    credits: CreditOptions,
    options: RegressionOptions,
) -> Arm:
    """The arm on tasks of a stream, `turn_tasks` at a time; rewards and distances are for the signals only."""
    explore, score = make_explore(policy, play, rollouts), make_score(policy)

    def collect(params: Params, copied: Params, key: jax.Array) -> tuple[Improved, Metrics]:
        tasks, _ = stream.next_batch(turn_tasks)
        roll_key, sample_key, edit_key, play_key, shuffle_key = jax.random.split(key, 5)
        explored = explore(params, tasks, roll_key)
        signals = process_signals(explored, jnp.sum(decision_rewards(explored, credits), axis=0))
        chosen = sample_decisions(explored, sample_key, rollouts.states)
        nobody = to_references(tasks, chosen.action.shape[1])
        nobody = nobody._replace(known=jnp.zeros_like(nobody.known))
        visits = label_decisions(tasks, chosen, policy.settings, rollouts.teaching, nobody)
        now, before = (score(who, tasks, visits.states.seen, visits.allowed) for who in (params, copied))
        edits = choose_edits(now, visits.allowed, edit_key, options.actions)
        values, executions = edit_values(
            play, params, tasks, chosen.program, edits, chosen.budget, play_key, options.samples, policy.settings
        )
        evaluated = place_values(edits, values, visits.states.solved, policy.settings.num_actions)
        target, found = better_policy(now, evaluated, visits.states.weight, shuffle_key, options.nats, options.shuffle)
        return Improved(visits, target, before), {
            **signals,
            **found,
            "executions": signals["executions"] + executions,
            "oracle_labels": jnp.float32(0.0),
        }

    def loss(params: Params, batch: tuple[Improved, Shares]) -> tuple[jax.Array, Metrics]:
        rows, share = batch
        visits = rows.visits
        controller, read = policy.reader(params, visits.tasks)
        readout = read(visits.states.seen)
        log_probs = policy.log_probs(readout, visits.allowed)
        regression = weighted_sum(regression_loss(log_probs, rows.target), share.all)
        kl = weighted_sum(exact_kl(log_probs, rows.reference), share.all)
        labels = imitation_terms(readout, visits.states, share, options.weights, policy.rules)
        echo = echo_terms(controller, readout, visits.states, share)
        value = value_term(readout, visits.won, share)
        total = (
            options.policy_weight * regression
            + options.kl_weight * kl
            + labels["loss"]
            + options.echo_weight * echo["echo_loss"]
            + options.value_weight * value
        )
        return total, {
            **labels,
            **echo,
            "policy_loss": regression,
            "kl_loss": kl,
            "entropy": weighted_sum(entropy(log_probs), share.all),
            "value_loss": value,
            "loss": total,
            "tokens": policy.count_tokens(visits.tasks, visits.states.weight),
        }

    return Arm(stream, collect, lambda rows: state_shares(rows.visits.states, options.weights), loss)


@functools.partial(jax.jit, static_argnames="count")
def choose_edits(log_probs: jax.Array, allowed: jax.Array, key: jax.Array, count: int) -> jax.Array:
    """Different edits of the policy's own: int32 `[..., A]`, flat, -1 where fewer are allowed.

    Args:
      log_probs: float32 `[..., N]`.
      allowed: bool `[..., N - 1]`.
      key: typed key.
      count: static number A.
    """
    no_stop = jnp.zeros_like(allowed[..., :1])
    return sample_distinct(key, log_probs, jnp.concatenate([no_stop, allowed], axis=-1), count)


def edit_values(
    play: Play,
    params: Params,
    tasks: TaskArrays,
    program: vm.Program,
    edits: jax.Array,
    budget: jax.Array,
    key: jax.Array,
    samples: int,
    settings: vm.Settings,
) -> tuple[jax.Array, jax.Array]:
    """How often the policy ends solved after each edit, by sampled rollouts from the edited program.

    A rollout starts afresh with one edit less to spend: it knows neither the edits tried before nor their number.

    Args:
      play: plays episodes.
      params: the policy's parameters.
      tasks: B tasks.
      program: `Program[B, M, L]`, where the edits are made.
      edits: int32 `[B, M, A]`, flat.
      budget: int32 `[B, M]`, edits left before them, at least 1.
      key: typed key.
      samples: rollouts R after each edit.
      settings: static sizes.

    Returns:
      float32 `[B, M, A]`, and the executions of a program on an example that this took, float32 `[]`.
    """
    starts, left = _branches(program, edits, budget, samples, settings)
    keys = jax.random.split(key, left.shape)
    episodes = gather(play(params, tasks, starts, left, keys, jnp.asarray(True)))
    solved = episodes.solved[-1].reshape(*edits.shape, samples)
    return jnp.mean(solved.astype(jnp.float32), axis=-1), count_executions(episodes, tasks)


@functools.partial(jax.jit, static_argnames=("samples", "settings"))
def _branches(
    program: vm.Program, edits: jax.Array, budget: jax.Array, samples: int, settings: vm.Settings
) -> tuple[vm.Program, jax.Array]:
    """Edited programs `[B, M A R, L]` and the budgets left `[B, M A R]`, the R samples of an edit side by side."""
    chex.assert_rank(edits, 3)
    chex.assert_equal_shape_prefix([edits, budget, program.op], 2)
    each_edit = jax.vmap(lambda program, edit: vm.apply_action(program, edit, settings)[0], (None, 0))
    edited = jax.vmap(jax.vmap(each_edit))(program, edits)  # [B, M, A, L]
    flat = lambda leaf: jnp.repeat(leaf.reshape(len(leaf), -1, *leaf.shape[3:]), samples, axis=1)  # noqa: E731
    return jax.tree.map(flat, edited), flat(jnp.broadcast_to(budget[..., None] - 1, edits.shape))


@functools.partial(jax.jit, static_argnames="num_actions")
def place_values(edits: jax.Array, values: jax.Array, solved: jax.Array, num_actions: int) -> Evaluated:
    """Values by action: of the evaluated edits, and of STOP, which is exactly whether the program is solved.

    Args:
      edits: int32 `[B, M, A]`, flat and different; -1 for none.
      values: float32 `[B, M, A]`.
      solved: bool `[B, M]`.
      num_actions: static number N.
    """

    def one(edits: jax.Array, values: jax.Array, solved: jax.Array) -> Evaluated:
        place = jnp.where(edits >= 0, edits, num_actions)  # beyond the end, where it is dropped
        table = jnp.zeros(num_actions).at[0].set(solved.astype(jnp.float32))
        known = jnp.zeros(num_actions, bool).at[0].set(True)
        return Evaluated(table.at[place].set(values, mode="drop"), known.at[place].set(True, mode="drop"))

    return jax.vmap(jax.vmap(one))(edits, values, solved)


@functools.partial(jax.jit, static_argnames=("nats", "shuffle"))
def better_policy(
    log_probs: jax.Array, evaluated: Evaluated, weight: jax.Array, key: jax.Array, nats: float, shuffle: bool = False
) -> tuple[jax.Array, Metrics]:
    """The better policy, a mean KL of `nats` away or as near to that as the advantages lead.

    Args:
      log_probs: float32 `[B, M, N]`, of the policy that was evaluated.
      evaluated: `[B, M, N]`.
      weight: float32 `[B, M]`, how much a state counts.
      key: typed key, used by the control only.
      nats: static, above 0.
      shuffle: static, the control.

    Returns:
      float32 `[B, M, N]`, log-probabilities; and `beta`, `target_kl`, and `action_spread`, the share of states whose
      actions differ in value.
    """
    advantage = action_advantages(evaluated.values, log_probs, evaluated.known)
    if shuffle:
        advantage = shuffle_within(key, advantage, evaluated.known)
    beta, kl = choose_beta(log_probs, advantage, evaluated.known, weight, nats)
    spread = jnp.any(advantage != 0, axis=-1).astype(jnp.float32)
    found = {"beta": beta, "target_kl": kl, "action_spread": masked_mean(spread, weight)}
    return improved_log_probs(log_probs, advantage, evaluated.known, beta), found
