"""Ways to make a distribution of what the heads say, against plain NumPy; and what episodes under them do."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads
from task_samples import LISTINGS, tasks
from test_rollout import EDITS, readout, run, stubborn_policy

import vm
from fuyu_jax.controller import Rules, choose_edit
from fuyu_jax.controller.heads import FactoredHeads, Heads
from fuyu_jax.learn.losses.imitation import decision_loss
from fuyu_jax.learn.losses.policy_gradient import clipped_policy_loss
from fuyu_jax.learn.objective import ImitationWeights, imitation_terms, state_shares
from fuyu_jax.learn.states import oracle_states
from vm.edits import encode_action

COUNT = len(LISTINGS)
SMALL = vm.Settings(slots=2, args=3)
FIELDS = 44 + 3
VARIANTS = [
    Rules(mask, joint, factored)
    for mask, joint, factored in itertools.product((True, False), repeat=3)
    if joint or not factored
]
SAMPLE = 200  # states


@pytest.fixture(scope="module")
def factored():
    """Heads for a machine of two slots with weights so large that choices differ, and features of many states."""
    heads = FactoredHeads(SMALL, 8, rngs=nnx.Rngs(jax.random.key(0, impl="threefry2x32")))
    graph, params = nnx.split(heads)
    heads = nnx.merge(graph, jax.tree.map(lambda leaf: 20 * leaf, params))
    return heads, jax.random.normal(jax.random.key(1), (SAMPLE, 16))


def choices(factored):
    """Probabilities of kind, slot, opcode and argument, in NumPy."""
    heads, features = factored
    return [softmax(np.asarray(head(features))) for head in (heads.kind, heads.slot, heads.opcode, heads.argument)]


def softmax(logits):
    exps = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


def said(rules, factored):
    """A readout of many states, and the edits that are valid there."""
    valid = np.random.default_rng(2).random((SAMPLE, 2 * FIELDS)) < 0.3
    if rules.factored:
        heads, features = factored
        edits, stop = heads(features)
        return readout(edits.reshape(SAMPLE, -1), stop), jnp.asarray(valid)
    logits = np.random.default_rng(3).normal(size=(SAMPLE, 1 + 2 * FIELDS)).astype(np.float32) * 3
    return readout(jnp.asarray(logits[:, 1:]), jnp.asarray(logits[:, 0])), jnp.asarray(valid)


def expected_probs(rules, factored, read, valid):
    """Probabilities of all actions, float64 `[SAMPLE, N]`, from the definition of each variant."""
    counts = np.ones((SAMPLE, 1 + 2 * FIELDS), bool)
    if rules.mask:
        counts[:, 1:] = valid
    if not rules.joint_stop:
        stop = 1 / (1 + np.exp(-np.asarray(read.stop_logit, np.float64)))[:, None]
        edits = softmax(np.where(counts[:, 1:], np.asarray(read.edit_logits), -1e30))
        return np.concatenate([stop, (1 - stop) * edits], axis=1)
    if not rules.factored:
        logits = np.concatenate([read.stop_logit[:, None], read.edit_logits], axis=1)
        return softmax(np.where(counts, logits, -1e30))
    kind, slot, op, arg = choices(factored)
    probs = np.zeros(counts.shape)
    probs[:, 0] = kind[:, 0]
    for s in range(2):
        for v in range(44):
            probs[:, encode_action("SET_OP", s, v, SMALL)] = kind[:, 1] * slot[:, s] * op[:, v]
        for v in range(3):
            probs[:, encode_action("SET_ARG", s, v, SMALL)] = kind[:, 2] * slot[:, s] * arg[:, v]
    probs = np.where(counts, probs, 0)
    return probs / probs.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("rules", VARIANTS, ids=str)
def test_probabilities_are_those_of_the_definition(rules, factored):
    read, valid = said(rules, factored)
    allowed = rules.allowed(valid)
    probs = np.exp(np.asarray(rules.log_probs(read, allowed)))
    np.testing.assert_allclose(probs, expected_probs(rules, factored, read, valid), rtol=2e-4, atol=1e-7)
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(jax.nn.sigmoid(rules.stop_logit(read, allowed)), probs[:, 0], rtol=1e-4, atol=1e-7)


def test_the_likeliest_action_of_factored_heads_is_made_of_the_likeliest_parts(factored):
    rules = Rules(mask=False, joint_stop=True, factored=True)
    read, valid = said(rules, factored)
    allowed = rules.allowed(valid)
    got = choose_edit(read.edit_logits, rules.likeliest(read, allowed, SMALL), jnp.zeros(allowed.shape))
    kind, slot, op, arg = choices(factored)
    expected = [
        encode_action("SET_OP", s, o, SMALL) if k[1] >= k[2] else encode_action("SET_ARG", s, a, SMALL)
        for k, s, o, a in zip(kind, slot.argmax(axis=1), op.argmax(axis=1), arg.argmax(axis=1), strict=True)
    ]
    assert np.asarray(got).tolist() == expected
    np.testing.assert_array_equal(rules.says_stop(read, allowed, SMALL), kind.argmax(axis=1) == 0)
    best = np.asarray(choose_edit(read.edit_logits, allowed))
    assert (best != np.asarray(got)).any(), "the likeliest single edit is often of another kind"
    assert len(set(kind.argmax(axis=1).tolist())) == 3


def test_the_likeliest_kind_counts_allowed_edits_only():
    """SET_OP is likelier as a whole, but nothing of it is allowed."""
    rules = Rules(mask=True, joint_stop=True, factored=True)
    logits = jnp.log(jnp.full(2 * FIELDS, 0.01))
    allowed = jnp.zeros(2 * FIELDS, bool).at[45].set(True)
    read = readout(logits, jnp.log(0.02))
    assert int(choose_edit(logits, rules.likeliest(read, allowed, SMALL))) == 46
    assert bool(rules.says_stop(read, allowed, SMALL))


@pytest.mark.parametrize(
    ("rules", "probs", "expected"),
    [
        (Rules(), (0.5, 0.3, 0.2), True),  # exactly one half is enough
        (Rules(), (0.49, 0.3, 0.21), False),
        (Rules(joint_stop=True), (0.4, 0.35, 0.25), True),
        (Rules(joint_stop=True), (0.3, 0.35, 0.35), False),
        (Rules(joint_stop=True), (0.3, 0.3, 0.4), False),
    ],
)
def test_when_a_policy_says_stop(rules, probs, expected):
    """STOP and two edits that set the first slot's opcode, in one softmax or with a head for STOP."""
    logits = jnp.full(2 * FIELDS, -50.0).at[:2].set(jnp.log(jnp.array(probs[1:])))
    stop = jnp.log(probs[0]) if rules.joint_stop else jnp.log(probs[0] / (1 - probs[0]))
    allowed = jnp.zeros(2 * FIELDS, bool).at[:2].set(True)
    assert bool(rules.says_stop(readout(logits, jnp.float32(stop)), allowed, SMALL)) is expected


