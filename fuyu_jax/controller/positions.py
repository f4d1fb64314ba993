"""Where a prompt's tokens stand: one after the other, or with a gap, so that longer prompts hold no new distances.

A transformer that never met two tokens so far apart reads them badly. Positions drawn wider than needed teach all
distances of longer inputs on short ones (Ruoss et al., 2023, arXiv 2305.16843). Here a prompt gets a single gap, which
leaves all but one pair of neighbours as they are.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from fuyu_jax.qwen3.model import token_positions
from vm.beam import hash_numbers


def prompt_positions(ids: jax.Array, mask: jax.Array, most: int) -> jax.Array:
    """Positions of prompts' tokens, with up to `most` blank ones before one token that is not the first.

    Which token, and how many, is drawn from the prompt's own tokens: a prompt always reads the same, and no key is
    needed. Where most is 0 the real tokens are counted.

    Args:
      ids: int32 `[B, P]`.
      mask: bool `[B, P]`, true for real tokens, padding on the right.
      most: static.

    Returns:
      int32 `[B, P]`.
    """
    chex.assert_rank(ids, 2)
    chex.assert_equal_shape([ids, mask])
    places = token_positions(mask)
    if not most:
        return places
    drawn = hash_numbers(jnp.where(mask, ids, 0))  # uint32 [B]
    gap = ((drawn & 0xFFFF) % (most + 1)).astype(jnp.int32)
    choices = jnp.maximum(jnp.sum(mask, axis=-1) - 1, 1).astype(jnp.uint32)
    cut = 1 + ((drawn >> 16) % choices).astype(jnp.int32)
    return places + jnp.where(places >= cut[:, None], gap[:, None], 0)
