"""Writes the embedded model's folder: `python -m fuyu_jax.models.make_tiny`, after any change to the prompts.

The folder holds `config.json`, `tokenizer.json` and `tokenizer_config.json`, and no weights: they are drawn from the
run's seed. The tokenizer has one token for each word, number and punctuation mark of any prompt.
"""

from __future__ import annotations

import json
from typing import Any

from fuyu_jax.qwen3.config import Qwen3Config
from fuyu_jax.qwen3.locate import TINY, resolve_model
from vm.prompts import vocabulary

PAD, UNKNOWN = "<pad>", "<unk>"
WORD = r"[A-Za-z]+|\d+|[^\sA-Za-z\d]"
VOCABULARY_MULTIPLE = 8


def tokens() -> list[str]:
    """All tokens in the order of their ids."""
    return [PAD, UNKNOWN, *sorted({word.lower() for word in vocabulary()})]


def config() -> Qwen3Config:
    """Sizes of the embedded model, about a million parameters."""
    return Qwen3Config(
        vocab_size=-(-len(tokens()) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        rope_theta=1e6,
        tie_word_embeddings=True,
    )


def tokenizer() -> dict[str, Any]:
    """A word-level tokenizer in the format of the `tokenizers` library."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id_, "content": content, **flags} for id_, content in enumerate((PAD, UNKNOWN))],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": WORD}, "behavior": "Removed", "invert": True},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {t: id_ for id_, t in enumerate(tokens())}, "unk_token": UNKNOWN},
    }


def files() -> dict[str, str]:
    """Text of each file of the folder, by name."""
    contents = {
        "config.json": config().to_dict(),
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "unk_token": UNKNOWN,
            "clean_up_tokenization_spaces": False,
        },
    }
    return {name: json.dumps(content, indent=1, ensure_ascii=False) + "\n" for name, content in contents.items()}


def main() -> None:
    """Write the folder in the package."""
    folder = resolve_model(TINY)
    folder.mkdir(exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
        print(f"wrote {folder / name}")


if __name__ == "__main__":
    main()
