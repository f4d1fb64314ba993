"""Greedy generation: the texts of `transformers`, and those of full passes without a cache."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from qwen3_samples import SMALL, call, file_tensors, lively_model, threefry, write_folder, write_parity_folder

from fuyu_jax.qwen3 import PROJECTIONS, ModelError, Qwen3, adapt, load_qwen3, read_config, resolve_model
from fuyu_jax.qwen3.generate import Generated, end_ids, generate, main
from fuyu_jax.runs.errors import run_main
from fuyu_jax.tokenizer import load_tokenizer

GOLDEN = dict(np.load(Path(__file__).parent / "golden" / "qwen3_generation.npz"))
TOKENS = GOLDEN["tokens"].shape[1]
LOG_PROB_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def golden_model(tmp_path_factory: pytest.TempPathFactory) -> Qwen3:
    return load_qwen3(write_parity_folder(tmp_path_factory.mktemp("model")))


def padded(side: str) -> tuple[np.ndarray, np.ndarray]:
    """The golden prompts, padded on a side; "mixed" has another side in every second row. Padding is 39."""
    ids, mask = np.full_like(GOLDEN["ids"], 39), np.zeros_like(GOLDEN["mask"])
    for row, (tokens, real) in enumerate(zip(GOLDEN["ids"], GOLDEN["mask"], strict=True)):
        length = real.sum()
        right = side == "right" or (side == "mixed" and row % 2)
        place = slice(0, length) if right else slice(ids.shape[1] - length, None)
        ids[row, place], mask[row, place] = tokens[real], True
    return ids, mask


def behind(lengths: np.ndarray, width: int) -> np.ndarray:
    """True from the end of each row."""
    return np.arange(width)[None] >= np.asarray(lengths)[:, None]


@pytest.mark.parametrize("side", ["left", "right", "mixed"])
def test_the_texts_are_those_of_transformers(side: str, golden_model: Qwen3) -> None:
    result = generate(golden_model, *padded(side), TOKENS)
    np.testing.assert_array_equal(result.tokens, GOLDEN["tokens"])
    np.testing.assert_allclose(result.log_probs, GOLDEN["log_probs"], rtol=0, atol=LOG_PROB_TOLERANCE)
    assert np.all(result.lengths == TOKENS) and not result.ended.any()
    assert min(len(set(row)) for row in GOLDEN["tokens"].tolist()) > 6  # no loop of one token


def test_a_text_ends_at_any_end_id_and_not_elsewhere(golden_model: Qwen3) -> None:
    result = generate(golden_model, *padded("left"), TOKENS, ends=GOLDEN["ends"].tolist())
    np.testing.assert_array_equal(result.lengths, GOLDEN["lengths"])
    np.testing.assert_array_equal(result.ended, [True, True, False])
    over = behind(GOLDEN["lengths"], TOKENS)
    np.testing.assert_array_equal(result.tokens, np.where(over, 0, GOLDEN["tokens"]))
    assert np.all(np.asarray(result.log_probs)[over] == 0) and np.all(np.asarray(result.log_probs)[~over] < 0)
    assert [int(result.tokens[row, GOLDEN["lengths"][row] - 1]) for row in (0, 1)] == GOLDEN["ends"].tolist()


def test_an_end_id_as_padding_or_in_the_prompt_ends_nothing(golden_model: Qwen3) -> None:
    """Qwen3's padding id is one of its end ids."""
    ids, mask = padded("right")
    end = int(GOLDEN["ends"][0])
    wanted = generate(golden_model, ids, mask, TOKENS, ends=[end])
    again = generate(golden_model, np.where(mask, ids, end), mask, TOKENS, ends=[end])
    jax.tree.map(np.testing.assert_array_equal, again, wanted)
    ids[2, mask[2]] = end
    assert int(generate(golden_model, ids, mask, 1, ends=[end]).lengths[2]) == 1
    assert 0 not in GOLDEN["tokens"]  # 0 fills rows that are over
    again = generate(golden_model, *padded("right"), TOKENS, ends=[0, end])
    jax.tree.map(np.testing.assert_array_equal, again, wanted)


