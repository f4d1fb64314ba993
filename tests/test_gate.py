"""The gate against numbers worked by hand, scipy's distributions and simulated studies."""

import numpy as np
import pytest
from gate_samples import EACH, SPLITS, policy_outcomes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fuyu_jax.evaluate.metrics import mcnemar_mid_p
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.gate import Panel, Study, bootstrap_t, decide, difference, holm
from fuyu_jax.gate.decision import compare
from fuyu_jax.gate.interval import variance_components
from fuyu_jax.gate.panel import Difference
from fuyu_jax.gate.simulation import simulate_study

GAIN = np.array([10, 11, 12, 13, 14])[:, None]  # of 256 tasks, in every split: 3.9 to 5.5 points, 4.7 on average


def study(arm=None, continued=None, shuffled=None, problems=()):
    """A study that passes, but for what is given."""
    panels = [policy_outcomes(GAIN), policy_outcomes(), policy_outcomes()]
    given = [panel if mine is None else mine for panel, mine in zip(panels, (arm, continued, shuffled), strict=True)]
    return Study(*(Panel.of(outcomes) for outcomes in given), problems)


def failed(verdict):
    return [clause.name for clause in verdict.clauses if not clause.holds]


def gains(**by_split):
    return GAIN + np.array([by_split.get(split, 0) for split in SPLITS])


def test_a_study_that_passes():
    verdict = decide({"a": study()})["a"]
    figures = {clause.name: clause.figure for clause in verdict.clauses}
    assert verdict.result == "PASS" and not failed(verdict) and not verdict.reasons
    # Every task is gained in as many seeds, or in fewer: the mean of the five seeds is 12 of 256.
    assert figures["effect"] == pytest.approx(12 / 256)
    assert figures["every seed"] == pytest.approx(10 / 256)
    assert figures["false STOP"] == figures["kept solved"] == 0
    assert figures["every split"] == pytest.approx(12 / 256)
    assert [pair.gained for pair in verdict.comparisons["shuffled"].seeds] == [5 * gain for gain in range(10, 15)]
    assert verdict.comparisons["bc_continued"].seed_std == pytest.approx(np.std([10, 11, 12, 13, 14], ddof=1) / 256)


# One number moves in each, and one clause fails.
ONE_FAILS = {
    "better than bc_continued": {"continued": policy_outcomes([[10], [11], [12], [-40], [-50]])},
    "better than shuffled": {"shuffled": policy_outcomes(GAIN)},
    "effect": {"arm": policy_outcomes(GAIN - 5)},
    "every seed": {"arm": policy_outcomes([[-1], [16], [16], [16], [16]])},
    "false STOP": {"arm": policy_outcomes(GAIN, stops=6)},
    "kept solved": {"arm": policy_outcomes(GAIN + 1, loses=1)},
    "every split": {"arm": policy_outcomes(gains(hard_composition=-20))},
}


@pytest.mark.parametrize("name", ONE_FAILS)
def test_each_clause_can_fail_alone(name):
    verdict = decide({"a": study(**ONE_FAILS[name])})["a"]
    assert failed(verdict) == [name]
    assert verdict.result == "FAIL"


# Limits are inclusive: three points are three points, whatever the rounding of a mean.
AT_THE_LIMIT = {
    "effect": ({"arm": policy_outcomes(3, each=200), "continued": policy_outcomes(-3, each=200)}, 0.03),
    "every seed": ({"arm": policy_outcomes([[0], [16], [16], [16], [16]])}, 0.0),
    "false STOP": ({"arm": policy_outcomes(8, each=200, stops=4), "continued": policy_outcomes(each=200)}, 0.02),
}


@pytest.mark.parametrize("name", AT_THE_LIMIT)
def test_a_clause_at_its_limit_holds(name):
    parts, limit = AT_THE_LIMIT[name]
    each = 200 if name != "every seed" else EACH
    verdict = decide({"a": study(**{"shuffled": policy_outcomes(each=each), **parts})})["a"]
    clause = next(clause for clause in verdict.clauses if clause.name == name)
    assert clause.holds and clause.figure == pytest.approx(limit)


