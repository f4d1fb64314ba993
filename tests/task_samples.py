"""A few tasks made by hand, for tests that need tasks but not the generator."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import vm
from vm.prompts import PromptPlan
from vm.tasks import TaskArrays

# Reference, start, and whether x is a list: distances 0, 1, 2, 5 and 8.
LISTINGS = (
    ("SORT", "SORT", True),
    ("FGT 3; SUM", "FGT 2; SUM", True),
    ("TAKE 2; MAXL", "TAKE 2; MINL; NEG", True),
    ("FGT 3; MULI 2; SUM", "", True),
    ("ADDI 3; MULI 2; SUBI 1; MODI 7", "", False),
)
DISTANCES = (0, 1, 2, 5, 8)
LISTS = ([1, 5, 4], [9, 2, 7, 3], [0, 4, 30, -2, 8], [5, 5, 1], [6], [-3, 12, 4, 4])
NUMBERS = (1, -4, 9, 30, 17, 0)


@functools.cache
def tasks():
    """The tasks as arrays with four public and two hidden examples."""
    references = [vm.assemble(reference) for reference, _, _ in LISTINGS]
    starts = [vm.assemble(start) for _, start, _ in LISTINGS]
    inputs = [[_pair(x) for x in (LISTS if is_list else NUMBERS)] for _, _, is_list in LISTINGS]
    stack = lambda leaves: jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *leaves)  # noqa: E731
    inputs = stack([stack(row) for row in inputs])
    reference, start = stack(references), stack(starts)
    run = jax.vmap(jax.vmap(lambda p, i: vm.run(p, i).output, (None, 0)))
    examples = vm.Examples(inputs, run(reference, inputs))
    public, hidden = (jax.tree.map(lambda x, c=c: x[:, c], examples) for c in (slice(4), slice(4, None)))
    count = len(LISTINGS)
    length = jnp.sum(reference.op > 0, axis=-1).astype(jnp.int32)
    kinds = jnp.where(jnp.array([is_list for _, _, is_list in LISTINGS]), vm.Type.LIST, vm.Type.INT).astype(jnp.int32)
    zeros = jnp.zeros(count, jnp.int32)
    plan = PromptPlan(zeros, jnp.zeros((count, 8), jnp.int32), length, kinds)
    return TaskArrays(public, hidden, reference, start, zeros, plan, length)


def _pair(x):
    both = (vm.from_python(x), vm.from_python(None))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *both)