def by_full_passes(model: Qwen3, prompt: list[int], tokens: int) -> tuple[list[int], list[float]]:
    """Greedy continuation of one prompt, each token by a pass over all before it."""
    ids, width, log_probs = list(prompt), len(prompt) + tokens, []
    for _ in range(tokens):
        mask = np.arange(width) < len(ids)
        row = np.zeros(width, np.int32)
        row[: len(ids)] = ids
        hidden = call(model, jnp.asarray(row[None]), attention_mask=jnp.asarray(mask[None]))
        scores = np.asarray(jax.nn.log_softmax(call(model, hidden[0, len(ids) - 1], method="logits")))
        ids.append(int(scores.argmax()))
        log_probs.append(float(scores.max()))
    return ids[len(prompt) :], log_probs


def with_adapters() -> Qwen3:
    model = lively_model()
    adapt(model, 3, 6.0, PROJECTIONS, nnx.Rngs(threefry(3)))
    adapters = nnx.state(model, nnx.LoRAParam)
    nnx.update(model, jax.tree.map(lambda leaf: leaf + 0.05, adapters))
    return model


@pytest.mark.parametrize("kind", ["plain", "adapters", "nf4"])
def test_the_cache_gives_what_full_passes_give(kind: str, tmp_path: Path) -> None:
    if kind == "nf4":
        model = load_qwen3(write_folder(tmp_path, SMALL, file_tensors(SMALL, seed=4)), quant="nf4")
    else:
        model = lively_model() if kind == "plain" else with_adapters()
    ids = np.random.default_rng(1).integers(0, SMALL.vocab_size, (3, 5))
    lengths = np.array([5, 1, 3])
    result = generate(model, ids, ~behind(lengths, 5), 6)
    for row, length in enumerate(lengths):
        tokens, log_probs = by_full_passes(model, ids[row, :length].tolist(), 6)
        assert result.tokens[row].tolist() == tokens
        np.testing.assert_allclose(result.log_probs[row], log_probs, rtol=0, atol=LOG_PROB_TOLERANCE)


def test_rows_past_the_tokenizer_have_probability_zero() -> None:
    """Ids from 30 on belong to no token; their scores are made the largest, and count for nothing."""
    config = replace(SMALL, tie_word_embeddings=False)
    padded_model = lively_model(config)
    head = padded_model.lm_head[...]
    padded_model.lm_head.set_value(head.at[:, 30:].set(3 * jnp.sign(head[:, :1])))
    exact = lively_model(config)
    exact.lm_head.set_value(head[:, :30])
    ids, mask = np.array([[1, 2, 3], [4, 5, 6]]), np.ones((2, 3), bool)
    assert np.max(generate(padded_model, ids, mask, 8).tokens) >= 30  # the trap is there
    result = generate(padded_model, ids, mask, 8, vocabulary=30)
    assert np.max(result.tokens) < 30
    for row in range(2):
        tokens, log_probs = by_full_passes(exact, ids[row].tolist(), 8)
        assert result.tokens[row].tolist() == tokens
        np.testing.assert_allclose(result.log_probs[row], log_probs, rtol=0, atol=LOG_PROB_TOLERANCE)


def test_one_compilation_and_no_loop_in_python(golden_model: Qwen3, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    decode = Qwen3.decode
    monkeypatch.setattr(Qwen3, "decode", lambda *args: traces.append(1) or decode(*args))
    ids, mask = padded("left")
    generate(golden_model, ids[:2], mask[:2], 9, ends=[1, 2])
    first = len(traces)
    assert 0 < first <= 2
    for side in ("right", "mixed"):
        ids, mask = padded(side)
        generate(golden_model, ids[1:], mask[1:], 9, ends=[5, 6])
    assert len(traces) == first


def test_bfloat16_runs_and_keeps_close() -> None:
    ids, mask = np.array([[1, 2, 3]]), np.ones((1, 3), bool)
    coarse = generate(lively_model(dtype=jnp.bfloat16), ids, mask, 1)
    fine = generate(lively_model(), ids, mask, 1)
    assert coarse.log_probs.dtype == jnp.float32
    assert abs(float(coarse.log_probs[0, 0] - fine.log_probs[0, 0])) < 0.2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mask": np.ones((1, 3), bool)}, r"\(2, 3\) and mask \(1, 3\)"),
        ({"mask": np.array([[1, 1, 1], [0, 0, 0]])}, "prompt 1 has no token"),
        ({"ids": np.array([[1, 2, 40], [0, 0, 0]])}, "token 40, but the model has 40"),
        ({"tokens": 0}, "tokens is 0"),
        ({"vocabulary": 41}, "vocabulary is 41"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], words: str) -> None:
    given = {"ids": np.zeros((2, 3), int), "mask": np.ones((2, 3), bool), "tokens": 2} | change
    with pytest.raises(ValueError, match=words):
        generate(lively_model(), **given)


