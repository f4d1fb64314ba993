"""The rules by which the heads of a policy make one distribution over the flat actions."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fuyu_jax.controller.distribution import NEVER, action_log_probs
from fuyu_jax.controller.heads import Readout
from vm.edits import decode_action
from vm.types import Settings


@dataclass(frozen=True)
class Rules:
    """How what the heads say becomes a distribution over the flat actions; static.

    Sampling, decoding, scoring, losses and measuring all ask here, so that they speak of the same distribution.

    Attributes:
      mask: allow valid edits only. Without it any edit is allowed; one that is not valid leaves the program as it is
        and costs budget all the same.
      joint_stop: STOP is one more class of one softmax over STOP and the allowed edits. Otherwise P(STOP) is its head's
        alone, and the allowed edits share the rest.
      factored: the edits' logits are sums of independent choices of a kind, a slot and a value, as `FactoredHeads` has
        them: the likeliest action is then made of the likeliest kind, slot and value. STOP is one of the kinds.

    Raises:
      ValueError: where the heads are factored and STOP is not joint.
    """

    mask: bool = True
    joint_stop: bool = False
    factored: bool = False

    def __post_init__(self) -> None:
        """Refuses rules that contradict each other."""
        if self.factored and not self.joint_stop:
            raise ValueError("factored heads have STOP among their kinds; use a joint STOP with them.")

    def allowed(self, valid: jax.Array) -> jax.Array:
        """The edits among which the policy chooses, where those `valid` change the program: bool `[..., N - 1]`."""
        return valid if self.mask else jnp.ones_like(valid)

    def stop_logit(self, readout: Readout, allowed: jax.Array) -> jax.Array:
        """The log-odds of STOP: float32 `[...]`, for allowed edits bool `[..., N - 1]`."""
        if not self.joint_stop:
            return readout.stop_logit
        return readout.stop_logit - _log_mass(readout.edit_logits, allowed)

    def log_probs(self, readout: Readout, allowed: jax.Array) -> jax.Array:
        """Log-probabilities of all actions: float32 `[..., N]`, for allowed edits bool `[..., N - 1]`."""
        return action_log_probs(self.stop_logit(readout, allowed), readout.edit_logits, allowed)

    def says_stop(self, readout: Readout, allowed: jax.Array, settings: Settings) -> jax.Array:
        """Whether a policy that does not sample stops: bool `[...]`, for allowed edits bool `[..., N - 1]`.

        It does where STOP's own head says at least one half; where STOP is joint, where no edit is likelier, or, with
        factored heads, no kind of edit.
        """
        if not self.joint_stop:
            return jax.nn.sigmoid(readout.stop_logit) >= 0.5
        if self.factored:
            return readout.stop_logit >= jnp.maximum(*_kind_masses(readout.edit_logits, allowed, settings))
        return readout.stop_logit >= jnp.max(jnp.where(allowed, readout.edit_logits, NEVER), axis=-1)

    def likeliest(self, readout: Readout, allowed: jax.Array, settings: Settings) -> jax.Array:
        """The edits of which decoding takes the best: the allowed ones, or those of the likeliest kind where factored.

        Bool `[..., N - 1]`, like `allowed`.
        """
        if not self.factored:
            return allowed
        sets_op, sets_arg = _kind_masses(readout.edit_logits, allowed, settings)
        return allowed & (jnp.broadcast_to(_sets_op(settings), allowed.shape) == (sets_op >= sets_arg)[..., None])


def _log_mass(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(jnp.where(allowed, logits, NEVER), axis=-1)


def _sets_op(settings: Settings) -> jax.Array:
    """Which edits set an opcode: bool `[N - 1]`."""
    return decode_action(jnp.arange(1, settings.num_actions, dtype=jnp.int32), settings).sets_op


def _kind_masses(logits: jax.Array, allowed: jax.Array, settings: Settings) -> tuple[jax.Array, jax.Array]:
    """Logits of setting an opcode and of setting an argument: float32 `[...]` each."""
    sets_op = jnp.broadcast_to(_sets_op(settings), allowed.shape)
    return _log_mass(logits, allowed & sets_op), _log_mass(logits, allowed & ~sets_op)


DEFAULT_RULES = Rules()
