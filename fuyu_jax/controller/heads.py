"""Heads on the hidden states of the state tokens: which edit, whether to stop, how far, and what comes next."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from vm.types import NUM_OPCODES, Settings, Status, Type

DISTANCE_CLASSES = 18  # 0..16 edits, and more
BYTES = 4
KINDS = 3  # STOP, SET_OP, SET_ARG


class Readout(NamedTuple):
    """What the heads say of each state; float32 with leading axes `[...]`.

    Attributes:
      edit_logits: `[..., N - 1]`, unmasked, in the order of the flat actions without STOP.
      stop_logit: `[...]`, of P(this program is solved); where `Rules` have a joint STOP, its logit among the edits'.
      value_logit: `[...]`, of P(this policy's own rollout from here ends solved within the budget left).
      distance_logits: `[..., 18]`, over 0..16 edits to the reference, and more.
      act: `[..., hidden]`, the acting token's state, and
      examples: `[..., E, hidden]`, the example tokens' states: what the ECHO head reads.
    """

    edit_logits: jax.Array
    stop_logit: jax.Array
    value_logit: jax.Array
    distance_logits: jax.Array
    act: jax.Array
    examples: jax.Array


class Echo(NamedTuple):
    """Predicted next outputs of the public examples, as logits with leading axes `[..., E]`.

    Attributes:
      status: `[..., E, 8]`; type: `[..., E, 4]`; length: `[..., E, W + 1]`.
      bytes: `[..., E, W, 4, 256]`, the four bytes of each word, lowest first.
    """

    status: jax.Array
    type: jax.Array
    length: jax.Array
    bytes: jax.Array


class _Mlp(nnx.Module):
    """One hidden layer with SiLU; the last layer starts small, so that first distributions are nearly even."""

    def __init__(self, inputs: int, hidden: int, outputs: int, *, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(inputs, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, outputs, kernel_init=nnx.initializers.normal(0.02), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(jax.nn.silu(self.hidden(x)))


class FactoredHeads(nnx.Module):
    """Independent choices of a kind (STOP, SET_OP, SET_ARG), a slot, an opcode and an argument, as the original had.

    log p(set slot s to opcode v) = log p(SET_OP) + log p(s) + log p(v), and likewise for arguments: no choice knows the
    others. The baseline that the flat action set is compared with.
    """

    def __init__(self, settings: Settings, hidden: int, *, rngs: nnx.Rngs) -> None:
        """Draw the four heads for `hidden` features."""
        head = functools.partial(_Mlp, 2 * hidden, hidden, rngs=rngs)
        self.kind, self.slot = head(KINDS), head(settings.slots)
        self.opcode, self.argument = head(NUM_OPCODES), head(settings.args)

    def __call__(self, whole: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Log-probabilities of the edits `[..., L, 44 + A]` and of STOP `[...]` from a state's features."""
        kind, slot, opcode, argument = (
            jax.nn.log_softmax(head(whole), axis=-1) for head in (self.kind, self.slot, self.opcode, self.argument)
        )
        value = jnp.concatenate([kind[..., 1:2] + opcode, kind[..., 2:3] + argument], axis=-1)  # [..., 44 + A]
        return slot[..., :, None] + value[..., None, :], kind[..., 0]


class Heads(nnx.Module):
    """All heads but ECHO read the acting token, which sees the whole state; edits also read their own slot's token.

    Factored heads take the place of those for edits and STOP.
    """

    def __init__(
        self, settings: Settings, examples: int, hidden: int, *, factored: bool = False, rngs: nnx.Rngs
    ) -> None:
        """Draw all heads for `hidden` features and `examples` public examples."""
        self.settings = settings
        self.num_examples = examples
        self.factored = FactoredHeads(settings, hidden, rngs=rngs) if factored else None
        if not factored:
            self.edit = _Mlp(2 * hidden, hidden, NUM_OPCODES + settings.args, rngs=rngs)
            self.stop = _Mlp(2 * hidden, hidden, 1, rngs=rngs)
        self.value = _Mlp(2 * hidden, hidden, 1, rngs=rngs)
        self.distance = _Mlp(2 * hidden, hidden, DISTANCE_CLASSES, rngs=rngs)
        self.echo_action = nnx.Embed(settings.num_actions, hidden, rngs=rngs)
        self.echo_shape = _Mlp(3 * hidden, hidden, len(Status) + len(Type) + settings.width + 1, rngs=rngs)
        self.echo_words = nnx.Linear(3 * hidden, settings.width * 32, rngs=rngs)
        self.echo_bytes = nnx.Linear(32, BYTES * 256, rngs=rngs)

    def __call__(self, hidden: jax.Array) -> Readout:
        """Read the final hidden states of the state tokens, `[..., E + L + 2, d]`."""
        first_slot, machine = self.num_examples, self.num_examples + self.settings.slots
        slots = hidden[..., first_slot:machine, :]  # [..., L, d]
        act = hidden[..., -1, :]  # [..., d]
        whole = jnp.concatenate([act, jnp.mean(slots, axis=-2)], axis=-1)
        if self.factored is None:
            beside = jnp.broadcast_to(act[..., None, :], slots.shape)
            edits = self.edit(jnp.concatenate([slots, beside], axis=-1))  # [..., L, 44 + A]
            stop = self.stop(whole)[..., 0]
        else:
            edits, stop = self.factored(whole)
        return Readout(
            edit_logits=edits.reshape(*edits.shape[:-2], -1),
            stop_logit=stop,
            value_logit=self.value(whole)[..., 0],
            distance_logits=self.distance(whole),
            act=act,
            examples=hidden[..., : self.num_examples, :],
        )

    def echo(self, readout: Readout, action: jax.Array) -> Echo:
        """Predict the outputs that follow an edit: `action` int32 `[...]`, flat, not STOP."""
        width = self.settings.width
        edit = jnp.broadcast_to(self.echo_action(action)[..., None, :], readout.examples.shape)
        act = jnp.broadcast_to(readout.act[..., None, :], readout.examples.shape)
        x = jnp.concatenate([readout.examples, act, edit], axis=-1)  # [..., E, 3 d]
        shape = self.echo_shape(x)
        status, kind, length = jnp.split(shape, [len(Status), len(Status) + len(Type)], axis=-1)
        words = jax.nn.silu(self.echo_words(x)).reshape(*x.shape[:-1], width, 32)
        return Echo(status, kind, length, self.echo_bytes(words).reshape(*x.shape[:-1], width, BYTES, 256))
