"""Greedy text generation with a Qwen3: `python -m fuyu_jax.qwen3.generate --help`.

The prompts are encoded once; then one token of each is read a step, in one `lax.while_loop` with a cache of fixed size.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fuyu_jax.qwen3.config import ModelError, read_json
from fuyu_jax.qwen3.locate import TINY, resolve_model
from fuyu_jax.qwen3.model import PromptCache, Qwen3
from fuyu_jax.qwen3.quantisation import QUANTS
from fuyu_jax.qwen3.weights import load_qwen3, weight_bytes

GENERATION_CONFIG = "generation_config.json"
_LONGEST = 4096  # tokens that the command generates at most


class Generated(NamedTuple):
    """Continuations of B prompts. What is real in a row is told by its length, never by the value of an id.

    Attributes:
      tokens: int32 `[B, T]`; 0 behind a row's length.
      log_probs: log-probability of each token, float32 `[B, T]`; 0 behind a row's length.
      lengths: int32 `[B]`, tokens of each row, with the one that ended it.
      ended: bool `[B]`, whether the row's last token is an end id; otherwise it was cut at T tokens.
    """

    tokens: jax.Array
    log_probs: jax.Array
    lengths: jax.Array
    ended: jax.Array


def generate(
    model: Qwen3,
    ids: np.ndarray | jax.Array,
    mask: np.ndarray | jax.Array,
    tokens: int,
    *,
    ends: Sequence[int] = (),
    vocabulary: int | None = None,
) -> Generated:
    """Continue prompts with the most probable token at each step, the lowest id where two are equal.

    Sizes alone decide what is compiled: prompts of other lengths or padding run the same program.

    Args:
      model: as loaded; quantised or with adapters as well.
      ids: int32 `[B, P]` prompts.
      mask: bool `[B, P]`, True at real tokens; padding on any side, of each row its own.
      tokens: T, the most tokens that a row gets.
      ends: ids after which a row is over, wherever it has them; see `end_ids`. None are looked for in the prompt.
      vocabulary: number of tokens of the tokenizer. The model's rows from here on, which no token belongs to, have
        probability 0; None takes every row for a token.

    Raises:
      ValueError: where the shapes differ, a prompt is empty or holds an id without embedding, or a number is out of
        range.
    """
    ids, mask = np.asarray(ids), np.asarray(mask, bool)
    rows = model.config.vocab_size
    vocabulary = rows if vocabulary is None else vocabulary
    if ids.ndim != 2 or ids.shape != mask.shape:
        raise ValueError(f"ids have shape {ids.shape} and mask {mask.shape}; both are [prompts, tokens].")
    if not mask.any(axis=1).all():
        raise ValueError(f"prompt {int(np.argmin(mask.any(axis=1)))} has no token; give each prompt at least one.")
    if (beyond := mask & ((ids < 0) | (ids >= rows))).any():
        raise ValueError(f"a prompt holds token {int(ids[beyond][0])}, but the model has {rows} embeddings.")
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; generate at least 1.")
    if not 1 <= vocabulary <= rows:
        raise ValueError(f"vocabulary is {vocabulary}; the model has {rows} rows, use 1 to {rows}.")
    graph, state = nnx.split(model)
    safe_ids = jnp.asarray(np.where(mask, ids, 0), jnp.int32)
    return _generate(graph, state, safe_ids, jnp.asarray(mask), jnp.asarray(ends, jnp.int32), tokens, vocabulary)


class _Loop(NamedTuple):
    """What a step leaves to the next."""

    step: jax.Array  # []
    last: jax.Array  # [B], tokens to be read next
    cache: PromptCache
    done: Generated


@partial(jax.jit, static_argnames=("graph", "tokens", "vocabulary"))
def _generate(
    graph: nnx.GraphDef,
    state: nnx.State,
    ids: jax.Array,
    mask: jax.Array,
    ends: jax.Array,
    tokens: int,
    vocabulary: int,
) -> Generated:
    model: Qwen3 = nnx.merge(graph, state)
    batch, width = ids.shape
    # The last token of each prompt is left to the loop's first step, which so is like every other.
    last = width - 1 - jnp.argmax(mask[:, ::-1], axis=1).astype(jnp.int32)  # [B]
    is_last = jnp.arange(width, dtype=jnp.int32)[None] == last[:, None]
    cache = model.prefill(model.embed(ids), mask & ~is_last).widened(tokens)

    def going(loop: _Loop) -> jax.Array:
        return (loop.step < tokens) & ~jnp.all(loop.done.ended)

    def step(loop: _Loop) -> _Loop:
        embedded = model.embed(loop.last[:, None])[:, 0]
        hidden, cache = model.decode(embedded, loop.cache, width + loop.step)
        logits = model.logits(hidden)[:, :vocabulary].astype(jnp.float32)
        chosen = jnp.argmax(logits, axis=-1).astype(jnp.int32)  # [B]
        log_prob = jnp.max(jax.nn.log_softmax(logits), axis=-1)
        running = ~loop.done.ended
        done = Generated(
            loop.done.tokens.at[:, loop.step].set(jnp.where(running, chosen, 0)),
            loop.done.log_probs.at[:, loop.step].set(jnp.where(running, log_prob, 0.0)),
            loop.done.lengths + running.astype(jnp.int32),
            loop.done.ended | jnp.any(chosen[:, None] == ends[None], axis=1),
        )
        return _Loop(loop.step + 1, chosen, cache, done)

    start = Generated(
        jnp.zeros((batch, tokens), jnp.int32),
        jnp.zeros((batch, tokens), jnp.float32),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros(batch, bool),
    )
    first = jnp.take_along_axis(ids, last[:, None], axis=1)[:, 0]
    return jax.lax.while_loop(going, step, _Loop(jnp.int32(0), first, cache, start)).done


def end_ids(folder: str | Path) -> tuple[int, ...]:
    """The ids that end a text, from `generation_config.json`, else from `config.json`; none where neither has any.

    Raises:
      ModelError: where a file cannot be read, or its `eos_token_id` is neither an id nor a list of ids.
    """
    for name in (GENERATION_CONFIG, "config.json"):
        path = Path(folder) / name
        if name == GENERATION_CONFIG and not path.exists():
            continue
        if (ends := _eos(path, read_json(path, "a model folder holds it beside the weights"))) is not None:
            return ends
    return ()


def _eos(path: Path, entries: Mapping[str, Any]) -> tuple[int, ...] | None:
    value = entries.get("eos_token_id")
    if value is None:
        return None
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
        raise ModelError(f"eos_token_id in {path} is {value!r}; use the number of a token, or a list of them.")
    return tuple(ids)


def main(argv: Sequence[str]) -> None:
    """Load a model and print how it goes on with each prompt."""
    # The port stands on its own; only its command needs the rest of the package.
    from fuyu_jax.runs.command_line import Parser
    from fuyu_jax.runs.errors import UserError
    from fuyu_jax.runs.progress import Progress
    from fuyu_jax.tokenizer import load_tokenizer

    parser = Parser("python -m fuyu_jax.qwen3.generate", "Continues prompts with a Qwen3's most probable tokens.")
    parser.add_argument("--model", required=True, help="folder in Hugging Face layout, or a hub id in the local cache")
    parser.add_argument("--prompt", required=True, action="append", help="text to continue; may be given several times")
    parser.add_argument("--tokens", type=int, default=32, help="most tokens of each continuation (default 32)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of weights and computation"
    )
    parser.add_argument("--quant", choices=QUANTS, default="none", help="how the matrices are kept (default none)")
    options = parser.parse_args(argv)
    if options.model == TINY:
        raise UserError("--model is 'tiny', which has no weights before it is trained; give a folder with weights.")
    if not 1 <= options.tokens <= _LONGEST:
        raise UserError(f"--tokens is {options.tokens}; use 1 to {_LONGEST}.")
    try:
        folder = resolve_model(options.model)
        ends = end_ids(folder)  # first: a config that cannot be read is no fault of the tokenizer
        tokenizer = load_tokenizer(folder)
        prompts = [tokenizer.encode(text) for text in options.prompt]
        if [] in prompts:
            raise UserError("a --prompt is empty; give a text to continue.")
        with Progress("loading weights", weight_bytes(folder), unit="B") as progress:
            kept = options.dtype if options.quant == "none" else None
            model = load_qwen3(folder, options.dtype, param_dtype=kept, quant=options.quant, advance=progress.update)
        width = max(len(prompt) for prompt in prompts)
        ids = np.array([[0] * (width - len(prompt)) + prompt for prompt in prompts], np.int32)
        mask = np.array([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])
        vocabulary = min(len(tokenizer), model.config.vocab_size)
        result = generate(model, ids, mask, options.tokens, ends=ends, vocabulary=vocabulary)
    except ValueError as error:
        raise UserError(str(error)) from error
    for prompt, row, length, ended in zip(prompts, result.tokens, result.lengths, result.ended, strict=True):
        # Both at once: what stands between two tokens is the tokenizer's business.
        print(tokenizer.decode(prompt + np.asarray(row)[: int(length)].tolist()))
        print(f"[{int(length)} tokens, {'ended' if ended else 'cut'}]")


if __name__ == "__main__":
    from fuyu_jax.runs.errors import run_main

    sys.exit(run_main(main))