def test_numbers_of_a_clause_are_of_the_right_tasks():
    # One of the 32 tasks that start solved is broken in each split, and 6 of 256 end in a false STOP.
    verdict = decide({"a": study(arm=policy_outcomes(gains(val_mixed=-30), stops=6, loses=1))})["a"]
    clauses = {clause.name: clause for clause in verdict.clauses}
    assert clauses["kept solved"].figure == pytest.approx(-1 / 32)
    assert clauses["false STOP"].figure == pytest.approx(6 / 256)
    assert clauses["every split"].figure == pytest.approx((12 - 30 - 1) / 256)
    assert clauses["every split"].detail == "val_mixed"


UNDECIDABLE = {
    "four_seeds": (lambda: study(*(policy_outcomes(g, seeds=4) for g in (GAIN[:4], 0, 0))), "4 seeds; the gate needs"),
    "one_seed": (lambda: study(*(policy_outcomes(g, seeds=1) for g in (9, 0, 0))), "1 seed; the gate needs 5"),
    "tasks": (lambda: study(*(policy_outcomes(g, each=255) for g in (GAIN, 0, 0))), "1,275 tasks were measured"),
    "control_seeds": (lambda: study(shuffled=policy_outcomes(seeds=4)), "shuffled ran with the seeds 0, 1, 2, 3, the"),
    "control_tasks": (lambda: study(continued=policy_outcomes(each=300)), "bc_continued was measured on other tasks"),
    "no_shuffled": (lambda: Study(study().arm, study().continued, None), "no run of the control shuffled"),
    "no_continued": (lambda: Study(study().arm, None, study().shuffled), "no run of the control bc_continued"),
    "no_arm": (lambda: Study(None, None, None), "no run of this arm"),
    "problem": (lambda: study(problems=("Something is wrong.",)), "Something is wrong."),
}


@pytest.mark.parametrize("name", UNDECIDABLE)
def test_what_cannot_be_decided_never_passes(name):
    make, said = UNDECIDABLE[name]
    verdict = decide({"a": make()})["a"]
    assert verdict.result == "NOT DECIDABLE"
    assert len(verdict.reasons) == 1 and said in verdict.reasons[0] and verdict.reasons[0].endswith(".")
    assert len(verdict.clauses) == 7


def test_one_seed_has_no_spread_and_no_interval():
    verdict = decide({"a": study(*(policy_outcomes(g, seeds=1) for g in (9, 0, 0)))})["a"]
    comparison = verdict.comparisons["bc_continued"]
    assert comparison.seed_std is None
    assert comparison.solved == (pytest.approx(9 / 256), None, None, None)
    assert failed(verdict) == ["better than bc_continued", "better than shuffled"]


def test_no_task_solved_at_the_start():
    outcomes = [policy_outcomes(g) for g in (GAIN, 0, 0)]
    blank = [Outcomes(**{**vars(one), "start_solved": np.zeros(len(one), bool)}) for one in outcomes]
    verdict = decide({"a": study(*blank)})["a"]
    assert verdict.result == "NOT DECIDABLE" and failed(verdict) == ["kept solved"]


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.0125]) == [0.0125] and holm([]) == []


def test_holm_decides():
    # p is near 0.016: little enough for one arm, too much for the third of four.
    near = study(arm=policy_outcomes([[0], [10], [15], [16], [30]]))
    alone = decide({"a": near})["a"]
    assert 0.025 / 2 < alone.p < 0.025 and alone.adjusted_p == alone.p and alone.result == "PASS"
    among = decide({"a": near, "b": study(), "c": Study(None, None, None), "d": study()})
    assert among["a"].adjusted_p == pytest.approx(2 * alone.p)  # two are smaller
    assert failed(among["a"]) == ["better than bc_continued", "better than shuffled"]
    assert among["b"].result == among["d"].result == "PASS"
    assert among["b"].comparisons == decide({"b": study()})["b"].comparisons
    with pytest.raises(ValueError, match="5 arms are named; the gate takes 4"):
        decide({name: near for name in "abcde"})


