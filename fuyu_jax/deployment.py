"""How a trained policy is deployed: alone, or as a scorer of what the copied policy proposes, which keeps STOP.

What preferences train need not act alone. As a scorer it cannot lead away from what copying would at least consider,
nor can it stop.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import vm
from fuyu_jax.controller import Controller, Readout
from fuyu_jax.policy import Params, Play, Policy
from fuyu_jax.rollout import Read
from vm.observation import Observation
from vm.tasks import TaskArrays
from vm.types import Program, Value

BELOW = 30.0  # nats by which what was not proposed is less likely than any proposal


class Roles(NamedTuple):
    """The parameters of both: of whoever proposes edits and stops, and of whoever ranks them."""

    proposer: Params
    scorer: Params


class Actor(NamedTuple):
    """Who acts in episodes.

    Attributes:
      policy: its structure.
      play: what plays its episodes.
      params: what the policy takes: `Params`, or the `Roles` of a scored policy.
    """

    policy: Policy
    play: Play
    params: Any


@dataclass(frozen=True)
class ScoredPolicy(Policy):
    """A policy whose parameters are `Roles`; its STOP, value, distance and ECHO are the proposer's.

    Attributes:
      proposals: how many of the proposer's likeliest valid edits are ranked; all others come after them.
    """

    proposals: int = 16

    @classmethod
    def of(cls, policy: Policy, proposals: int = 16) -> ScoredPolicy:
        """A policy of this structure in both roles."""
        return cls(**vars(policy), proposals=proposals)

    def controller(self, params: Roles) -> Controller:  # type: ignore[override]
        """The proposer's controller."""
        return super().controller(params.proposer)

    def reader(  # type: ignore[override]
        self, params: Roles, tasks: TaskArrays, targets: Value | None = None
    ) -> tuple[Controller, Read]:
        """The proposer's controller, and what reads observations `[B, S]` with both."""
        alone = Policy(**{item.name: getattr(self, item.name) for item in fields(Policy)})
        controller, propose = alone.reader(params.proposer, tasks, targets)
        _, score = alone.reader(params.scorer, tasks, targets)

        def read(seen: Observation) -> Readout:
            proposed, scored = propose(seen), score(seen)
            valid = jax.vmap(jax.vmap(lambda op, arg: vm.valid_actions(Program(op, arg), self.settings)[1:]))
            logits = rank_proposals(proposed.edit_logits, scored.edit_logits, valid(seen.op, seen.arg), self.proposals)
            return proposed._replace(edit_logits=logits)

        return controller, read


def rank_proposals(proposed: jax.Array, scored: jax.Array, valid: jax.Array, proposals: int) -> jax.Array:
    """Edit logits that prefer, of the proposer's likeliest valid edits, those that the scorer prefers.

    Args:
      proposed: float32 `[..., N - 1]`, the proposer's logits.
      scored: float32 `[..., N - 1]`, the scorer's.
      valid: bool `[..., N - 1]`, edits that change the program.
      proposals: static, how many are ranked.

    Returns:
      float32 `[..., N - 1]`: the scorer's logits of the proposals; all others stand below, in the proposer's order.
    """
    best, _ = jax.lax.top_k(jnp.where(valid, proposed, -jnp.inf), proposals)
    ranked = valid & (proposed >= best[..., -1:])
    lowest = jnp.min(jnp.where(ranked, scored, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(ranked, scored, lowest - BELOW + proposed - best[..., :1])
