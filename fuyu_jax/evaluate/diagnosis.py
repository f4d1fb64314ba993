"""Diagnoses of a run's phases on two fixed sets of states, set against the copied policy."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from fuyu_jax.evaluate.diagnostics import StateSet, kl_between, make_diagnose
from fuyu_jax.evaluate.measure import greedy
from fuyu_jax.evaluate.metrics import BUDGET
from fuyu_jax.evaluate.state_sets import oracle_path_states, visited_states
from fuyu_jax.learn.training import Metrics
from fuyu_jax.policy import Params, Play, Policy
from vm.oracle import Placement
from vm.tasks import TaskArrays


class Diagnosis:
    """Head accuracies on states of the oracle's path and on states that the copied policy came to.

    Attributes:
      reference: the copied policy's log-probabilities on each set of states; empty before there is one.
    """

    def __init__(self, policy: Policy, play: Play, tasks: TaskArrays, placement: Placement, lanes: int) -> None:
        """Nothing is referred to yet.

        Args:
          policy: for prompts of the tasks.
          play: plays episodes, `lanes` of each task at a time.
          tasks: those whose states are looked at, as many as are measured at a time.
          placement: where the oracle's labels lead.
          lanes: a number for which `play` is compiled anyway.
        """
        self.reference: dict[str, jax.Array] = {}
        self._diagnose, self._play, self._tasks = make_diagnose(policy), play, tasks
        self._machine, self._placement, self._lanes = policy.settings, placement, lanes
        self._sets: dict[str, StateSet] = {}

    def refer_to(self, copied: Params) -> None:
        """Fixes the sets of states and the policy that others are set against."""
        count = len(self._tasks.family)
        budget = jnp.full((count, self._lanes), BUDGET, jnp.int32)
        episodes = greedy(self._play, copied)(self._tasks, budget, jnp.arange(count))
        self._sets = {
            "oracle_path": oracle_path_states(self._tasks, self._machine, self._placement),
            "bc_states": visited_states(self._tasks, episodes, budget[:, :1], self._machine, self._placement),
        }
        self.reference = {name: self._diagnose(copied, states)[1] for name, states in self._sets.items()}

    def rows(self, params: Params) -> Iterator[tuple[str, Metrics]]:
        """The name of each set of states, with accuracies and the KL to the copied policy; none before there is one."""
        for name, reference in self.reference.items():
            accuracies, log_probs = self._diagnose(params, self._sets[name])
            kl = kl_between(log_probs, reference, self._sets[name].states.weight)
            yield name, {**accuracies, "kl_to_bc": kl}
