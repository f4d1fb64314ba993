"""Prompts: what they say decides the program, held-out words are known words, and tokens in jit equal encoded text."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from vm import prompts
from vm.isa import OPCODES, READS_ARG
from vm.phrases import FRAMES, PHRASES, PHRASINGS, TRAIN_FRAMES, TRAIN_PHRASINGS
from vm.types import Program, Type

INPUT = OPCODES.index("INPUT")
SLOTS = 8
PHRASE_TOKENS = 6


def word_encoder():
    ids = {word: number + 3 for number, word in enumerate(prompts.vocabulary())}
    return lambda text: [ids[word] for word in prompts.words(text)]


def byte_level_bpe(pre_tokenizer):
    """A small byte-level BPE trained on prompts, so that words merge with the space before them."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    corpus = [text.format(k=k) for row in PHRASES.values() for text in row[::2] for k in (7, 15)]
    tokenizer.train_from_iterator([f"Start from the list x: {text}, then add 13." for text in corpus], trainer)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def qwen_pre_tokenizer():
    """Pieces as Qwen makes them: each digit alone, the space before a number apart, punctuation with its space."""
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def tokenizer_of(folder):
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


ENCODERS = {
    "words": word_encoder,
    "bpe, numbers in one piece": lambda: byte_level_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "bpe, digits one by one": lambda: byte_level_bpe(qwen_pre_tokenizer()),
}
if folder := os.environ.get("FUYU_BPE_TOKENIZER"):  # a folder with Qwen's own tokenizer
    ENCODERS[folder] = lambda: tokenizer_of(folder)


def all_phrases(arg=7):
    for opcode in range(1, len(OPCODES)):
        for phrasing in range(PHRASINGS):
            for k in (0, 1) if opcode == INPUT else (arg,):
                yield (opcode, k), phrasing, prompts.phrase(opcode, k, phrasing)


@st.composite
def tasks(draw):
    """A plan and a program as plain numpy, of any instructions, well typed or not: rendering does not care."""
    length = draw(st.integers(1, 7))
    op = np.zeros(SLOTS, np.int32)
    arg = np.zeros(SLOTS, np.int32)
    op[:length] = draw(st.lists(st.integers(1, 43), min_size=length, max_size=length))
    arg[:length] = draw(st.lists(st.integers(0, 15), min_size=length, max_size=length))
    arg = np.where(op == INPUT, arg % 2, arg) * READS_ARG[op]
    phrasing = np.array(draw(st.lists(st.integers(0, PHRASINGS - 1), min_size=SLOTS, max_size=SLOTS)), np.int32)
    frame = np.int32(draw(st.integers(0, len(FRAMES) - 1)))
    x_type = np.int32(draw(st.sampled_from([Type.INT, Type.LIST])))
    plan = prompts.PromptPlan(frame, phrasing, np.int32(length), x_type)
    return plan, Program(op, arg.astype(np.int32))


def parse(text):
    """Every reading of a prompt as (kind of x, instructions), by brute force over frames and phrases."""
    instructions = {}
    for opcode in range(1, len(OPCODES)):
        for phrasing in range(PHRASINGS):
            arguments = range(2) if opcode == INPUT else range(16) if READS_ARG[opcode] else (0,)
            for k in arguments:
                instructions.setdefault(prompts.phrase(opcode, k, phrasing), set()).add((opcode, k))
    readings = set()
    for frame, kind in itertools.product(FRAMES, ("number", "list")):
        start = frame.start.format(kind=kind) + " "
        if text.startswith(start) and text.endswith(frame.end):
            phrases = text[len(start) : -len(frame.end)].split(frame.connector + " ")
            for reading in itertools.product(*(instructions.get(words, ()) for words in phrases)):
                readings.add((kind, reading))
    return readings


def test_every_opcode_has_its_phrasings_and_takes_its_argument_where_the_machine_reads_one():
    assert set(PHRASES) == set(OPCODES[1:])
    assert TRAIN_PHRASINGS >= 4 and PHRASINGS - TRAIN_PHRASINGS >= 2
    assert TRAIN_FRAMES >= 5 and len(FRAMES) - TRAIN_FRAMES >= 2
    for name, row in PHRASES.items():
        assert len(row) == PHRASINGS
        for text in row:
            assert text.count("{k}") == int(READS_ARG[OPCODES.index(name)])


def test_phrases_of_different_opcodes_are_different_word_sequences():
    meaning = {}
    for instruction, phrasing, text in all_phrases():
        key = tuple(prompts.words(text))
        assert meaning.setdefault(key, (instruction, phrasing)) == (instruction, phrasing)


def test_no_connector_or_end_occurs_inside_a_phrase():
    for _, _, text in all_phrases():
        assert not set(text) & set(",;:.")
    for frame in FRAMES:
        assert frame.connector[0] in ",;" and frame.end[-1] == "."


@settings(max_examples=60, deadline=None)
@given(tasks())
def test_a_prompt_reads_back_as_its_program_and_the_type_of_x(task):
    plan, program = task
    kind = "list" if plan.x_type == Type.LIST else "number"
    instructions = tuple(zip(program.op.tolist(), program.arg.tolist(), strict=True))[: int(plan.length)]
    assert parse(prompts.render_text(plan, program)) == {(kind, instructions)}


