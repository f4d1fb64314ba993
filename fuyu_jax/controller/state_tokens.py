"""Dense state tokens: an observation of the machine as vectors that enter the transformer beside its prompt."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from vm.observation import Observation
from vm.types import NUM_OPCODES, Settings, Status, Type, Value

MAX_BUDGET = 16
WORD_BITS = 32


def word_features(words: jax.Array) -> jax.Array:
    """Features of 32-bit words: int32 `[..., W]` to float32 `[..., W * 33]`.

    The 32 bits tell any two words apart, however large; the signed logarithm says which numbers are near each other.
    """
    shifts = jnp.arange(WORD_BITS, dtype=jnp.int32).reshape((1,) * words.ndim + (-1,))
    bits = (words[..., None] >> shifts) & 1  # [..., W, 32]
    size = jnp.arcsinh(words.astype(jnp.float32)) / 8.0
    features = jnp.concatenate([bits.astype(jnp.float32), size[..., None]], axis=-1)
    return features.reshape(*words.shape[:-1], -1)


class ValueEncoder(nnx.Module):
    """Encodes a machine value (type, length and words) as one vector of `features` numbers."""

    def __init__(self, settings: Settings, features: int, *, rngs: nnx.Rngs) -> None:
        """Draw the projection."""
        self.types = len(Type)
        self.lengths = settings.width + 1
        inputs = settings.width * (WORD_BITS + 1) + self.types + self.lengths
        self.project = nnx.Linear(inputs, features, rngs=rngs)

    def __call__(self, value: Value) -> jax.Array:
        """Encode `Value[...]` as float32 `[..., features]`."""
        kind = jax.nn.one_hot(value.type, self.types)
        length = jax.nn.one_hot(value.length, self.lengths)
        return jax.nn.gelu(self.project(jnp.concatenate([word_features(value.words), kind, length], axis=-1)))


class StateEmbedder(nnx.Module):
    """Turns an observation into state tokens `[..., E + L + 2, hidden]`.

    In order: one token for each public example (inputs, output, status; the target only where it may be seen), one for
    each slot (opcode, argument, position, the stack's top after it, whether the fault is here), one for step, budget
    and status, and one to act from, which therefore sees all others under a causal mask.
    """

    def __init__(
        self,
        settings: Settings,
        examples: int,
        hidden: int,
        *,
        scale: float,
        show_targets: bool = False,
        rngs: nnx.Rngs,
    ) -> None:
        """Draw tables and projections.

        Args:
          settings: the machine's sizes.
          examples: public examples of a task.
          hidden: size of a token.
          scale: standard deviation of what tokens are drawn from: that of the transformer's own embeddings, so that
            both enter its first norm alike.
          show_targets: whether the public targets are shown.
          rngs: source of the initial weights.
        """
        features = 96
        init = nnx.initializers.normal(scale)

        def table(rows: int) -> nnx.Embed:
            return nnx.Embed(rows, hidden, embedding_init=init, rngs=rngs)

        def role() -> nnx.Linear:
            return nnx.Linear(features, hidden, use_bias=False, kernel_init=init, rngs=rngs)

        self.settings = settings
        self.show_targets = show_targets
        self.num_tokens = examples + settings.slots + 2
        self.encode = ValueEncoder(settings, features, rngs=rngs)
        self.input_x, self.input_y, self.output, self.top = role(), role(), role(), role()
        self.target = role() if show_targets else None
        self.example, self.example_status = table(examples), table(len(Status))
        self.opcode, self.argument = table(NUM_OPCODES + 1), table(settings.args + 1)  # the last row: a bad one
        self.slot, self.fault = table(settings.slots), table(2)
        self.step, self.budget, self.status = table(MAX_BUDGET + 1), table(MAX_BUDGET + 1), table(len(Status))
        self.act = table(1)

    def __call__(self, seen: Observation, targets: Value | None = None) -> jax.Array:
        """Embed observations with leading axes `[...]`; `targets` is `Value[..., E]` and only used when shown."""
        lead = seen.step.shape
        tokens = [self._examples(seen, targets), self._slots(seen), self._machine(seen)[..., None, :]]
        act = jnp.broadcast_to(self.act(jnp.zeros((1,) * len(lead), jnp.int32)), (*lead, tokens[-1].shape[-1]))
        return jnp.concatenate([*tokens, act[..., None, :]], axis=-2)  # [..., E + L + 2, hidden]

    def _examples(self, seen: Observation, targets: Value | None) -> jax.Array:
        inputs = self.encode(seen.inputs)  # [..., E, 2, features]
        token = (
            self.input_x(inputs[..., 0, :]) + self.input_y(inputs[..., 1, :]) + self.output(self.encode(seen.outputs))
        )
        if self.target is not None:
            if targets is None:
                raise ValueError("this controller was built with show_targets and needs the public targets.")
            token = token + self.target(self.encode(targets))
        index = jnp.broadcast_to(jnp.arange(seen.status.shape[-1], dtype=jnp.int32), seen.status.shape)
        return token + self.example_status(seen.status) + self.example(index)  # [..., E, hidden]

    def _slots(self, seen: Observation) -> jax.Array:
        known_op = (seen.op >= 0) & (seen.op < NUM_OPCODES)
        known_arg = (seen.arg >= 0) & (seen.arg < self.settings.args)
        index = jnp.broadcast_to(jnp.arange(self.settings.slots, dtype=jnp.int32), seen.op.shape)
        return (
            self.opcode(jnp.where(known_op, seen.op, NUM_OPCODES))
            + self.argument(jnp.where(known_arg, seen.arg, self.settings.args))
            + self.slot(index)
            + self.top(self.encode(seen.tops))
            + self.fault((index == seen.pc[..., None]).astype(jnp.int32))
        )  # [..., L, hidden]

    def _machine(self, seen: Observation) -> jax.Array:
        step, budget = (jnp.clip(x, 0, MAX_BUDGET) for x in (seen.step, seen.budget))
        return self.step(step) + self.budget(budget) + self.status(seen.status[..., 0])  # [..., hidden]