@given(st.integers(1, 9_999), st.integers(0, 3))
def test_corrected_bounds_and_corrected_p_agree(count, rank):
    # The bound that leaves `tail` beyond it is above zero exactly where p is at most `tail`.
    values = np.random.default_rng(count).normal(0.02, 0.05, (5, 40))
    found = Difference(values, np.zeros(40, np.int64), 40)
    p = bootstrap_t(found).p
    tail = 0.025 / (4 - rank)
    assert (bootstrap_t(found, tail).low > 0) == (p <= tail + 1e-12)


def test_the_order_of_rows_and_arms_changes_nothing():
    arm, rng = policy_outcomes(GAIN), np.random.default_rng(3)
    mixed = arm.take(rng.permutation(len(arm)))
    names = {"none": study(arm=mixed), "NA": study(arm=policy_outcomes(GAIN - 5))}
    there, back = decide(names), decide(dict(reversed(names.items())))
    assert there == back and list(there) == ["none", "NA"]
    assert there["none"].clauses == decide({"none": study(), "NA": names["NA"]})["none"].clauses


def test_mcnemar_mid_p_of_each_seed():
    # Five heads of seven: 2 * (P(X < 2) + P(X = 2) / 2) = 2 * (1 + 7 + 21 / 2) / 128.
    assert mcnemar_mid_p(5, 2) == mcnemar_mid_p(2, 5) == pytest.approx(37 / 128)
    exact, point = stats.binomtest(3, 20).pvalue, stats.binom.pmf(3, 20, 0.5)
    assert mcnemar_mid_p(3, 17) == pytest.approx(exact - point)
    found = compare(
        Panel.of(policy_outcomes([[5, 0, 0, 0, 0]], 1)), Panel.of(policy_outcomes([[0, 2, 0, 0, 0]], 1)), "x"
    )
    assert found.seeds[0].mcnemar_mid_p == pytest.approx(37 / 128)


def test_panels_that_are_not_whole_are_refused():
    whole = policy_outcomes()
    elsewhere = Outcomes(**{**vars(whole), "k": np.full(len(whole), 8)})
    cases = {
        "hard_composition was not measured at K=12": elsewhere,
        "different tasks": whole.take(np.arange(len(whole)) != 7),
        "a rollout twice": Outcomes.concatenate([whole, whole]),
        "no outcomes": whole.take(whole.k > 99),
    }
    for said, outcomes in cases.items():
        with pytest.raises(ValueError, match=said):
            Panel.of(outcomes)


