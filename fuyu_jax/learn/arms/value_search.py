"""Arm `value_search`: the distance and value heads learn from what verified search tried and found.

The policy stays the prior: no edit is taught, and replayed demonstrations hold the edits where copying left them. Each
turn searches fresh train tasks, led by policy and distance head. Every program that was tried is a state, and the label
of its distance is the way to the right program that the search of its task ended with: no oracle, only the verifier.
Value is whether that way fits the budget left; where nothing was found value and STOP are taught alone.

Before a turn's states are learnt from they are unseen, so the same turn tells how well the heads do: rank correlation
within siblings, area under the ROC curve for "can be repaired within k edits", calibration. These are measured against
the oracle's distance, which nothing is learnt from.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from fuyu_jax.controller.heads import DISTANCE_CLASSES
from fuyu_jax.controller.state_tokens import MAX_BUDGET
from fuyu_jax.learn.arms.dagger import LabelOptions, hand_on, label_loss
from fuyu_jax.learn.arms.expert_iteration import nearest_repairs
from fuyu_jax.learn.experience import RolloutOptions, Visits
from fuyu_jax.learn.improvement import Arm
from fuyu_jax.learn.objective import state_shares
from fuyu_jax.learn.ranking import area_under_roc, calibration_error, sibling_rank_correlation
from fuyu_jax.learn.searching import SearchTasks, count_examples, solutions, were_read
from fuyu_jax.learn.states import label_states, lay_out, spread_steps
from fuyu_jax.learn.training import Metrics
from fuyu_jax.policy import Params, Policy
from fuyu_jax.search.frontier import unpack
from fuyu_jax.search.state import Search
from vm import oracle
from vm.streams import TaskStream
from vm.tasks import TaskArrays
from vm.types import Settings

WITHIN = (2, 4)  # edits


def value_search_arm(
    policy: Policy,
    search: SearchTasks,
    stream: TaskStream,
    turn_tasks: int,
    sizes: RolloutOptions,
    options: LabelOptions,
) -> Arm:
    """The arm on tasks of a stream, `turn_tasks` at a time, with `group * states` of the programs tried for each."""
    samples, teaching, settings = sizes.group * sizes.states, sizes.teaching, policy.settings

    @jax.jit
    def within(params: Params, visits: Visits) -> jax.Array:
        """Probability of each of the distance classes, or a nearer one: float32 `[B, M, 18]`."""
        readout = policy.reader(params, visits.tasks)[1](visits.states.seen)
        return jnp.cumsum(jax.nn.softmax(readout.distance_logits, axis=-1), axis=-1)

    def collect(params: Params, copied: Params, key: jax.Array) -> tuple[Visits, Metrics]:
        del copied
        tasks, _ = stream.next_batch(turn_tasks)
        layout_key, search_key, sample_key, shuffle_key = jax.random.split(key, 4)
        start, _ = lay_out(tasks, jax.random.split(layout_key, turn_tasks), teaching.gaps, settings)
        searched = search(params, tasks, start, search_key)
        found = solutions(searched, settings, teaching.placement)
        place, weight = sample_tried(searched, sample_key, samples)
        pick = lambda leaf: jnp.take_along_axis(leaf, place, axis=1)  # noqa: E731
        true = true_distances(searched, tasks, settings, teaching.placement)
        given = hand_on(found, shuffle_key) if options.shuffle else found
        programs = unpack(jnp.take_along_axis(searched.tried.key, place[..., None], axis=1), settings)
        edits = pick(searched.tried.edits)
        states = label_states(
            tasks,
            programs,
            jnp.zeros_like(edits),
            edits,
            MAX_BUDGET - edits,
            weight,
            settings,
            teaching.placement,
            nearest_repairs(programs, given, settings, teaching.placement),
        )
        won = states.taught & (states.distance <= MAX_BUDGET - edits)
        visits = Visits(tasks, states, policy.rules.allowed(states.valid), won)
        return visits, {
            **heuristic_signals(searched, true),
            "distance_calibration_error": distance_calibration(within(params, visits), pick(true), weight > 0),
            "search_solved": jnp.mean(found.known),
            "states": jnp.sum(searched.passes),
            "executions": jnp.sum(searched.executions) * count_examples(tasks),
            "oracle_labels": jnp.float32(0.0),
        }

    return Arm(stream, collect, lambda rows: state_shares(rows.states, options.weights), label_loss(policy, options))


@functools.partial(jax.jit, static_argnames="samples")
def sample_tried(search: Search, key: jax.Array, samples: int) -> tuple[jax.Array, jax.Array]:
    """Which M of the programs that each search tried are learnt from, spread evenly over it, and their weights.

    int32 `[B, M]`, and float32 `[B, M]`: how many of the programs tried each stands for.
    """
    keys = jax.random.split(key, search.taken.shape[0])
    place = jax.vmap(lambda key, count: spread_steps(key, count, samples))(keys, search.taken)
    weight = jnp.broadcast_to(search.taken[:, None] / samples, place.shape)
    return place, weight.astype(jnp.float32)


@functools.partial(jax.jit, static_argnames=("settings", "placement"))
def true_distances(search: Search, tasks: TaskArrays, settings: Settings, placement: oracle.Placement) -> jax.Array:
    """The oracle's distance of every program tried: int32 `[B, S]`; what was not tried has any."""
    programs = unpack(search.tried.key, settings)  # [B, S, L]
    far = lambda program, to, length: oracle.distance(program, to, settings, placement, length).distance  # noqa: E731
    return jax.vmap(jax.vmap(far, (0, None, None)))(programs, tasks.reference, tasks.length)


@jax.jit
def heuristic_signals(search: Search, true: jax.Array) -> Metrics:
    """How well the distance head led B searches, against the true distances int32 `[B, S]`."""
    read, left = were_read(search), search.tried.left
    correlation, _ = sibling_rank_correlation(search.tried.parent, left, true, read)
    flat = lambda leaf: leaf.reshape(-1)  # noqa: E731
    areas = {f"auc_within_{k}": area_under_roc(flat(-left), flat(true <= k), flat(read)) for k in WITHIN}
    return {"sibling_rank": correlation, **areas}


@jax.jit
def distance_calibration(within: jax.Array, true: jax.Array, counts: jax.Array) -> jax.Array:
    """Expected calibration error of P(distance <= k), over all k that are a class: float32 `[]`.

    Args:
      within: float32 `[B, M, C]`.
      true: int32 `[B, M]`.
      counts: bool `[B, M]`.
    """
    classes = jnp.arange(DISTANCE_CLASSES - 1, dtype=jnp.int32)  # the last class is "more", and always within itself
    event = true[..., None] <= classes[None, None]
    mask = jnp.broadcast_to(counts[..., None], event.shape)
    return calibration_error(within[..., :-1], event, mask)