def test_factored_heads_stop_only_where_no_kind_is_likelier():
    """Every single edit is less likely than STOP here; setting an opcode as a whole is not."""
    rules = Rules(mask=False, joint_stop=True, factored=True)
    allowed = jnp.ones(2 * FIELDS, bool)
    is_op = jnp.arange(2 * FIELDS) % FIELDS < 44

    def says(stop, op, arg):
        logits = jnp.log(jnp.where(is_op, op / 88, arg / 6))
        return bool(rules.says_stop(readout(logits, jnp.log(stop)), allowed, SMALL))

    assert not says(0.34, 0.36, 0.3) and not says(0.34, 0.3, 0.36) and says(0.36, 0.34, 0.3)


def test_factored_heads_refuse_a_stop_of_its_own():
    with pytest.raises(ValueError, match="joint"):
        Rules(factored=True)


def test_factored_heads_take_the_place_of_those_for_edits_and_stop():
    hidden = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32)

    def heads(factored):
        def build(hidden):
            heads = Heads(SMALL, 4, 8, factored=factored, rngs=nnx.Rngs(0))
            return nnx.state(heads), heads(hidden)

        state, read = nnx.eval_shape(build, hidden)
        return set(nnx.to_pure_dict(state)), jax.tree.map(lambda leaf: leaf.shape, read)

    (flat, flat_shapes), (parts, shapes) = heads(False), heads(True)
    assert flat - parts == {"edit", "stop"} and parts - flat == {"factored"}
    assert shapes == flat_shapes and shapes.edit_logits == (3, 2 * FIELDS) and shapes.stop_logit == (3,)


