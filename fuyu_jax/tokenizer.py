"""Prompt text to token ids, with the tokenizer that a model folder brings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Tokenizer:
    """A Hugging Face tokenizer reduced to what prompts need.

    Attributes:
      pad_id: id for padding, 0 where the tokenizer names none. Padding is told by masks and lengths, never by this id,
        which may be a real token's (Qwen3's is its end-of-text).
      unknown_id: id of words outside the vocabulary, None where every text can be encoded.
    """

    def __init__(self, backend: Any) -> None:
        """Wrap a `transformers` tokenizer."""
        self._backend = backend
        self.pad_id: int = 0 if backend.pad_token_id is None else backend.pad_token_id
        self.unknown_id: int | None = backend.unk_token_id

    def __len__(self) -> int:
        """Number of tokens; a model's embedding may have more rows."""
        return len(self._backend)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        return self._backend.encode(text, add_special_tokens=False)

    def decode(self, ids: list[int]) -> str:
        """Text of token ids."""
        return self._backend.decode(ids)

    def unknown_words(self, text: str) -> list[str]:
        """The pieces of a text that the tokenizer has no token for, in order."""
        if self.unknown_id is None:
            return []
        encoded = self._backend(text, add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        return [text[start:end] for token, (start, end) in pairs if token == self.unknown_id]


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load the tokenizer of a model folder, without touching the network.

    Raises:
      ValueError: where the folder holds no tokenizer that can be read.
    """
    # Without PyTorch, which nothing here needs, transformers would advise to install it on every import.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer  # slow to import, and only needed here

    if not (Path(folder) / "tokenizer.json").exists():
        raise ValueError(f"{folder} has no tokenizer.json; copy the tokenizer's files beside the model's config.json.")
    try:
        return Tokenizer(AutoTokenizer.from_pretrained(str(folder), local_files_only=True))
    except Exception as error:
        raise ValueError(f"the tokenizer in {folder} cannot be read ({error}); copy its files again.") from error
