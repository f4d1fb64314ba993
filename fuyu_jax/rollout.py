"""Episodes: a policy repairs programs, one edit a forward pass, as one `lax.scan` over steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

import vm
from fuyu_jax.controller.distribution import choose_edit
from fuyu_jax.controller.heads import Readout
from fuyu_jax.controller.rules import DEFAULT_RULES, Rules
from vm.observation import Observation, join_examples, observe, run_all

Read = Callable[[Observation], Readout]  # the policy: observations [B, G] to what its heads say


class Episodes(NamedTuple):
    """Episodes of G rollouts for each of B tasks, over T steps; index t is the t-th decision.

    What a decision leaves is 0 where none was taken.

    Attributes:
      program: `Program[T + 1, B, G, L]`, before each decision and at the end.
      public: int32 `[T + 1, B, G]`, public examples that this program gets right.
      solved: bool `[T + 1, B, G]`, whether it gets all public and hidden examples right.
      active: bool `[T, B, G]`, a decision was taken here: the budget was not spent and nobody had stopped.
      action: int32 `[T, B, G]`, flat; 0 where the episode stopped or was inactive, -1 where nothing was allowed.
      valid: bool `[T, B, G]`, the edit changed the program.
      stop_prob: float32 `[T, B, G]`, P(STOP).
      says_stop: bool `[T, B, G]`, a policy that does not sample would stop here.
      done_prob: float32 `[T, B, G]`, probability of distance class 0.
      log_prob: float32 `[T, B, G]`, of the action taken, STOP included in the distribution.
      allowed: bool `[T, B, G, N - 1]`, edits the policy could choose among: valid unless `Rules` have no mask and,
        with `no_repeat`, untried.
    """

    program: vm.Program
    public: jax.Array
    solved: jax.Array
    active: jax.Array
    action: jax.Array
    valid: jax.Array
    stop_prob: jax.Array
    says_stop: jax.Array
    done_prob: jax.Array
    log_prob: jax.Array
    allowed: jax.Array


class _Carry(NamedTuple):
    """Lanes in flight: the program, whether it may go on, and the edits tried in which program so far."""

    program: vm.Program
    going: jax.Array
    tried: vm.Program
    actions: jax.Array


def _already_tried(program: vm.Program, tried: vm.Program, actions: jax.Array, num_edits: int) -> jax.Array:
    """Edits that this episode already took in this very program: bool `[N - 1]`. Unbatched; `tried` is `[T, L]`."""
    same = jnp.all(tried.op == program.op[None], axis=-1) & jnp.all(tried.arg == program.arg[None], axis=-1)  # [T]
    edits = jnp.arange(1, num_edits + 1, dtype=jnp.int32)
    return jnp.any(same[:, None] & (actions[:, None] == edits[None, :]), axis=0)


def repeat_lanes(program: vm.Program, lanes: int) -> vm.Program:
    """Programs `[B, L]` for each of G lanes: `[B, G, L]`."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:, None], (len(leaf), lanes, leaf.shape[-1])), program)