def test_end_ids_from_either_file(tmp_path: Path) -> None:
    config, generation = tmp_path / "config.json", tmp_path / "generation_config.json"
    config.write_text("{}")
    assert end_ids(tmp_path) == ()
    config.write_text('{"eos_token_id": 7}')
    assert end_ids(tmp_path) == (7,)
    generation.write_text('{"eos_token_id": [5, 6], "pad_token_id": 6}')
    assert end_ids(tmp_path) == (5, 6)
    generation.write_text('{"eos_token_id": null}')
    assert end_ids(tmp_path) == (7,)
    for wrong in ('"x"', "[1, true]", "-1"):
        generation.write_text(f'{{"eos_token_id": {wrong}}}')
        with pytest.raises(ModelError, match="eos_token_id in .*generation_config.json"):
            end_ids(tmp_path)


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's sizes and tokenizer with random weights, and an end id."""
    config = read_config(resolve_model("tiny"))
    folder = write_folder(tmp_path_factory.mktemp("tiny"), config, file_tensors(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(resolve_model("tiny") / name, folder / name)
    return folder


def test_the_command_prints_how_each_prompt_goes_on(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, prompts = load_tokenizer(tiny_folder), ["keep only", "the sum of"]
    main(["--model", str(tiny_folder), "--prompt", prompts[0], "--prompt", prompts[1], "--tokens", "5"])
    printed = capsys.readouterr().out
    for prompt in prompts:
        ids = np.array([tokenizer.encode(prompt)])
        result: Generated = generate(load_qwen3(tiny_folder), ids, np.ones(ids.shape), 5, vocabulary=len(tokenizer))
        words = [tokenizer.decode([token]) for token in result.tokens[0].tolist()]
        assert f"{prompt} {' '.join(words)}\n[5 tokens, cut]\n" in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "tiny", "--prompt", "keep"], "'tiny'"),
        (["--model", "{folder}", "--prompt", ""], "--prompt is empty"),
        (["--model", "{folder}", "--prompt", "keep", "--tokens", "0"], "--tokens is 0"),
        (["--model", "{folder}/nowhere", "--prompt", "keep"], "is no folder"),
        (["--prompt", "keep"], "--model"),
        (["--model", "{folder}", "--prompt", "keep", "--token", "3"], "--tokens"),
    ],
)
def test_bad_commands_end_with_one_sentence(
    options: list[str], words: str, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(main, [option.replace("{folder}", str(tiny_folder)) for option in options]) == 2
    message = capsys.readouterr().err
    assert words in message and message.startswith("error: ") and message.count("\n") == 1


def test_a_damaged_config_is_not_blamed_on_the_tokenizer(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "damaged")
    (folder / "config.json").write_text("not json")
    assert run_main(main, ["--model", str(folder), "--prompt", "keep"]) == 2
    message = capsys.readouterr().err
    assert str(folder / "config.json") in message and "tokenizer" not in message


@pytest.mark.parity
@pytest.mark.parametrize("tied", [True, False])
def test_live_against_transformers(tied: bool, tmp_path: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(7)
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=16,
        tie_word_embeddings=tied,
        initializer_range=0.25,
    )
    reference = transformers.Qwen3ForCausalLM(config).eval()
    reference.save_pretrained(tmp_path)
    mask = ~behind(np.array([6, 2, 4, 1]), 6)
    ids = np.random.default_rng(0).integers(0, 64, mask.shape)
    left = [np.pad(row[real], (6 - real.sum(), 0)) for row, real in zip(ids, mask, strict=True)]
    out = reference.generate(
        torch.tensor(np.array(left)),
        attention_mask=torch.tensor(mask[:, ::-1].astype(np.int64)),
        do_sample=False,
        max_new_tokens=10,
        min_new_tokens=10,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    best = torch.stack(out.scores, dim=1).log_softmax(-1).topk(2, dim=-1).values.numpy()
    clear = np.cumprod(best[..., 0] - best[..., 1] > 1e-3, axis=1).astype(bool)  # up to the first near tie
    assert clear.mean() > 0.9
    result = generate(load_qwen3(tmp_path), ids, mask, 10)
    np.testing.assert_array_equal(np.asarray(result.tokens)[clear], out.sequences[:, 6:].numpy()[clear])
    np.testing.assert_allclose(np.asarray(result.log_probs)[clear], best[..., 0][clear], rtol=0, atol=1e-4)
