"""Repairs from words and examples: the record, the command line, and one clear sentence where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vm
import vm.reference
from fuyu_jax import repair as module
from fuyu_jax.qwen3 import resolve_model
from fuyu_jax.repair import Repairer, describe, parse_example
from fuyu_jax.runs.errors import UserError, run_main
from fuyu_jax.search import ask_policy
from fuyu_jax.tokenizer import load_tokenizer
from vm.observation import observe, run_all

PROMPT = "reverse the list, then take the first element."


@pytest.fixture(scope="module")
def repairer(untrained_run):
    return Repairer.load(untrained_run, budget=12)


def test_a_repair_says_what_it_found_and_what_it_cost(repairer):
    """The start program is right, and the first that is run; another answer may be believed more."""
    examples = [([3, 1, 2], 6), ([4, 5], 9)]
    found = repairer.repair("add up the list.", examples, start="SUM")
    assert found.solved and found.listing == (found.steps[-1].listing if found.steps else "SUM")
    assert found.outputs == [6, 9] and found.right == [True, True]
    assert 1 <= found.executions <= 12 and found.passes <= 12
    text = describe(found, examples)
    assert "[3, 1, 2] -> 6  (right)" in text and f"tried    {module._tried(found)}" in text


def test_steps_lead_from_the_start_to_the_program(repairer):
    """Nothing is found, so the nearest program is reported; its outputs are the interpreter's."""
    examples = [([3, 1, 2], [100]), ([4, 5, 5], [101]), ([7], [102])]
    found = repairer.repair(PROMPT, examples, start="REV; SUM")
    assert not found.solved and not all(found.right) and found.executions == 12
    program = vm.assemble("REV; SUM")
    for step in found.steps:
        program, valid = vm.apply_action(program, jnp.int32(step.action))
        assert valid and vm.disassemble(program) == step.listing
    assert found.listing == vm.disassemble(program)
    for (given, _), output in zip(examples, found.outputs, strict=True):
        assert vm.reference.cell(output) == vm.reference.run(program, (given,))[0]


@pytest.mark.slow
def test_more_examples_than_the_policy_sees_all_judge(repairer):
    """The fifth of the examples contradicts SUM, and four are all that the policy was built for."""
    examples = [([n, 1], n + 1) for n in range(4)] + [([5, 5], 11)]
    found = repairer.repair("add up the list.", examples, start="SUM")
    assert found.right != [True] * 5 and not found.solved


def test_advice_is_what_a_pass_over_the_same_state_says(repairer):
    """The heads, asked beside the search: one task, its prompt from text, a program on its way."""
    policy, tokens = repairer._policy, load_tokenizer(resolve_model("tiny")).encode(PROMPT)
    ids = np.zeros((1, policy.prompt_tokens), np.int32)
    ids[0, : len(tokens)] = tokens
    nothing = vm.from_python(None)
    pairs = [jax.tree.map(lambda *x: np.stack(x), vm.from_python(x), nothing) for x in ([3, 1], [2], [5, 6], [0, 4])]
    inputs = jax.tree.map(lambda *x: jnp.asarray(np.stack(x))[None], *pairs)
    targets = jax.tree.map(lambda leaf: leaf[:, :, 0], inputs)
    program = jax.tree.map(lambda leaf: leaf[None], vm.assemble("REV; HEAD; NEG"))
    mask = jnp.arange(ids.shape[1])[None] < len(tokens)
    task = module._Task(vm.Examples(inputs, targets), program, program, jnp.asarray(ids), mask)
    judged = jnp.ones((1, 4), bool)

    @jax.jit
    def both(params):
        results = jax.vmap(run_all)(program, inputs)
        advice = ask_policy(policy, 16)(params, task, judged)(program, results, jnp.array([3]))
        seen = jax.vmap(observe)(program, inputs, results, jnp.array([3]), jnp.array([13]))
        read = policy.reader(params, task)[1]
        return advice, read(jax.tree.map(lambda leaf: leaf[:, None], seen))

    advice, readout = both(repairer._params)
    np.testing.assert_allclose(advice.edit_logits, readout.edit_logits[:, 0], atol=1e-6)
    np.testing.assert_allclose(advice.trust, jax.nn.sigmoid(readout.stop_logit[:, 0]), atol=1e-6)
    share = np.exp(np.asarray(readout.distance_logits[0, 0], np.float64))
    np.testing.assert_allclose(advice.distance[0], (share / share.sum()) @ np.arange(18), rtol=1e-5)


