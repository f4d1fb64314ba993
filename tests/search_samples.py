"""Small tasks, a scripted model and a best-first search in plain Python, to compare searches with."""

import heapq
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import vm
from fuyu_jax.search.state import Advice
from vm import reference
from vm.isa import OPCODES, READS_ARG

SETTINGS = vm.Settings(slots=2, stack=3, width=4, args=2)
PER_SLOT = len(OPCODES) + SETTINGS.args
EDITS = SETTINGS.num_actions - 1
# Start and reference of each task, and whether x is a list; two edits apart at most, but for the last.
LISTINGS = (
    ("REV", "REV", True),
    ("REV", "SORT", True),
    ("", "SORT; HEAD", True),
    ("NEG; NEG", "ABS; ADDI 1", False),
    ("DROP 1; SUM", "TAKE 1; MAXL", True),
    ("SUM; SUM", "FGT 1; SUM", True),
)
LISTS = ([3, 1, 2], [5, 0, 4, 4], [-2, 7], [1, 9, 3, 2], [0, 6, -1])
NUMBERS = (4, -3, 0, -8, 11)
PUBLIC = 3


class Tasks(NamedTuple):
    """What a search reads of tasks."""

    public: vm.Examples
    hidden: vm.Examples
    start: vm.Program
    reference: vm.Program


def pairs_of(listing):
    program = vm.assemble(listing, SETTINGS)
    return tuple((int(op), int(arg)) for op, arg in zip(program.op, program.arg, strict=True))


def inputs_of(is_list):
    return LISTS if is_list else NUMBERS


def outputs_of(pairs, xs):
    return [reference.run(pairs, (x,), SETTINGS)[0] for x in xs]


def tasks():
    """The tasks as arrays; targets come from the reference interpreter."""
    stack = lambda trees: jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)  # noqa: E731
    nothing = vm.from_python(None, SETTINGS)
    inputs, targets = [], []
    for _, listing, is_list in LISTINGS:
        xs = inputs_of(is_list)
        inputs.append(stack([stack([vm.from_python(x, SETTINGS), nothing]) for x in xs]))
        cells = outputs_of(pairs_of(listing), xs)
        targets.append(stack([vm.Value(*(np.asarray(part, np.int32) for part in cell)) for cell in cells]))
    every = vm.Examples(stack(inputs), stack(targets))
    public, hidden = (
        jax.tree.map(lambda leaf, cut=cut: leaf[:, cut], every) for cut in (slice(PUBLIC), slice(PUBLIC, None))
    )
    start, goal = (stack([vm.assemble(row[place], SETTINGS) for row in LISTINGS]) for place in (0, 1))
    return Tasks(public, hidden, start, goal)


def scripted(xp, op, arg):
    """Logits of all edits, edits left and trust of a program `[L]`, all different: numbers from a formula."""
    place = xp.arange(1, SETTINGS.slots + 1)
    number = (xp.sum((op * 2 + arg) * place * place) % 97) / 97.0
    edit = xp.arange(EDITS) / EDITS
    logits = 3 * xp.sin(7 * number + 40 * edit * edit + 3)
    return logits, 2 + xp.sin(29 * number), (xp.sin(50 * number) + 1) / 2


def make_scripted(params, tasks, judged):
    """The scripted model, as a searcher takes it."""
    del params, tasks, judged
    one = lambda program: Advice(*scripted(jnp, *program))  # noqa: E731
    return lambda program, results, edits: jax.vmap(one)(program)


def neighbours(pairs):
    """The valid edits of a program, by number, and the programs they give."""
    found = {}
    for slot, value in itertools.product(range(SETTINGS.slots), range(PER_SLOT)):
        op, arg = pairs[slot]
        if value < len(OPCODES):
            new = (value, arg if READS_ARG[value] else 0)
            valid = value != op
        else:
            new = (op, value - len(OPCODES))
            valid = READS_ARG[op] and new[1] != arg
        if valid:
            found[slot * PER_SLOT + value] = (*pairs[:slot], new, *pairs[slot + 1 :])
    return found


def within(pairs, edits):
    """The fewest edits to each program within so many: plain breadth-first search."""
    depth = {pairs: 0}
    level = [pairs]
    for distance in range(1, edits + 1):
        level = [new for old in level for new in neighbours(old).values()]
        level = [new for new in dict.fromkeys(level) if new not in depth]
        depth |= dict.fromkeys(level, distance)
    return depth


def best_first(start, xs, targets, *, edits, horizon, budget, value, same_outputs, confirm):
    """The programs tried, in order, the one that ended the search (or None), and the number that were read."""
    queue, order, tried, seen, passes = [(0.0, 0, start, 0, 0.0)], 0, [], {}, 0
    best = {start: 0.0}
    while queue and len(tried) < budget:
        rank, _, pairs, depth, log_prob = heapq.heappop(queue)
        if pairs in tried or best[pairs] != rank:
            continue
        tried.append(pairs)
        outputs = tuple(outputs_of(pairs, xs))
        before = seen.get(outputs, 0)
        seen[outputs] = before + 1
        logits, left, trust = scripted(np, *np.array(pairs).T)
        right = list(outputs) == list(targets)
        dropped = (same_outputs == "drop" and before > 0) or depth >= horizon
        if right and confirm:
            passes += 1
            if trust >= 0.5:
                return tried, pairs, passes
        elif right:
            return tried, pairs, passes
        if dropped or len(tried) == budget:
            continue
        passes += not (right and confirm)
        valid = neighbours(pairs)
        total = math.log(sum(math.exp(logits[edit]) for edit in valid))
        left = max(left - 1, 0) if value else 0.0
        for edit in sorted(valid, key=lambda edit: -logits[edit])[:edits]:
            path, g = log_prob + logits[edit] - total, depth + 1
            rank = math.log(g + left) - path * (1 + left / g)
            rank += math.log(1 + before) if same_outputs == "discount" else 0
            if valid[edit] not in tried and rank < best.get(valid[edit], math.inf):
                best[valid[edit]] = rank
                heapq.heappush(queue, (rank, order, valid[edit], g, path))
                order += 1
    return tried, None, passes
