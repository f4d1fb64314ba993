"""The embedded controller and the tasks with the longest prompts: what rollouts and training are measured on."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import vm
from fuyu_jax.policy import Params, Policy
from fuyu_jax.runs.policies import build_policy
from fuyu_jax.runs.settings import PilotSettings
from vm.tasks import TaskArrays

PROMPT_TOKENS = 64
SPLIT = "hard_composition"  # its references are the longest, and so are their prompts


def embedded_policy() -> tuple[Policy, Params]:
    """The embedded controller as the `pilot` preset starts it, with prompts padded as that preset pads them."""
    built = build_policy(PilotSettings())
    return built.policy, built.params


def with_long_prompts(policy: Policy) -> Policy:
    """The policy with prompts padded to `PROMPT_TOKENS`."""
    return dataclasses.replace(policy, prompt_tokens=PROMPT_TOKENS)


def long_tasks(count: int) -> TaskArrays:
    """The first tasks of the split with the longest prompts: arrays `[count, ...]` on the device."""
    return jax.tree.map(jnp.asarray, vm.make_tasks(SPLIT, 0, count).arrays)


def first(tasks: TaskArrays, count: int) -> TaskArrays:
    """The first `count` tasks."""
    return jax.tree.map(lambda leaf: leaf[:count], tasks)


def describe_prompts(policy: Policy, tasks: TaskArrays) -> str:
    """A sentence about the prompts' lengths."""
    real = np.asarray(policy.prompt_ids(tasks)[1].sum(axis=1))  # [N]
    return (
        f"Prompts are padded to {policy.prompt_tokens} tokens, all of them computed; {real.mean():.0f} are "
        f"real on average ({real.min()} to {real.max()})."
    )