def rollout(
    read: Read,
    public: vm.Examples,
    hidden: vm.Examples,
    start: vm.Program,
    budget: jax.Array,
    *,
    steps: int,
    keys: jax.Array,
    sampled: jax.Array | bool,
    no_repeat: bool = True,
    rules: Rules = DEFAULT_RULES,
    settings: vm.Settings = vm.DEFAULT_SETTINGS,
) -> Episodes:
    """Run a policy from given programs until its budget is spent or, where episodes are sampled, until it stops.

    Args:
      read: the policy's heads on observations `[B, G]`.
      public: the tasks' public examples, `[B, E]`; their targets only judge, `read` does not get them.
      hidden: the hidden examples, `[B, H]`, which only judge.
      start: `Program[B, G, L]`.
      budget: int32 `[B, G]`, edits each lane may attempt, at most `steps`.
      steps: static number T of decisions; steps in which no lane is going cost next to nothing.
      keys: a typed key for each lane `[B, G]`, so that a lane's episode does not depend on its neighbours.
      sampled: bool `[]`, may be traced. True samples edits at temperature 1 and STOP with P(STOP). False takes the best
        edit and never stops: one such episode tells what every way of stopping would have done.
      no_repeat: rule out edits already tried in the same program in this episode.
      rules: static, how the heads make a distribution over the actions.
      settings: static sizes.
    """
    chex.assert_rank(budget, 2)
    chex.assert_equal_shape_prefix([budget, start.op], 2)
    lanes = budget.shape
    num_edits = settings.num_actions - 1
    sampled = jnp.asarray(sampled)
    examples = join_examples(public, hidden)
    shown = public.targets.type.shape[1]
    over_lanes = lambda f: jax.vmap(jax.vmap(f))  # noqa: E731
    execute = jax.vmap(jax.vmap(lambda program, inputs: run_all(program, inputs, settings), (0, None)))
    look = functools.partial(observe, settings=settings)
    see = jax.vmap(jax.vmap(look, (0, None, 0, None, 0)), (0, 0, 0, None, 0))
    valid_edits = over_lanes(lambda program: vm.valid_actions(program, settings)[1:])
    apply = over_lanes(lambda program, action: vm.apply_action(program, action, settings))
    tried_before = over_lanes(functools.partial(_already_tried, num_edits=num_edits))

    def right(results: vm.Result) -> jax.Array:
        """Which examples are right: bool `[B, G, E + H]`."""
        targets = jax.tree.map(lambda leaf: jnp.expand_dims(leaf, 1), examples.targets)
        spread = jax.tree.map(lambda leaf, like: jnp.broadcast_to(leaf, like.shape), targets, results.output)
        return vm.values_equal(results.output, spread)

    def decide(carry: _Carry, results: vm.Result, t: jax.Array, active: jax.Array) -> tuple[jax.Array, ...]:
        """One forward pass: action, P(STOP), whether to, P(done), log-probability, the edits it could choose among."""
        visible = jax.tree.map(lambda leaf: leaf[:, :, :shown], results)
        readout = read(see(carry.program, public.inputs, visible, t, budget - t))
        allowed = rules.allowed(valid_edits(carry.program))
        if no_repeat:
            allowed = allowed & ~tried_before(carry.program, carry.tried, carry.actions)
        stop_prob = jax.nn.sigmoid(rules.stop_logit(readout, allowed))
        says_stop = rules.says_stop(readout, allowed, settings)
        edit_keys = over_lanes(lambda key: jax.random.fold_in(key, 2 * t))(keys)
        stop_keys = over_lanes(lambda key: jax.random.fold_in(key, 2 * t + 1))(keys)
        noise = over_lanes(lambda key: jax.random.gumbel(key, (num_edits,)))(edit_keys)
        chance = over_lanes(jax.random.uniform)(stop_keys)
        among = jnp.where(sampled, allowed, rules.likeliest(readout, allowed, settings))
        action = choose_edit(readout.edit_logits, among, jnp.where(sampled, noise, 0.0))
        action = jnp.where(sampled & (chance < stop_prob), 0, action)
        log_probs = rules.log_probs(readout, allowed)
        log_prob = jnp.take_along_axis(log_probs, jnp.maximum(action, 0)[..., None], axis=-1)[..., 0]
        done_prob = jax.nn.softmax(readout.distance_logits, axis=-1)[..., 0]
        action, stop_prob, done_prob, log_prob = (
            jnp.where(active, leaf, 0) for leaf in (action, stop_prob, done_prob, log_prob)
        )
        # As `idle` has it, so that no lane's record depends on the others.
        return action, stop_prob, says_stop & active, done_prob, log_prob, allowed & active[..., None]

    def idle(carry: _Carry, results: vm.Result, t: jax.Array, active: jax.Array) -> tuple[jax.Array, ...]:
        del carry, results, t, active
        zeros, no = jnp.zeros(lanes), jnp.zeros(lanes, bool)
        return jnp.zeros(lanes, jnp.int32), zeros, no, zeros, zeros, jnp.zeros((*lanes, num_edits), bool)

    def step(carry: _Carry, t: jax.Array) -> tuple[_Carry, tuple]:
        results = execute(carry.program, examples.inputs)
        active = carry.going & (t < budget)
        action, stop_prob, says_stop, done_prob, log_prob, allowed = jax.lax.cond(
            jnp.any(active), decide, idle, carry, results, t, active
        )
        edited, valid = apply(carry.program, action)
        moves = active & (action != 0)
        after = _Carry(
            program=jax.tree.map(lambda new, old: jnp.where(moves[..., None], new, old), edited, carry.program),
            going=moves,
            tried=jax.tree.map(lambda all_, now: all_.at[:, :, t].set(now), carry.tried, carry.program),
            actions=carry.actions.at[:, :, t].set(jnp.where(moves, action, 0)),
        )
        decided = (active, action, valid & moves, stop_prob, says_stop, done_prob, log_prob, allowed)
        return after, (carry.program, right(results), decided)

    # One step more than there are decisions: the last only runs the final program.
    times = jnp.arange(steps + 1, dtype=jnp.int32)
    blank = jnp.full((*lanes, steps + 1, settings.slots), -1, jnp.int32)
    carry = _Carry(start, jnp.ones(lanes, bool), vm.Program(blank, blank), jnp.zeros((*lanes, steps + 1), jnp.int32))
    _, (program, judged, decided) = jax.lax.scan(step, carry, times)
    active, action, valid, stop_prob, says_stop, done_prob, log_prob, allowed = jax.tree.map(
        lambda leaf: leaf[:-1], decided
    )
    return Episodes(
        program=program,
        public=jnp.sum(judged[..., :shown], axis=-1, dtype=jnp.int32),
        solved=jnp.all(judged, axis=-1),
        active=active,
        action=action,
        valid=valid,
        stop_prob=stop_prob,
        says_stop=says_stop,
        done_prob=done_prob,
        log_prob=log_prob,
        allowed=allowed,
    )
