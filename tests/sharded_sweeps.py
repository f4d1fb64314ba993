"""Digests of every integer that sweeps and rollouts give; as a script, printed for the devices of its process."""

import hashlib
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from task_samples import tasks as sample_tasks

import vm
from fuyu_jax.controller import DEFAULT_RULES, Controller
from fuyu_jax.evaluate import baselines
from fuyu_jax.evaluate.measure import lane_keys
from fuyu_jax.learn.arms.grpo_echo import GrpoOptions, grpo_arm
from fuyu_jax.learn.credit import CreditOptions
from fuyu_jax.learn.experience import RolloutOptions
from fuyu_jax.policy import Policy, make_play, split_controller
from fuyu_jax.qwen3 import Qwen3, Qwen3Config, resolve_model
from fuyu_jax.rollout import repeat_lanes
from fuyu_jax.tokenizer import load_tokenizer
from vm.prompts import longest_prompt, token_table
from vm.tasks import Tasks

MACHINE = vm.DEFAULT_SETTINGS
BUDGETS = (0, 2)
KEY = jax.random.key(5, impl="threefry2x32")


def digest(tree):
    """Of all leaves of integers and booleans."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    whole = [leaf for leaf in leaves if leaf.dtype.kind in "bi"]
    assert whole
    return hashlib.sha256(b"".join(f"{leaf.shape}".encode() + leaf.tobytes() for leaf in whole)).hexdigest()


def some_tasks(count):
    rows = np.arange(count) % len(sample_tasks().family)
    return jax.tree.map(lambda leaf: leaf[rows], sample_tasks())


def small_policy(rules=DEFAULT_RULES):
    """A policy of one layer, drawn at random."""
    tokens = token_table(load_tokenizer(resolve_model("tiny")).encode)
    config = Qwen3Config(
        vocab_size=int(tokens.ids.max()) + 1, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=1e6, tie_word_embeddings=True,
    )  # fmt: skip
    rngs = nnx.Rngs(jax.random.key(0, impl="threefry2x32"))
    controller = Controller(Qwen3(config, rngs=rngs), MACHINE, examples=4, factored=rules.factored, rngs=rngs)
    graph, params = split_controller(controller)
    return Policy(graph, MACHINE, tokens, longest_prompt(tokens, 5), rules=rules), params


class FixedStream:
    """Gives the same tasks again and again."""

    def next_batch(self, count):
        return some_tasks(count), 0


def part_of_a_chunk():
    """A split whose only chunk is not full."""
    arrays = some_tasks(13)
    count = len(arrays.family)
    return {"val_mixed": Tasks("val_mixed", 0, np.arange(count), [""] * count, arrays, np.arange(count), {})}


def digest_rows(outcomes):
    return hashlib.sha256(repr(list(outcomes.rows())).encode()).hexdigest()


def sweeps():
    """Baselines that need no search."""
    splits = part_of_a_chunk()
    random = baselines.random_valid(splits, BUDGETS, MACHINE)
    reference = baselines.oracle_reference(splits, BUDGETS, baselines.solved_at_start(random), MACHINE)
    return {"random_valid": digest_rows(random), "oracle_reference": digest_rows(reference)}


def search():
    """The oracle's search."""
    return {"oracle_search": digest_rows(baselines.oracle_search(part_of_a_chunk(), BUDGETS, 1, MACHINE)[0])}


def rollouts():
    """Argmax and sampled episodes."""
    policy, params = small_policy()
    tasks = some_tasks(8)
    budget = jnp.broadcast_to(jnp.array([4, 2], jnp.int32), (8, 2))
    keys = lane_keys(KEY, jnp.arange(8), 2)
    roll, starts = make_play(policy, no_repeat=True), repeat_lanes(tasks.start, 2)
    return {
        "greedy": digest(roll(params, tasks, starts, budget, keys, jnp.asarray(False))),
        "sampled": digest(roll(params, tasks, starts, budget, keys, jnp.asarray(True))),
    }


def experience():
    """Decisions of sampled episodes with everything that is learned from them."""
    policy, params = small_policy()
    arm = grpo_arm(
        policy,
        make_play(policy, no_repeat=True),
        FixedStream(),
        8,
        RolloutOptions(group=2, states=2),
        CreditOptions("reachability"),
        GrpoOptions(kl_weight=0.1, anchor_weight=1.0, echo_weight=0.1),
    )
    return {"experience": digest(arm.collect(params, params, KEY)[0])}


if __name__ == "__main__":
    digests = [
        {"sweeps": sweeps, "search": search, "rollouts": rollouts, "experience": experience}[name]()
        for name in sys.argv[1:]
    ]
    print(json.dumps([jax.device_count(), *digests]))
