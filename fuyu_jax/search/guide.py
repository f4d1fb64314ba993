"""What leads a search: where edits come from, how far a program seems to be, and what is tried next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

Prior = Literal["uniform", "policy"]
Heuristic = Literal["none", "distance", "shuffled", "oracle", "likeness"]
Order = Literal["phs", "greedy"]
SameOutputs = Literal["keep", "discount", "drop"]

SAME_OUTPUTS: tuple[SameOutputs, ...] = ("keep", "discount", "drop")
PRIORS: tuple[Prior, ...] = ("uniform", "policy")
HEURISTICS: tuple[Heuristic, ...] = ("none", "distance", "shuffled", "oracle", "likeness")


class GuideCodes(NamedTuple):
    """A guide as numbers, int32 and bool `[]`, so that one compilation serves all guides that try as many edits."""

    prior: jax.Array
    heuristic: jax.Array
    greedy: jax.Array
    asks_model: jax.Array


@dataclass(frozen=True)
class Guide:
    """What leads a search.

    Attributes:
      prior: the probability of an edit: the policy's, or the same for all valid ones.
      heuristic: what stands for the edits that a program still needs. "none": 0. "distance": the expectation of the
        policy's distance head. "shuffled": that of a program drawn at random among those tried before in this search
        (0 for one that was not read), a control that says nothing of the program at hand. "oracle": the edits to the
        reference. "likeness": how far its outputs are from the public targets (`vm.beam.likeness`).
      order: "phs" or "greedy", see `priority`.
    """

    prior: Prior
    heuristic: Heuristic
    order: Order = "phs"

    @property
    def asks_model(self) -> bool:
        """Whether a model is read at all."""
        return self.prior == "policy" or self.heuristic in ("distance", "shuffled")

    def codes(self) -> GuideCodes:
        """The guide as numbers."""
        return GuideCodes(
            prior=jnp.int32(PRIORS.index(self.prior)),
            heuristic=jnp.int32(HEURISTICS.index(self.heuristic)),
            greedy=jnp.bool_(self.order == "greedy"),
            asks_model=jnp.bool_(self.asks_model),
        )


GUIDES: dict[str, Guide] = {
    "policy": Guide("policy", "none"),
    "policy_value": Guide("policy", "distance"),
    "policy_shuffled_value": Guide("policy", "shuffled"),
    "policy_oracle_distance": Guide("policy", "oracle"),
    "uniform_prior": Guide("uniform", "distance"),
    "execution_heuristic": Guide("uniform", "likeness", "greedy"),
}
"""The guides that are compared. With no heuristic PHS* is LTS, so "policy" is Levin tree search."""


@dataclass(frozen=True)
class Limits:
    """The sizes of a search; static, so that queues have fixed sizes.

    Attributes:
      budget: most programs taken from the queue, and so most executions and most forward passes of a task.
      edits: edits tried of a program, the likeliest; more than there are means all.
      horizon: most edits on a path.
      attempts: times that the search begins at the start program. The first attempt expands the likeliest edits; later
        ones sample theirs without replacement.
      patience: executions without a program that is more like the targets after which an attempt is given up; 0 for
        never. An attempt whose queue is empty is given up anyway.
      same_outputs: what becomes of a program whose outputs on the public inputs are those of one tried before in this
        attempt. "keep": nothing. "discount": what follows from it has to wait, its cost multiplied by how often these
        outputs were seen. "drop": it is not expanded, which can cut off a solution.
      confirm: a program that is right on the public examples ends the search only where the policy's STOP head gives it
        one half or more; until then it is kept, and of those kept the answer is the one it believes most. A guide that
        asks no model takes the first.
    """

    budget: int = 128
    edits: int = 8
    horizon: int = 16
    attempts: int = 1
    patience: int = 0
    same_outputs: SameOutputs = "discount"
    confirm: bool = True

    def __post_init__(self) -> None:
        """Refuses sizes with which nothing can be searched."""
        for name in ("budget", "edits", "horizon", "attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"Limits.{name} is {getattr(self, name)}; use at least 1.")


def priority(greedy: jax.Array, edits: jax.Array, left: jax.Array, log_prob: jax.Array) -> jax.Array:
    """The rank of a program in the queue, the lowest first: float32 in the arguments' shape.

    With g edits made, h edits left and the path's probability pi, PHS* (Orseau and Lelis, 2021, arXiv 2103.11505) is

        log(g + h) - (1 + h / g) log pi,

    which for h = 0 is the logarithm of LTS's g / pi (Orseau et al., 2018, arXiv 1811.10928): then a program at the end
    of a path of probability pi with g edits is tried among the first g / pi. Greedy best-first search looks at h alone.

    Args:
      greedy: bool `[]`, greedy best-first search.
      edits: float32 g, at least 1.
      left: float32 h, at least 0.
      log_prob: float32, log pi.
    """
    phs = jnp.log(edits + left) - (1 + left / edits) * log_prob
    return jnp.where(greedy, left, phs)