def test_pairs_are_one_unit():
    found = difference(Panel.of(policy_outcomes(GAIN)), Panel.of(policy_outcomes()))
    assert found.values.shape == (5, 4 * EACH + EACH // 2) and found.tasks == 5 * EACH
    assert np.bincount(found.strata).tolist() == [EACH // 2, EACH, EACH, EACH, EACH]  # names of splits in order
    assert found.values.mean() == pytest.approx(12 / 256)
    assert found.by_seed == pytest.approx((GAIN[:, 0] / 256).tolist())
    paired = difference(*(Panel.of(policy_outcomes(gain).select(split="fresh_paired")) for gain in (3, 0)))
    # 128 and 129 are a pair that is gained, of 130 and 131 the first alone.
    assert paired.values[0, 64] == pytest.approx(1.0) and paired.values[0, 65] == pytest.approx(0.5)


def test_variance_components_by_brute_force():
    # Analysis of variance from the definition: sums of squares of every cell.
    values = np.random.default_rng(0).normal(size=(4, 9)) + np.arange(4)[:, None] + np.arange(9)[None, :] ** 2 / 9
    strata = np.array([0] * 4 + [1] * 5)
    units = residual = 0.0
    for stratum in (0, 1):
        part = values[:, strata == stratum]
        rows, columns, grand = part.mean(1), part.mean(0), part.mean()
        n = part.shape[1]
        units += n * sum((column - grand) ** 2 for column in columns) / (n - 1) / 81
        cells = sum((part[i, j] - rows[i] - columns[j] + grand) ** 2 for i in range(4) for j in range(n))
        residual += n * cells / (3 * (n - 1)) / 4 / 81
    seeds = sum((row - values.mean()) ** 2 for row in values.mean(1)) / 3 / 4
    assert variance_components(values, strata) == pytest.approx((seeds, units, residual))


def test_interval_where_only_seeds_differ_is_students():
    effects = np.array([0.01, 0.02, 0.03, 0.04, 0.05])
    found = bootstrap_t(Difference(np.repeat(effects[:, None], 50, axis=1), np.zeros(50, np.int64), 50))
    low, high = stats.t.interval(0.95, 4, 0.03, stats.sem(effects))
    assert (found.low, found.high) == pytest.approx((low, high), rel=2e-3)
    assert found.p == pytest.approx(stats.ttest_1samp(effects, 0, alternative="greater").pvalue, abs=2e-4)


def test_interval_where_only_tasks_differ_is_the_bootstraps():
    values = (np.arange(400) % 4 == 0).astype(float)  # a quarter gained, the same ones in every seed
    found = bootstrap_t(Difference(np.repeat(values[None, :], 5, axis=0), np.zeros(400, np.int64), 400))
    half = stats.norm.ppf(0.975) * np.sqrt(0.25 * 0.75 / 399)
    assert (found.low, found.high) == pytest.approx((0.25 - half, 0.25 + half), abs=3e-3)


def test_interval_without_any_spread():
    strata = np.zeros(10, np.int64)
    assert bootstrap_t(Difference(np.zeros((5, 10)), strata, 10)) == (0.0, 0.0, 0.0, 1.0)
    assert bootstrap_t(Difference(np.ones((5, 10)), strata, 10)) == (1.0, 1.0, 1.0, 1e-4)
    assert bootstrap_t(Difference(np.ones((5, 1)), np.zeros(1, np.int64), 1)).low is None  # one task shows no spread


def test_strata_of_one_task_are_put_together():
    values = np.random.default_rng(4).normal(size=(5, 6))
    strata = np.arange(6)
    assert bootstrap_t(Difference(values, strata, 6)) == bootstrap_t(Difference(values, np.zeros(6, np.int64), 6))


def coverage(studies, spread, effect=0.0):
    rng, held = np.random.default_rng(11), 0
    for _ in range(studies):
        made = simulate_study(rng, effect, spread)
        found = bootstrap_t(difference(made.arm, made.continued))
        held += found.low <= effect <= found.high
    return held


def passes(studies, spread, effect):
    rng = np.random.default_rng(12)
    return sum(decide({"a": simulate_study(rng, effect, spread)})["a"].result == "PASS" for _ in range(studies))


def test_the_simulation_has_the_effect_and_spread_it_was_asked_for():
    rng = np.random.default_rng(0)
    found = [difference(made.arm, made.continued) for made in (simulate_study(rng, 0.05, 0.04) for _ in range(400))]
    by_seed = np.array([one.by_seed for one in found])  # [400, 5]
    # A seed's difference has the spread and the noise of 1,280 tasks, of which a sixth to a fourth disagree.
    noise = np.sqrt(0.2 / 1280)
    assert by_seed.mean() == pytest.approx(0.05, abs=4 * np.hypot(0.04, noise) / np.sqrt(400))
    assert by_seed.std(axis=1, ddof=1).mean() == pytest.approx(0.94 * np.hypot(0.04, noise), rel=0.08)
    disagree = np.mean([(made.arm.solved != made.continued.solved).mean() for made in [simulate_study(rng, 0, 0.01)]])
    assert 0.1 < disagree < 0.25


@pytest.mark.parametrize("spread", [0.02])
def test_bars_on_a_few_simulated_studies(spread):
    # 300 studies at 95 %: a binomial's standard deviation is 3.8, and four of them below 285 are 270.
    assert coverage(300, spread) >= 270
    # Of 60 studies without an effect 2.5 % are 1.5; five or more happen once in 60 such tests, if it were so.
    assert passes(60, spread, 0.0) <= 4


def test_an_effect_of_five_points_passes():
    # At 80 % of 60 studies 48 pass, with a standard deviation of 3.1; the gate's own rate is near 97 %.
    assert passes(60, 0.01, 0.05) >= 48


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.01, 0.02, 0.04])
def test_bars_on_many_simulated_studies(spread):
    for effect in (0.0, 0.05):
        assert 0.93 <= coverage(4000, spread, effect) / 4000 <= 0.97
    assert passes(2000, spread, 0.0) / 2000 <= 0.025
    if spread == 0.01:
        assert passes(2000, spread, 0.05) / 2000 >= 0.8
