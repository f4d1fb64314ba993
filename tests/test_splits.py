"""What the splits promise, over 2,000 tasks of each."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import slow_judge

import vm
from vm import ambiguity, chunks, prompts, selection
from vm.behaviour import SPLIT_OF_CLASS, behaviour_hash, probe_inputs, probe_outputs
from vm.candidates import REFUSALS
from vm.grammar import HELD_OUT_PAIRS, SIGNATURES
from vm.phrases import TRAIN_FRAMES, TRAIN_PHRASINGS

COUNT = 2000
SETTINGS = vm.Settings()


@pytest.fixture(scope="module")
def splits():
    return {split: vm.make_tasks(split, 0, COUNT) for split in vm.SPLITS}


@pytest.fixture(scope="module")
def signatures(splits):
    """The signature of each task, read from the types of its first public example."""
    table = {(types[0], types[1] if len(types) == 2 else vm.Type.EMPTY): n for n, types in enumerate(SIGNATURES)}
    return {
        split: np.array([table[tuple(kinds)] for kinds in np.asarray(tasks.public.inputs.type)[:, 0].tolist()])
        for split, tasks in splits.items()
    }


@pytest.fixture(scope="module")
def behaviours(splits, signatures):
    """Signature and all outputs on the probe set, as bytes, for every task."""
    outputs_of = jax.jit(jax.vmap(lambda program, signature: probe_outputs(program, signature, SETTINGS)))
    found = {}
    for split, tasks in splits.items():
        outputs = jax.tree.map(np.asarray, outputs_of(tasks.reference, jnp.asarray(signatures[split])))
        found[split] = [
            bytes([signature]) + b"".join(leaf[row].tobytes() for leaf in outputs)
            for row, signature in enumerate(signatures[split])
        ]
    return found


@jax.jit
@jax.vmap
def passes(program, examples):
    outputs = jax.vmap(lambda inputs: vm.run(program, inputs).output)(examples.inputs)
    return jnp.all(vm.values_equal(outputs, examples.targets))


def solved(programs, tasks):
    """Whether each program passes all its task's examples: bool [N]."""
    return np.asarray(passes(programs, tasks.public) & passes(programs, tasks.hidden))


def host_row(tree, row):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[row], tree)


def examples_of(tasks, row):
    """Inputs and targets of all examples of one task, as cells of the slow reference."""
    examples, targets = [], []
    for part in (tasks.public, tasks.hidden):
        examples += slow_judge.examples_of(host_row(part.inputs, row))
        targets += slow_judge.cells_of(host_row(part.targets, row))
    return examples, targets


def held_out(tasks):
    op = np.asarray(tasks.reference.op)
    return np.any(HELD_OUT_PAIRS[op[:, :-1], op[:, 1:]], axis=1)


def test_no_behaviour_occurs_in_two_splits(behaviours):
    for one, other in itertools.combinations(vm.SPLITS, 2):
        assert not set(behaviours[one]) & set(behaviours[other])


def test_no_prompt_occurs_in_two_splits(splits):
    for one, other in itertools.combinations(vm.SPLITS, 2):
        assert not set(splits[one].prompts) & set(splits[other].prompts)


@pytest.mark.parametrize("split", vm.EVALUATION_SPLITS)
def test_an_evaluation_split_holds_each_behaviour_and_prompt_once(split, splits, behaviours):
    assert len(set(behaviours[split])) == len(set(splits[split].prompts)) == COUNT


def test_the_hash_tells_behaviours_apart_exactly_as_the_outputs_do(splits, behaviours):
    pairs = {
        (outputs, int(number))
        for split in vm.SPLITS
        for outputs, number in zip(behaviours[split], splits[split].behaviours, strict=True)
    }
    assert len(pairs) == len({outputs for outputs, _ in pairs}) == len({number for _, number in pairs})


def test_the_hash_decides_the_split(splits):
    for number, split in enumerate(vm.SPLITS):
        first_half = splits[split].behaviours >> np.uint64(32)
        assert np.all(SPLIT_OF_CLASS[(first_half % np.uint64(32)).astype(int)] == number)
    shares = np.bincount(SPLIT_OF_CLASS) / 32
    assert shares[0] > 0.5 and shares.min() >= 1 / 16


def test_the_hash_depends_on_the_signature_and_on_the_place_of_an_output():
    outputs = jax.tree.map(jnp.asarray, jax.tree.map(lambda leaf: leaf[0, :, 0], probe_inputs(SETTINGS)))
    swapped = jax.tree.map(lambda leaf: leaf[jnp.array([1, 0, *range(2, 64)])], outputs)
    hashes = {
        tuple(np.asarray(behaviour_hash(value, jnp.int32(signature))).tolist())
        for value, signature in ((outputs, 0), (swapped, 0), (outputs, 2))
    }
    assert len(hashes) == 3


