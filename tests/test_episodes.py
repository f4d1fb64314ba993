"""Recorded episodes against the Python interpreter, the policy's own distribution and plain re-reading."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from task_samples import LISTINGS, tasks

import vm
import vm.reference
from fuyu_jax.controller import Controller
from fuyu_jax.controller.heads import Echo
from fuyu_jax.evaluate.episodes import budget_of, chosen_tasks, record_episodes
from fuyu_jax.learn.losses.echo import likeliest_outputs
from fuyu_jax.policy import Policy, make_play, split_controller
from fuyu_jax.qwen3 import Qwen3, Qwen3Config, resolve_model
from fuyu_jax.tokenizer import load_tokenizer
from vm.edits import encode_action
from vm.observation import observe, run_all
from vm.prompts import longest_prompt, token_table
from vm.tasks import Tasks

CONFIG = Qwen3Config(
    vocab_size=168, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, rope_theta=1e6, tie_word_embeddings=True,
)  # fmt: skip
SPLITS = ("val_mixed", "hard_composition")


def sample_tasks(split):
    return Tasks(split, 0, np.arange(5), [f"prompt {row}" for row in range(5)], tasks(), np.arange(5), {})


@pytest.fixture(scope="module")
def policy():
    """A small controller that was never trained, only moved, so that its STOP is near one half."""
    rngs = nnx.Rngs(jax.random.key(0, impl="threefry2x32"))
    controller = Controller(Qwen3(CONFIG, rngs=rngs), vm.DEFAULT_SETTINGS, examples=4, show_targets=False, rngs=rngs)
    graph, params = split_controller(controller)
    leaves, tree = jax.tree.flatten(params.trained)
    keys = jax.random.split(jax.random.key(3, impl="threefry2x32"), len(leaves))
    moved = [leaf + 0.1 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    tokens = token_table(load_tokenizer(resolve_model("tiny")).encode)
    whole = Policy(graph, vm.DEFAULT_SETTINGS, tokens, longest_prompt(tokens, 5))
    return whole, params._replace(trained=jax.tree.unflatten(tree, moved))


@pytest.fixture(scope="module")
def records(policy):
    whole, params = policy
    splits = {split: sample_tasks(split) for split in SPLITS}
    return record_episodes(whole, make_play(whole, True), params, splits, lanes=1, phase="bc_policy")


def moments(records):
    """Every step of every record, with its record and the step before."""
    for record in records:
        for before, step in zip([None, *record["steps"]], record["steps"], strict=False):
            yield record, before, step


def words(value):
    """(type, words) of a plain value."""
    kind = {type(None): 0, int: 1, bool: 2, list: 3}[type(value)]
    return kind, [] if value is None else [int(x) for x in value] if kind == 3 else [int(value)]


def program_of(step):
    """(opcode, argument) of each slot."""
    split = [[*line.split(), "0"] for line in step["program"]]
    return [(vm.reference.NAMES.index(name), int(argument)) for name, argument, *_ in split]


def valid_edits(step):
    """In plain Python which of the 480 edits change the program."""
    valid = []
    for op, arg in program_of(step):
        reads = vm.reference.NAMES[op] in vm.reference.READS_ARGUMENT
        valid += [other != op for other in range(44)] + [reads and other != arg for other in range(16)]
    return np.array(valid)


def test_the_records_are_those_of_the_first_tasks(records):
    assert [(record["split"], record["task"]) for record in records] == [(s, row) for s in SPLITS for row in range(5)]
    assert [record["reference"] for record in records] == [listing for listing, _, _ in LISTINGS] * 2
    assert {record["budget"] for record in records[:5]} == {8} and {record["budget"] for record in records[5:]} == {12}
    assert [budget_of(split) for split in SPLITS] == [8, 12]
    assert [record["prompt"] for record in records[:2]] == ["prompt 0", "prompt 1"]
    assert chosen_tasks({split: sample_tasks(split) for split in SPLITS}, most=4) == [
        (split, row) for split in SPLITS for row in (0, 1)
    ]
    json.dumps(records, allow_nan=False)


def test_outputs_are_those_of_the_python_interpreter(records):
    for record, _, step in moments(records):
        program = program_of(step)
        right = []
        for number, example in enumerate(record["examples"]):
            inputs = [*example["inputs"], None][:2]
            (kind, length, padded), status, _ = vm.reference.run(program, inputs)
            assert words(step["outputs"][number]) == (kind, list(padded[:length]))
            assert step["status"][number] == vm.Status(status).name
            right.append(words(step["outputs"][number]) == words(example["target"]))
        assert step["public_right"] == sum(right)
        assert not step["solved"] or all(right)
    assert [record["start_solved"] for record in records] == [listing == start for listing, start, _ in LISTINGS] * 2
    for record in records:
        solved = [step["solved"] for step in record["steps"]]
        assert (record["solved"], record["ever_solved"]) == (solved[-1], any(solved))


def test_each_edit_makes_the_next_program(records):
    edited = 0
    for _, before, step in moments(records):
        if before is None:
            continue
        slot, what, value = re.fullmatch(r"slot (\d): (opcode|argument) = (\w+)", before["edit"]).groups()
        number = vm.OPCODES.index(value) if what == "opcode" else int(value)
        kind = "SET_OP" if what == "opcode" else "SET_ARG"
        assert before["action"] == encode_action(kind, int(slot), number)
        assert before["valid"] and valid_edits(before)[before["action"] - 1]
        program = program_of(before)
        op, arg = program[int(slot)]
        kept = arg if value in vm.reference.READS_ARGUMENT else 0
        program[int(slot)] = (number, kept) if what == "opcode" else (op, number)
        assert program == program_of(step)
        changes = [(n, a, b) for n, (a, b) in enumerate(zip(before["program"], step["program"], strict=True)) if a != b]
        assert [(c["slot"], c["before"], c["after"]) for c in before["changed"]] == changes
        edited += 1
    assert edited > 20


def test_episodes_end_at_stop_or_when_the_budget_is_spent(records):
    for record in records:
        last = record["steps"][-1]
        assert [step["step"] for step in record["steps"]] == list(range(record["edits"] + 1))
        assert all(step["decision"] == "edit" and step["stop_prob"] < 0.5 for step in record["steps"][:-1])
        if record["end"] == "stop":
            assert last["decision"] == "stop" and last["stop_prob"] >= 0.5 and record["edits"] < record["budget"]
        else:
            assert last["decision"] == "none" and "stop_prob" not in last and record["edits"] == record["budget"]
    assert {record["end"] for record in records} == {"stop", "budget"}


@pytest.fixture(scope="module")
def reread(policy, records):
    """Every decision read anew in one batch: probabilities of all actions, value, distance, ECHO's logits."""
    whole, params = policy
    chosen = [(record, step) for record, _, step in moments(records) if step["decision"] != "none"]
    rows = np.array([record["task"] for record, _ in chosen])
    mine = jax.tree.map(lambda leaf: leaf[rows], tasks())
    fields = jnp.array([program_of(step) for _, step in chosen], jnp.int32)
    program = vm.Program(fields[..., 0], fields[..., 1])
    allowed = []
    for record, step in chosen:
        valid = valid_edits(step)
        for past in record["steps"][: step["step"]]:
            if past["program"] == step["program"]:
                valid[past["action"] - 1] = False
        allowed.append(valid)
    at = jnp.array([step["step"] for _, step in chosen], jnp.int32)
    left = jnp.array([record["budget"] for record, _ in chosen], jnp.int32) - at
    action = jnp.array([[step.get("action", 0)] for _, step in chosen], jnp.int32)

    @jax.jit
    def read(params, mine, program, allowed):
        see = jax.vmap(lambda p, x, t, k: observe(p, x, run_all(p, x), t, k))
        seen = see(program, mine.public.inputs, at, left)
        controller, reader = whole.reader(params, mine)
        readout = reader(jax.tree.map(lambda leaf: leaf[:, None], seen))
        log_probs = whole.log_probs(readout, allowed[:, None])
        return log_probs[:, 0], readout, controller.echo(readout, action)

    return chosen, jax.device_get(read(params, mine, program, jnp.array(allowed)))