def test_a_prompt_worked_by_hand():
    op = np.array([OPCODES.index(name) for name in ("FGT", "MULI", "SUM")] + [0] * 5, np.int32)
    program = Program(op, np.array([3, 2, 0, 0, 0, 0, 0, 0], np.int32))
    plan = prompts.PromptPlan(np.int32(0), np.array([0, 1, 2] + [0] * 5, np.int32), np.int32(3), np.int32(Type.LIST))
    expected = "Start from the list x: keep elements above 3, then take it 2 times, then compute the list sum."
    assert prompts.render_text(plan, program) == expected


def test_held_out_phrasings_and_frames_use_only_words_of_train():
    train, held_out = set(), set()
    for _, phrasing, text in all_phrases():
        (train if phrasing < TRAIN_PHRASINGS else held_out).update(prompts.words(text))
    for number, frame in enumerate(FRAMES):
        for kind in ("number", "list"):
            text = frame.start.format(kind=kind) + frame.connector + frame.end
            (train if number < TRAIN_FRAMES else held_out).update(prompts.words(text))
    assert held_out and held_out <= train


def test_the_vocabulary_is_exactly_the_words_of_all_prompts():
    seen = {str(number) for number in range(16)}
    for frame in FRAMES:
        seen.update(prompts.words(frame.start.format(kind="number") + frame.connector + frame.end))
    seen.add("list")
    for _, _, text in all_phrases():
        seen.update(prompts.words(text))
    assert prompts.vocabulary() == sorted(seen)


@pytest.mark.parametrize(("instructions", "limit"), [(5, 48), (7, 64)])
def test_prompts_are_short_for_a_word_level_tokenizer(instructions, limit):
    longest_phrase = max(len(prompts.words(text)) for _, _, text in all_phrases())
    assert longest_phrase <= PHRASE_TOKENS
    lengths = [
        len(prompts.words(frame.start.format(kind="list")))
        + (instructions - 1) * len(prompts.words(frame.connector))
        + len(prompts.words(frame.end))
        + instructions * longest_phrase
        for frame in FRAMES
    ]
    assert max(lengths) <= limit
    assert prompts.longest_prompt(prompts.token_table(word_encoder()), instructions) == max(lengths)


def test_the_small_tokenizers_split_as_they_should():
    """What the next test has to cover: pieces that begin with a space, one token for 15 or two, punctuation apart."""
    text = "Start from the list x: keep the values > 15, then"
    together, apart = (ENCODERS[kind]() for kind in list(ENCODERS)[1:3])
    for encode in (together, apart):
        assert encode("the list") == encode("the") + encode(" list")
        assert len(encode(" list")) == 1 and encode(" list") != encode("list")
        assert encode(text)[-2:] == encode(",") + encode(" then")
    assert len(together(" 15")) == 1
    assert apart(" 15") == apart(" ") + apart("1") + apart("5")


@pytest.mark.parametrize("kind", ENCODERS)
def test_tokens_made_inside_jit_equal_the_encoded_text(kind):
    encode = ENCODERS[kind]()
    table = prompts.token_table(encode)
    max_len = prompts.longest_prompt(table, 7)
    render = jax.jit(prompts.render_tokens, static_argnums=3)

    @settings(max_examples=100, deadline=None)
    @given(tasks())
    def check(task):
        plan, program = jax.tree.map(jnp.asarray, task)
        ids, mask = render(table, plan, program, max_len)
        expected = list(encode(prompts.render_text(*task)))
        assert ids.dtype == jnp.int32 and ids.shape == mask.shape == (max_len,)
        assert np.asarray(ids).tolist() == expected + [0] * (max_len - len(expected))
        assert np.asarray(mask).tolist() == [True] * len(expected) + [False] * (max_len - len(expected))
        assert int(prompts.prompt_length(table, plan, program)) == len(expected)

    check()


def test_a_prompt_that_does_not_fit_is_cut():
    encode = word_encoder()
    op = np.array([OPCODES.index("SORT")] * 3 + [0] * 5, np.int32)
    plan = prompts.PromptPlan(np.int32(1), np.zeros(SLOTS, np.int32), np.int32(3), np.int32(Type.LIST))
    program = Program(op, np.zeros(SLOTS, np.int32))
    ids, mask = prompts.render_tokens(prompts.token_table(encode), *jax.tree.map(jnp.asarray, (plan, program)), 5)
    assert np.asarray(ids).tolist() == encode(prompts.render_text(plan, program))[:5]
    assert np.asarray(mask).all()


def test_a_tokenizer_whose_tokens_reach_across_spaces_is_refused():
    def pairs_of_characters(text):
        return [first * 128 + ord(text[i + 1]) if i + 1 < len(text) else first
                for i, first in ((i, ord(text[i])) for i in range(0, len(text), 2))]  # fmt: skip

    with pytest.raises(ValueError, match="differently from its fragments"):
        prompts.token_table(pairs_of_characters)


def test_instructions_without_words_are_refused():
    with pytest.raises(ValueError, match="opcode 0 has no phrase"):
        prompts.phrase(0, 0, 0)
    with pytest.raises(ValueError, match=f"opcode {len(OPCODES)} has no phrase"):
        prompts.phrase(len(OPCODES), 0, 0)
    with pytest.raises(ValueError, match="INPUT 2 has no name"):
        prompts.phrase(INPUT, 2, 0)