def test_every_word_of_every_split_occurs_in_train(splits):
    used = {split: {w for text in tasks.prompts for w in prompts.words(text)} for split, tasks in splits.items()}
    for split in vm.EVALUATION_SPLITS:
        assert used[split] <= used["train"]


def test_only_fresh_paraphrase_uses_held_out_phrasings_and_frames(splits):
    for split, tasks in splits.items():
        plan = tasks.arrays.plan
        used = np.arange(8)[None] < np.asarray(tasks.arrays.length)[:, None]
        phrasing, frame = np.asarray(plan.phrasing)[used], np.asarray(plan.frame)
        if split == "fresh_paraphrase":
            assert phrasing.min() >= TRAIN_PHRASINGS and frame.min() >= TRAIN_FRAMES
        else:
            assert set(np.unique(phrasing)) == set(range(TRAIN_PHRASINGS))
            assert set(np.unique(frame)) == set(range(TRAIN_FRAMES))


def test_lengths_and_held_out_bigrams(splits):
    for split, tasks in splits.items():
        lengths = np.asarray(tasks.arrays.length)
        np.testing.assert_array_equal(np.sum(np.asarray(tasks.reference.op) > 0, axis=1), lengths)
        if split == "hard_composition":
            assert set(np.unique(lengths)) == {6, 7}
            assert np.all(held_out(tasks))
        else:
            assert set(np.unique(lengths)) == {1, 2, 3, 4, 5}
            assert np.mean(lengths == 1) < 0.1
            assert not np.any(held_out(tasks))


def test_every_family_has_a_share_of_every_split_and_every_opcode_occurs_in_train(splits):
    for tasks in splits.values():
        shares = np.bincount(np.asarray(tasks.family), minlength=len(vm.FAMILIES)) / COUNT
        assert shares.min() > 0.01 and shares.max() < 0.45
    assert set(np.unique(splits["train"].reference.op)) == set(range(44))


@pytest.mark.parametrize("split", vm.SPLITS)
def test_a_sample_of_tasks_passes_the_slow_judge(split, splits):
    tasks = splits[split]
    for row in range(0, COUNT, 80):
        examples, targets = examples_of(tasks, row)
        pairs = slow_judge.pairs_of(host_row(tasks.reference, row))
        assert slow_judge.judge(pairs, examples) == "accepted"
        assert slow_judge.outputs_of(pairs, examples) == targets


@pytest.mark.parametrize("split", vm.EVALUATION_SPLITS)
def test_no_program_one_edit_away_passes_for_the_reference(split, splits, signatures):
    """Brute force over every edit, in the slow reference."""
    tasks = splits[split]
    for row in (0, COUNT // 2 + 1):
        examples, _ = examples_of(tasks, row)
        probes = slow_judge.examples_of(host_row(probe_inputs(SETTINGS), signatures[split][row]))
        pairs = slow_judge.pairs_of(host_row(tasks.reference, row))
        assert slow_judge.misleading_edit(pairs, examples, probes) is None


@pytest.mark.parametrize("split", vm.EVALUATION_SPLITS)
def test_starts_are_half_blank_three_eighths_corrupted_and_one_eighth_solved(split, splits):
    tasks = splits[split]
    right = solved(tasks.start, tasks)
    start, reference = np.asarray(tasks.start), np.asarray(tasks.reference)
    blank = np.all(start == 0, axis=(0, 2))
    block = 16 if split == "fresh_paired" else 8
    np.testing.assert_array_equal(right.reshape(-1, block).sum(axis=1), block // 8)
    np.testing.assert_array_equal(blank.reshape(-1, block).sum(axis=1), block // 2)
    np.testing.assert_array_equal(right, np.all(start == reference, axis=(0, 2)))
    assert np.mean(right) == 0.125  # what doing nothing scores
    assert np.all(solved(tasks.reference, tasks))


def test_starts_of_training_have_the_same_shares_on_average(splits):
    counts = vm.split_manifest(splits["train"])["starts"]
    shares = np.array([counts["blank"], counts["corrupted"], counts["solved"]]) / COUNT
    np.testing.assert_allclose(shares, [0.5, 0.375, 0.125], atol=0.04)


def test_pairs_differ_in_one_word_and_on_two_public_examples(splits):
    tasks = splits["fresh_paired"]
    even, odd = (jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k::2], tasks.arrays) for k in (0, 1))
    np.testing.assert_array_equal(tasks.indices[::2], tasks.indices[1::2])
    for a, b in (
        (even.public.inputs, odd.public.inputs),
        (even.hidden.inputs, odd.hidden.inputs),
        (even.plan, odd.plan),
    ):
        jax.tree.map(np.testing.assert_array_equal, a, b)
    differing = ~np.asarray(vm.values_equal(even.public.targets, odd.public.targets))
    assert differing.sum(axis=1).min() >= 2
    kinds = set()
    for first, second in zip(tasks.prompts[::2], tasks.prompts[1::2], strict=True):
        one, other = prompts.words(first), prompts.words(second)
        assert len(one) == len(other)
        changed = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
        assert len(changed) == 1
        kinds.add(changed[0][0].isdigit())
    assert kinds == {True, False}  # numbers as well as words


def test_the_first_tasks_are_the_same_however_many_are_asked_for(splits):
    for split in vm.SPLITS:
        few = vm.make_tasks(split, 0, 11)
        many = splits[split]
        assert few.prompts == many.prompts[:11]
        np.testing.assert_array_equal(few.indices, many.indices[:11])
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.asarray(b)[:11]), few.arrays, many.arrays)