def test_examples_are_read_as_they_are_written():
    assert parse_example("[3,1,2] -> 6") == (([3, 1, 2],), 6)
    assert parse_example("4, 3->true") == ((4, 3), True)


BAD = [
    (["--example", "[1] -> 1", "--prompt", ""], "prompt is empty"),
    (["--example", "[1] -> 1", "--prompt", "frobnicate the list"], "'frobnicate'"),
    (["--prompt", PROMPT], "no example"),
    (["--prompt", PROMPT, "--example", "[1, 2]"], "'[1, 2]' cannot be read"),
    (["--prompt", PROMPT, "--example", "[1, 2 -> 3"], "cannot be read"),
    (["--prompt", PROMPT, "--example", '"word" -> 3'], 'example 1 has "word"'),
    (["--prompt", PROMPT, "--example", "[1.5] -> 3"], "whole numbers"),
    (["--prompt", PROMPT, "--example", "[[1]] -> 3"], "value the machine lacks"),
    (["--prompt", PROMPT, "--example", "[1,2,3,4,5,6,7,8,9] -> 3"], "too long"),
    (["--prompt", PROMPT, "--example", "3000000000 -> 3"], "32-bit"),
    (["--prompt", PROMPT, "--example", "true -> 3"], "x must be a number or a list"),
    (["--prompt", PROMPT, "--example", "1, 2, 3 -> 3"], "3 inputs"),
    (["--prompt", PROMPT, "--example", "[1] -> 1", "--example", "1 -> 1"], "example 2 has inputs of other types"),
    (["--prompt", PROMPT, "--example", "[1] -> 1", "--example", "[1] -> 2"], "examples 1 and 2 contradict"),
    (["--prompt", PROMPT, "--example", "[1] -> 1", "--example", "[1] -> true"], "contradict"),
    (["--prompt", PROMPT, "--example", "[1] -> 1", "--budget", "0"], "--budget is '0'"),
    (["--prompt", PROMPT, "--example", "[1] -> 1", "--start", "FOO"], "'FOO'"),
    (["--prompt", PROMPT, "--example", "[1] -> 1", "--budgets", "9"], "--budget"),
]


@pytest.mark.parametrize(("words", "part"), BAD, ids=[part for _, part in BAD])
def test_bad_input_ends_with_one_sentence(words, part, repairer, capsys, monkeypatch):
    monkeypatch.setattr(Repairer, "load", lambda *arguments: repairer)
    assert run_main(module.main, ["--run", "anything", *words]) == 2
    message = capsys.readouterr().err
    assert part in message and message.startswith("error: ") and message.count("\n") == 1


def test_the_command_loads_what_it_is_told_and_prints_a_repair(repairer, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(Repairer, "load", lambda *arguments: asked.append(arguments) or repairer)
    words = ["--run", "R", "--phase", "P", "--checkpoint_dir", "C", "--model", "M", "--budget", "9", "--start", "SUM"]
    assert run_main(module.main, [*words, "--prompt", "add up the list.", "--example", "[3,1,2] -> 6"]) == 0
    assert asked == [("R", "P", "C", "M", 9)]
    printed = capsys.readouterr().out
    assert printed.startswith("program  ") and "  [3, 1, 2] -> 6  (right)\n" in printed


def test_where_nothing_is_found_it_says_how_much_was_tried(repairer, capsys, monkeypatch):
    monkeypatch.setattr(Repairer, "load", lambda *arguments: repairer)
    words = ["--run", "anything", "--prompt", "add up the list.", "--example", "[3,1,2] -> 6"]
    assert run_main(module.main, [*words, "--start", "HEAD", "--example", "[1] -> 99"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: no program that is right on every example") and message.count("\n") == 1
    assert "12 programs" in message and "forward passes" in message


def test_a_folder_that_is_no_run_is_told(tmp_path, capsys):
    words = ["--run", str(tmp_path), "--prompt", PROMPT, "--example", "[1] -> 1"]
    assert run_main(module.main, words) == 2
    assert "is no run" in capsys.readouterr().err
    with pytest.raises(UserError, match="is no run"):
        module.repair(tmp_path, PROMPT, [([1], 1)])
