"""The embedded model's folder and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuyu_jax.models import make_tiny
from fuyu_jax.qwen3 import read_config, resolve_model
from fuyu_jax.tokenizer import Tokenizer, load_tokenizer
from vm.prompts import fragments, longest_prompt, token_table, vocabulary, words

FOLDER = resolve_model("tiny")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(FOLDER)


def test_the_packaged_folder_is_current() -> None:
    for name, text in make_tiny.files().items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, "run python -m fuyu_jax.models.make_tiny"
    assert {path.name for path in FOLDER.iterdir()} == set(make_tiny.files())


def test_sizes(tokenizer: Tokenizer) -> None:
    config = read_config(FOLDER)
    assert len(tokenizer) <= config.vocab_size < len(tokenizer) + 8
    assert config.vocab_size % 8 == 0
    kernels = 128 * 128 + 2 * 128 * 64 + 128 * 128 + 3 * 128 * 384
    assert 4 * kernels + config.vocab_size * 128 < 1_000_000


def test_every_word_of_every_prompt_is_one_known_token(tokenizer: Tokenizer) -> None:
    known = make_tiny.tokens()
    for word in vocabulary():
        (token,) = tokenizer.encode(word)
        assert known[token] == word.lower()
    assert tokenizer.pad_id == 0
    assert not {tokenizer.pad_id, tokenizer.unknown_id} & {t for text in fragments() for t in tokenizer.encode(text)}


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abXY 019,.;:<=>-_(?\n\té", max_size=40))
def test_texts_split_as_prompts_do(tokenizer: Tokenizer, text: str) -> None:
    lookup = {token: number for number, token in enumerate(make_tiny.tokens())}
    wanted = [lookup.get(word.lower(), 1) for word in words(text.lower())]
    assert tokenizer.encode(text) == wanted


def test_unknown_words_are_named(tokenizer: Tokenizer) -> None:
    assert tokenizer.unknown_words("Given x, Frobnicate 99 then add 3.") == ["Frobnicate", "99"]
    assert tokenizer.unknown_words("Given x, add 3.") == []
    assert tokenizer.decode(tokenizer.encode("add 3")) == "add 3"


def test_prompts_fit(tokenizer: Tokenizer) -> None:
    table = token_table(tokenizer.encode)
    assert longest_prompt(table, 5) <= 48
    assert longest_prompt(table, 7) <= 64


def test_folders_without_a_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tokenizer.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(ValueError, match="cannot be read"):
        load_tokenizer(tmp_path)