def test_joint_cross_entropy_by_hand():
    log_probs = jnp.log(jnp.array([[0.1, 0.2, 0.3, 0.4]] * 3))
    teacher = jnp.array([[True, False, True], [True, False, True], [False] * 3])
    loss = decision_loss(log_probs, teacher, jnp.array([False, True, False]))
    np.testing.assert_allclose(loss, -np.log([0.6, 0.1, 0.9]), rtol=1e-6)
    check_grads(
        lambda x: jnp.sum(decision_loss(jax.nn.log_softmax(x), teacher, jnp.array([False, True, False]))),
        (log_probs * 2,), 1, ["rev"], atol=1e-2, rtol=1e-2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def states():
    keys = jax.random.split(jax.random.key(5), COUNT)
    return jax.jit(oracle_states, static_argnums=(3, 4))(tasks(), keys, jax.random.key(6), 4, vm.DEFAULT_SETTINGS)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("joint", [True, False])
def test_imitation_is_one_cross_entropy_where_stop_is_joint(states, mask, joint):
    """The loss on the oracle's states, in plain NumPy; `stop_loss` and `edit_loss` mean the same in all variants."""
    rules, weights = Rules(mask, joint), ImitationWeights(stop=0.5, stop_caution=1.0)
    rng = np.random.default_rng(0)
    shape = states.solved.shape
    read = readout(
        jnp.asarray(rng.normal(size=(*shape, EDITS)), jnp.float32), jnp.asarray(rng.normal(size=shape), jnp.float32)
    )
    terms = imitation_terms(read, states, state_shares(states, weights), weights, rules)
    allowed = np.asarray(states.valid) if mask else np.ones(states.valid.shape, bool)
    mass = np.where(allowed, np.exp(np.asarray(read.edit_logits, np.float64)), 0)
    stop = np.exp(np.asarray(read.stop_logit, np.float64))
    stop = stop / (stop + (mass.sum(axis=-1) if joint else 1))
    good = np.where(states.teacher, mass, 0).sum(axis=-1) / mass.sum(axis=-1)
    solved = np.asarray(states.solved)
    assert solved.any() and not solved.all()
    np.testing.assert_allclose(terms["edit_loss"], -np.log(good[~solved]).mean(), rtol=1e-5)
    np.testing.assert_allclose(terms["stop_loss"], -np.log(np.where(solved, stop, 1 - stop)).mean(), rtol=1e-5)
    decided = -np.log(np.where(solved, stop, (1 - stop) * good)).mean()
    if not joint:
        decided = terms["edit_loss"] + 0.5 * terms["stop_loss"]
    np.testing.assert_allclose(terms["loss"], decided + 0.25 * terms["distance_loss"], rtol=1e-5)


def test_an_argmax_policy_without_a_mask_repeats_an_invalid_edit_to_the_budget():
    """The first edit sets slot 0 to the opcode that a blank program has there already."""
    budget = np.full((2, 1), 6)
    blank = slice(3, 5)
    free = run(stubborn_policy, budget, rows=blank, no_repeat=False, rules=Rules(mask=False))
    np.testing.assert_array_equal(free.action[:6, :, 0], np.ones((6, 2)))
    assert not np.asarray(free.valid).any()
    assert (np.asarray(free.active).sum(axis=0) == 6).all(), "what does nothing costs budget all the same"
    for leaf in jax.tree.leaves(free.program):
        assert (np.asarray(leaf) == np.asarray(leaf)[0]).all()
    once = run(stubborn_policy, budget, rows=blank, no_repeat=True, rules=Rules(mask=False))
    assert (np.asarray(once.action)[:2, :, 0] == [[1, 1], [2, 2]]).all(), "a useless edit is not tried twice"
    masked = run(stubborn_policy, budget, rows=blank, no_repeat=False)
    assert np.asarray(masked.valid)[:6].all()


def wavering_policy(seen):
    """Logits that depend on the state, the same to the bit wherever they are computed; STOP comes up now and then."""
    edits = jnp.arange(EDITS, dtype=jnp.int32).reshape((1,) * seen.step.ndim + (EDITS,))
    number = (37 * edits + 11 * jnp.sum(seen.op, axis=-1, keepdims=True)) % 97
    return readout(number.astype(jnp.float32) / 16 - 9, jnp.full(seen.step.shape, -1.0))


@pytest.mark.parametrize("rules", [VARIANTS[1], VARIANTS[3], VARIANTS[5]], ids=str)
def test_what_is_sampled_is_what_is_scored(rules):
    """Scored again from what the policy says of the recorded states: the ratio is 1, and STOP has its probability."""
    keys = jax.random.split(jax.random.key(4), (COUNT, 16))
    episodes = run(wavering_policy, np.full((COUNT, 16), 8), keys=keys, sampled=True, rules=rules)
    seen = episodes.program
    read = wavering_policy(seen_like(seen))
    log_probs = rules.log_probs(read, episodes.allowed)
    active = np.asarray(episodes.active)
    scored = jnp.take_along_axis(log_probs, jnp.maximum(episodes.action, 0)[..., None], axis=-1)[..., 0]
    ratio = clipped_policy_loss(scored, episodes.log_prob, jnp.ones(scored.shape)).ratio
    np.testing.assert_allclose(np.asarray(ratio)[active], 1.0, rtol=2e-6)
    np.testing.assert_allclose(
        np.asarray(episodes.stop_prob)[active], np.exp(np.asarray(log_probs)[..., 0][active]), rtol=1e-5
    )
    edits = active & (np.asarray(episodes.action) > 0)
    assert (np.asarray(episodes.valid)[edits]).all() == rules.mask
    assert (active & ~edits).any() and not np.asarray(episodes.says_stop)[~active].any()


def seen_like(program):
    """Observations `[T, B, G]` that hold what `wavering_policy` looks at."""

    class Seen:
        op, step = program.op[:-1], program.op[:-1, ..., 0]

    return Seen