def test_the_tasks_do_not_depend_on_the_sizes_of_chunks(splits, monkeypatch):
    monkeypatch.setattr(chunks, "SCREENED", 1000)
    for module in (chunks, selection):
        monkeypatch.setattr(module, "JUDGED", 96)
    monkeypatch.setattr(ambiguity, "CHUNK", 20)
    monkeypatch.setattr(selection, "GROUP", 24)
    other = vm.make_tasks("fresh_paired", 0, 40)
    usual = splits["fresh_paired"]
    assert other.prompts == usual.prompts[:40]
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.asarray(b)[:40]), other.arrays, usual.arrays)
    assert other.refusals == vm.make_tasks("fresh_paired", 0, 40).refusals


DIGESTS = {
    "train": "2dcfe13b86cb519c87c74124ae08aa3d33e5b121aaa9a97ec8df561c49f636a0",
    "val_mixed": "2b030c349290cd17cb976a1237e3f79ded40de246b744e0060ba1501d48c0c10",
    "fresh_standard": "f04e3a67bbfe66d778cff513143dfff650d899b18aa9e30ad141241ead842237",
    "fresh_paraphrase": "1453b7d754592d98d2c4374ee34f4041641c5e3ed6c585d5f48a304366b2a38c",
    "fresh_paired": "d42694bb8ead8fa9f573bbe16c3ff36142b37f809958fdef7e5d9dde3bf79f26",
    "hard_composition": "3883e3dc53cf0f0be110a28843ebff87353ceae53ba7ecc5a24ed4c62e7cc103",
}


@pytest.mark.parametrize("split", vm.SPLITS)
def test_the_first_tasks_never_change(split):
    """After a deliberate change of the tasks, print `split_manifest(...)["sha256"]` and write it here."""
    assert vm.split_manifest(vm.make_tasks(split, 0, 32))["sha256"] == DIGESTS[split]


def test_the_manifest_counts_everything(splits):
    for split, tasks in splits.items():
        manifest = json.loads(json.dumps(vm.split_manifest(tasks)))
        assert manifest["split"] == split and manifest["seed"] == 0 and manifest["tasks"] == COUNT
        for table in ("families", "lengths", "starts"):
            assert sum(manifest[table].values()) == COUNT
        accepted = COUNT // 2 if split == "fresh_paired" else COUNT
        assert manifest["candidates"] == int(tasks.indices[-1]) + 1
        assert sum(manifest["refusals"].values()) == manifest["candidates"] - accepted
        assert set(manifest["refusals"]) == set(REFUSALS) - {"accepted"}
        repeats = COUNT - len(set(tasks.behaviours.tolist()))
        assert manifest["repeated_behaviours"] == repeats and (repeats > 0) == (split == "train")


def test_the_digest_covers_starts_and_prompts(splits):
    tasks = splits["val_mixed"]
    digests = {vm.split_manifest(tasks)["sha256"]}
    arrays = tasks.arrays._replace(start=tasks.arrays.reference)
    for change in ({"arrays": arrays}, {"prompts": ["x", *tasks.prompts[1:]]}):
        changed = vm.Tasks(**(vars(tasks) | change))
        digests.add(vm.split_manifest(changed)["sha256"])
    assert len(digests) == 3
