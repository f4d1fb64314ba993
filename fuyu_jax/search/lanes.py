"""Searching any number of tasks in lanes: a lane whose search ends takes the next task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import vm
from fuyu_jax.search.advice import MakeAsk, ask_nobody
from fuyu_jax.search.best_first import advance
from fuyu_jax.search.found import Found, read_off
from fuyu_jax.search.guide import Guide, GuideCodes, Limits
from fuyu_jax.search.state import Problem, Search, begin
from vm.types import THREEFRY

LANES = 32

Array = jax.Array


class Searcher:
    """Searches tasks, any number of them, compiled once for all guides that ask a model, or none of which does."""

    def __init__(
        self,
        make_ask: MakeAsk | None,
        limits: Limits,
        settings: vm.Settings,
        budgets: Sequence[int] = (),
        lanes: int = LANES,
    ) -> None:
        """Nothing is compiled yet.

        Args:
          make_ask: the model, such as `ask_policy`; None for guides that ask none.
          limits: the sizes of a search.
          settings: the machine's sizes.
          budgets: executions and forward passes after which the answers are reported.
          lanes: tasks that are searched side by side. Each lane's search is its task's alone.
        """
        self._asks, self._lanes = make_ask is not None, lanes
        model = make_ask or ask_nobody(settings)

        def go_on(params: Any, tasks: Any, problem: Problem, codes: GuideCodes, search: Search, least: Array) -> Search:
            ask = model(params, tasks, problem.judged)
            return advance(ask, codes, problem, search, least, limits, settings)

        start = jax.vmap(lambda program: begin(program, limits, settings))

        def refill(search: Search, is_new: Array, idle: Array, program: vm.Program) -> Search:
            def choose(new: Array, old: Array) -> Array:
                return jnp.where(is_new.reshape(-1, *[1] * (new.ndim - 1)), new, old)

            search = jax.tree.map(choose, start(program), search)
            return search._replace(done=search.done | idle)

        self._go_on, self._start, self._refill = jax.jit(go_on), jax.jit(start), jax.jit(refill)
        self._report = jax.jit(jax.vmap(lambda search: read_off(search, budgets, limits.horizon, settings)))

    def warm_up(self, params: Any, tasks: Any, guide: Guide) -> None:
        """Compiles what `__call__` with tasks of this kind needs."""
        key = jax.random.key(0, impl=THREEFRY)
        self._run(params, jax.tree.map(lambda leaf: leaf[:1], tasks), guide, key, None, lambda count: None, steps=False)

    def __call__(
        self,
        params: Any,
        tasks: Any,
        guide: Guide,
        key: Array,
        judged: NDArray[np.bool_] | None = None,
        advance: Callable[[int], object] = lambda count: None,
    ) -> Found:
        """Search N tasks, `TaskArrays` or another tree `[N, ...]` that the model reads, and report as host arrays.

        Args:
          params: the model's parameters; anything without one.
          tasks: the tasks; start programs must consist of valid instructions.
          guide: what leads the search.
          key: typed key; task i draws from it folded with i.
          judged: bool `[E]`, the public examples that a program must get right, at least one; all by default.
          advance: called with the number of tasks that are done since the last call.

        Raises:
          ValueError: for a guide that asks a model where there is none.
        """
        return self._run(params, tasks, guide, key, judged, advance)

    def _run(
        self,
        params: Any,
        tasks: Any,
        guide: Guide,
        key: Array,
        judged: NDArray[np.bool_] | None,
        advance: Callable[[int], object],
        steps: bool = True,
    ) -> Found:
        if guide.asks_model and not self._asks:
            raise ValueError(f"{guide} asks a model; give the searcher one.")
        count, shown = tasks.public.targets.type.shape
        lanes = self._lanes
        mask = jnp.broadcast_to(jnp.asarray(np.ones(shown, np.bool_) if judged is None else judged), (lanes, shown))
        keys = jax.vmap(lambda task: jax.random.fold_in(key, task))(jnp.arange(count))
        rows, following = np.full(lanes, -1), 0
        search = self._start(jax.tree.map(lambda leaf: leaf[np.zeros(lanes, np.int32)], tasks.start))
        search = search._replace(done=jnp.ones(lanes, bool))
        found: Found | None = None
        while True:
            done = np.asarray(search.done) | (not steps)
            ended = done & (rows >= 0)
            if ended.any():
                found = _write(found, jax.device_get(self._report(search)), rows, ended, count)
                advance(int(ended.sum()))
            rows[done] = -1
            free = np.flatnonzero(done)[: count - following]
            rows[free] = np.arange(following, following + len(free))
            following += len(free)
            if (rows < 0).all():
                assert found is not None
                return found
            which = np.maximum(rows, 0)
            here = jax.tree.map(lambda leaf, which=which: leaf[which], tasks)
            problem = Problem(here.start, here.public, mask, here.reference, keys[which])
            search = self._refill(search, np.isin(np.arange(lanes), free), rows < 0, here.start)
            # While tasks wait, half of the lanes may idle before they are filled again.
            least = lanes // 2 + 1 if following < count else 1
            least = least if steps else lanes + 1
            search = self._go_on(params, here, problem, guide.codes(), search, jnp.int32(least))


def _write(found: Found | None, part: Found, rows: NDArray[Any], ended: NDArray[np.bool_], count: int) -> Found:
    """The record of `count` tasks with the lanes that ended put in."""
    if found is None:
        found = jax.tree.map(lambda leaf: np.zeros((count, *leaf.shape[1:]), leaf.dtype), part)
    for into, leaf in zip(jax.tree.leaves(found), jax.tree.leaves(part), strict=True):
        into[rows[ended]] = leaf[ended]
    return found