def test_probabilities_are_the_policys(reread):
    chosen, (log_probs, readout, _) = reread
    for row, (_, step) in enumerate(chosen):
        probs = np.exp(log_probs[row])
        assert probs.sum() == pytest.approx(1, abs=1e-5)
        assert step["stop_prob"] == pytest.approx(probs[0], abs=2e-5)
        shown = [(edit["action"], edit["probability"]) for edit in step["top_edits"]]
        assert [p for _, p in shown] == sorted((p for _, p in shown), reverse=True) and len(shown) == 5
        for action, probability in shown:
            assert probability == pytest.approx(probs[action], abs=2e-5)
        rest = np.delete(probs, [0, *(action for action, _ in shown)])
        assert rest.max() <= shown[-1][1] + 2e-5
        assert all(
            vm.OPCODES.index(m[1]) >= 0 for e in step["top_edits"] if (m := re.search("opcode = (.*)", e["edit"]))
        )
        if step["decision"] == "edit":
            assert step["action"] == shown[0][0] or shown[0][1] - shown[1][1] < 2e-5
        assert step["value"] == pytest.approx(1 / (1 + np.exp(-readout.value_logit[row, 0])), abs=2e-5)
        spread = np.exp(readout.distance_logits[row, 0] - readout.distance_logits[row, 0].max())
        assert step["distance"] == pytest.approx(float(spread @ np.arange(18) / spread.sum()), abs=2e-3)


def test_echo_is_the_likeliest_part_by_part_against_what_came(reread, records):
    chosen, (_, _, echo) = reread
    after = {(id(record), step["step"] - 1): step for record, _, step in moments(records)}
    compared = 0
    for row, (record, step) in enumerate(chosen):
        if step["decision"] != "edit":
            continue
        came = after[id(record), step["step"]]
        for number, said in enumerate(step["echo"]):
            logits = jax.tree.map(lambda leaf, row=row, number=number: leaf[row, 0, number], echo)
            numbers = [
                int.from_bytes(bytes(word.argmax(-1).astype(np.uint8)), "little", signed=True) for word in logits.bytes
            ]
            kind, status = vm.Type[said["type"]], vm.Status[said["status"]]
            assert (kind, said["length"], status) == (
                logits.type.argmax(),
                logits.length.argmax(),
                logits.status.argmax(),
            )
            assert said["words"] == numbers
            value = words(came["outputs"][number])
            padded = value[1] + [0] * (8 - len(value[1]))
            right = (int(kind), said["length"], said["words"]) == (value[0], len(value[1]), padded)
            assert said["right"] == (right and said["status"] == came["status"][number])
            compared += 1
    assert compared > 80


def test_likeliest_outputs_put_words_together_with_their_sign():
    numbers = [0, 1, -1, 2**31 - 1, -(2**31), -123456789, 255, 256]
    parts = np.array([list(n.to_bytes(4, "little", signed=True)) for n in numbers])
    hot = lambda values, size: jnp.asarray(np.eye(size)[np.asarray(values)])  # noqa: E731
    value, status = likeliest_outputs(Echo(hot([2], 8), hot([3], 4), hot([8], 9), hot(parts, 256)[None]))
    assert value.words[0].tolist() == numbers and value.words.dtype == jnp.int32
    assert (value.type[0], value.length[0], status[0]) == (3, 8, 2)
