"""Metrics against numbers worked by hand, against a brute-force count, and against a file read back."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuyu_jax.evaluate.metrics import (
    at_budget,
    extra_metrics,
    headline,
    last_update,
    mcnemar_mid_p,
    metrics_from_outcomes,
    paired_difference,
    round_of,
    sample_std,
    summary,
    wilson,
)
from fuyu_jax.evaluate.outcomes import Outcomes, edits_to_text
from fuyu_jax.runs.tables import METRICS_COLUMNS, OUTCOMES_COLUMNS, read_csv, to_csv

SPLITS = ("val_mixed", "fresh_standard", "fresh_paraphrase", "fresh_paired", "hard_composition")


def build(**columns):
    """Outcomes with plain defaults: one rollout a task that attempted nothing."""
    solved = np.asarray(columns.get("solved", [False]), bool)
    defaults = {
        "arm": "grpo_echo", "phase": "bc_policy", "seed": 0, "mode": "learned", "split": "val_mixed", "k": 8,
        "task": np.arange(len(solved)), "start_solved": False, "solved": solved, "ever_solved": solved,
        "false_stop": False, "steps": 0, "valid_edits": 0, "edits": "",
    }  # fmt: skip
    return Outcomes.build(**{**defaults, **columns})


def only(rows, **values):
    found = [row for row in rows if all(row[key] == value for key, value in values.items())]
    assert len(found) == 1, f"{len(found)} rows have {values}"
    return found[0]


FOUR = build(
    start_solved=[True, True, False, False],
    solved=[True, False, True, False],
    ever_solved=[True, True, True, False],
    false_stop=[False, True, False, False],
    steps=[0, 1, 3, 8],
    valid_edits=[0, 1, 3, 2],
)


def test_metrics_of_four_tasks_worked_by_hand():
    row = only(metrics_from_outcomes(FOUR), split="val_mixed")
    assert tuple(row) == METRICS_COLUMNS
    assert (row["arm"], row["phase"], row["mode"], row["k"], row["n"]) == ("grpo_echo", "bc_policy", "learned", 8, 4)
    assert row["accuracy"] == 0.5
    assert row["new_solved"] == 0.5  # one of the two unsolved at the start
    assert row["kept_solved"] == 0.5  # one of the two solved at the start
    assert row["false_stop_rate"] == 0.25
    assert row["valid_edit_rate"] == 0.5  # 6 of 12
    assert row["mean_steps"] == 3.0
    # Wilson for 2 of 4: centre 1/2, half-width z / (n + z^2) * sqrt(n/4 + z^2/4) with z = 1.959964.
    assert row["accuracy_low"] == pytest.approx(0.150039, abs=1e-6)
    assert row["accuracy_high"] == pytest.approx(0.849961, abs=1e-6)
    assert only(extra_metrics(FOUR))["ever_solved"] == 0.75


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (1, 10), (7, 20), (10, 10), (1056, 1280), (0, 1)])
def test_wilson_is_the_closed_form(successes, n):
    z, p = 1.959963984540054, successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert wilson(successes, n) == pytest.approx((centre - half, centre + half), abs=1e-12)


def test_an_empty_denominator_is_an_empty_cell():
    row = only(metrics_from_outcomes(build(solved=[True, False], start_solved=False)), split="all")
    assert row["kept_solved"] is None and row["valid_edit_rate"] is None and row["new_solved"] == 0.5
    row = only(metrics_from_outcomes(build(solved=[True, True], start_solved=True)), split="all")
    assert row["new_solved"] is None and row["kept_solved"] == 1.0
    text = to_csv(METRICS_COLUMNS, [row])
    assert text.splitlines()[1] == "grpo_echo,bc_policy,learned,all,8,2,1,0.3423802275,1,,1,0,,0"


def test_the_split_all_pools_tasks_and_not_rates():
    parts = [build(split="val_mixed", solved=[True] * 3), build(split="hard_composition", solved=[False])]
    rows = metrics_from_outcomes(Outcomes.concatenate(parts))
    assert [row["split"] for row in rows] == ["val_mixed", "hard_composition", "all"]
    assert only(rows, split="all")["accuracy"] == 0.75
    assert only(rows, split="all")["n"] == 4


def test_a_rollout_held_twice_is_refused():
    with pytest.raises(ValueError, match="'task': 0} 2 times"):
        metrics_from_outcomes(Outcomes.concatenate([build(), build()]))
    with pytest.raises(ValueError, match="'all' is not a split"):
        metrics_from_outcomes(build(split="all"))


def test_build_checks_steps_and_lengths():
    with pytest.raises(ValueError, match="9 steps"):
        build(steps=9)
    with pytest.raises(ValueError, match="3 steps are more than the 2 actions"):
        build(steps=3, edits=np.zeros((1, 2), int))
    with pytest.raises(ValueError):
        build(solved=[True, False], task=np.arange(3))


def test_edits_are_the_attempted_actions():
    actions = np.array([[5, 6, 7], [8, 9, 10]])
    assert edits_to_text(actions, np.array([2, 0])) == ["5 6", ""]
    assert build(solved=[True, False], edits=actions, steps=[2, 3]).edits.tolist() == ["5 6", "8 9 10"]


def _random_outcomes(seed):
    rng = np.random.default_rng(seed)
    parts = []
    for phase in ("bc_policy", "none", "NA", "nan", "007"):
        for split in ("val_mixed", "fresh_paired"):
            n = 7
            steps = rng.integers(0, 5, n)
            parts.append(
                build(
                    arm="null", phase=phase, split=split, k=4, solved=rng.random(n) < 0.5, seed=3,
                    start_solved=rng.random(n) < 0.3, ever_solved=rng.random(n) < 0.7, false_stop=rng.random(n) < 0.2,
                    steps=steps, valid_edits=rng.integers(0, steps + 1), edits=rng.integers(0, 480, (n, 4)),
                )
            )  # fmt: skip
    return Outcomes.concatenate(parts)


def test_metrics_recomputed_from_the_file_are_the_same_bytes(tmp_path):
    outcomes = _random_outcomes(0)
    path = tmp_path / "outcomes.csv"
    path.write_text(to_csv(OUTCOMES_COLUMNS, outcomes.rows()), newline="")
    back = Outcomes.read(path)
    for name in OUTCOMES_COLUMNS:
        np.testing.assert_array_equal(getattr(back, name), getattr(outcomes, name), strict=False)
    table = to_csv(METRICS_COLUMNS, metrics_from_outcomes(outcomes))
    assert to_csv(METRICS_COLUMNS, metrics_from_outcomes(back)) == table
    phases = {row["phase"] for row in metrics_from_outcomes(back)}
    assert phases == {"bc_policy", "none", "NA", "nan", "007"}
    assert {row["start_solved"] for row in read_csv(path)} == {"0", "1"}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_metrics_equal_a_count_over_rows(seed):
    outcomes = _random_outcomes(seed)
    rows = list(outcomes.rows())
    for found in metrics_from_outcomes(outcomes):
        mine = [row for row in rows if row["phase"] == found["phase"] and found["split"] in (row["split"], "all")]
        unsolved = [row["solved"] for row in mine if not row["start_solved"]]
        kept = [row["solved"] for row in mine if row["start_solved"]]
        attempted = sum(row["steps"] for row in mine)
        assert found["n"] == len(mine)
        assert found["accuracy"] == pytest.approx(sum(row["solved"] for row in mine) / len(mine))
        assert found["new_solved"] == (pytest.approx(sum(unsolved) / len(unsolved)) if unsolved else None)
        assert found["kept_solved"] == (pytest.approx(sum(kept) / len(kept)) if kept else None)
        assert found["false_stop_rate"] == pytest.approx(sum(row["false_stop"] for row in mine) / len(mine))
        rate = pytest.approx(sum(row["valid_edits"] for row in mine) / attempted) if attempted else None
        assert found["valid_edit_rate"] == rate
        assert found["mean_steps"] == pytest.approx(attempted / len(mine))
        assert 0 <= found["accuracy_low"] <= found["accuracy"] <= found["accuracy_high"] <= 1


def _ladder(budgets=(0, 4, 8, 12), **columns):
    """Ten tasks a split; `k // 4` of them solved at budget k, and one more in hard_composition."""
    parts = []
    for split in SPLITS:
        for k in budgets:
            count = k // 4 + (split == "hard_composition")
            parts.append(build(split=split, k=k, solved=np.arange(10) < count, steps=k // 2, **columns))
    return Outcomes.concatenate(parts)


def test_headline_columns_worked_by_hand():
    row = only(headline(_ladder()))
    # Solved of ten at K = 0, 4, 8: 0, 1, 2 in four splits and 1, 2, 3 in hard_composition.
    assert row["mean_accuracy_k048"] == pytest.approx((4 * 0.3 + 0.6) / 15)
    assert row["k8_accuracy"] == pytest.approx((4 * 2 + 3) / 50)
    # K = 8 in four splits, K = 12 in hard_composition.
    assert row["accuracy_at_budget"] == pytest.approx((4 * 2 + 4) / 50)
    assert (row["low"], row["high"]) == wilson(12, 50)
    assert row["n"] == 50
    assert row["mean_steps_k048"] == pytest.approx(2.0)
    assert row["false_stop_rate_k048"] == 0.0


def test_a_headline_column_whose_budget_is_missing_is_empty():
    row = only(headline(_ladder((0, 4, 8))))
    assert row["accuracy_at_budget"] is None and row["n"] == 0
    assert row["mean_accuracy_k048"] is not None
    row = only(headline(_ladder((0, 8, 12))))
    assert row["mean_accuracy_k048"] is None and row["false_stop_rate_k048"] is None
    assert row["accuracy_at_budget"] is not None


def test_at_budget_takes_twelve_for_hard_composition_only():
    rows = at_budget(_ladder())
    assert {(row["split"], row["k"]) for row in rows.rows()} == {
        (split, 12 if split == "hard_composition" else 8) for split in SPLITS
    }


def test_pair_accuracy_needs_both_of_a_pair():
    solved = [True, True, True, False, False, True, False, False, True]  # pairs (0,1) (2,3) (4,5) (6,7), 8 alone
    row = only(extra_metrics(build(split="fresh_paired", solved=solved)))
    assert row["pairs"] == 4 and row["pair_accuracy"] == 0.25
    assert (row["pair_accuracy_low"], row["pair_accuracy_high"]) == wilson(1, 4)
    shuffled = build(split="fresh_paired", solved=solved).take(np.array([3, 8, 0, 7, 1, 6, 2, 5, 4]))
    assert only(extra_metrics(shuffled)) == row
    assert "pair_accuracy" not in only(extra_metrics(build(solved=solved)))
    assert only(extra_metrics(build(split="fresh_paired", solved=[True])))["pair_accuracy"] is None


def test_pairs_of_two_seeds_are_not_mixed():
    one = build(split="fresh_paired", solved=[True, False], seed=1)
    two = build(split="fresh_paired", solved=[False, True], seed=2)
    row = only(extra_metrics(Outcomes.concatenate([one, two])))
    assert row["pairs"] == 2 and row["pair_accuracy"] == 0.0


def test_paired_difference_worked_by_hand():
    base = build(solved=[True, False, False, False, True])
    policy = build(solved=[True, True, True, False, False])
    found = paired_difference(policy, base)
    # Differences 0, 1, 1, 0, -1: mean 0.2, sample variance 0.7, t(0.975, 4) = 2.776445.
    half = 2.776445 * math.sqrt(0.7 / 5)
    assert found.difference == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-6)
    assert (found.accuracy, found.base_accuracy, found.tasks, found.seeds) == (0.6, 0.4, 5, 1)
    assert (found.gained, found.lost) == (2, 1)
    # Two-sided exact p is 1 here; the mid-p takes off the probability of the observed split, C(3,1)/8.
    assert found.mcnemar_mid_p == pytest.approx(0.625)
    assert found.verdict == "undecided" and found.seed_std is None


@pytest.mark.parametrize(
    ("solved", "base", "verdict"),
    [([1] * 20, [0] * 20, "better"), ([0] * 20, [1] * 20, "worse"), ([1, 0] * 9, [0, 1] * 9, "undecided")],
)
def test_verdicts(solved, base, verdict):
    assert paired_difference(build(solved=solved), build(solved=base)).verdict == verdict


def test_one_task_and_no_change_make_no_nan():
    found = paired_difference(build(solved=[True]), build(solved=[False]))
    assert found.low is None and found.verdict == "undecided"
    same = paired_difference(build(solved=[True, False]), build(solved=[True, False]))
    assert (same.difference, same.low, same.high, same.mcnemar_mid_p) == (0.0, 0.0, 0.0, 1.0)


def test_seeds_are_averaged_within_a_task():
    base = Outcomes.concatenate([build(solved=[False] * 3, seed=seed) for seed in (0, 1)])
    policy = Outcomes.concatenate(
        [build(solved=[True, True, False], seed=0), build(solved=[True, False, False], seed=1)]
    )
    found = paired_difference(policy, base)
    # Per task 1, 1/2, 0: mean 1/2, sample standard deviation 1/2, t(0.975, 2) = 4.302653.
    assert (found.tasks, found.seeds, found.difference) == (3, 2, pytest.approx(0.5))
    assert found.high - found.low == pytest.approx(2 * 4.302653 * 0.5 / math.sqrt(3), abs=1e-6)
    # Per seed 2/3 and 1/3: sample standard deviation 1/3 / sqrt(2).
    assert found.seed_std == pytest.approx(1 / 3 / math.sqrt(2))


def test_the_order_of_rows_does_not_matter():
    rng = np.random.default_rng(1)
    base, policy = build(solved=rng.random(40) < 0.5), build(solved=rng.random(40) < 0.6)
    assert paired_difference(policy.take(rng.permutation(40)), base.take(rng.permutation(40))) == paired_difference(
        policy, base
    )


def test_unlike_tasks_are_not_paired():
    with pytest.raises(ValueError, match="same tasks"):
        paired_difference(build(solved=[True, True]), build(solved=[True]))
    with pytest.raises(ValueError, match="same tasks"):
        paired_difference(build(k=4), build(k=4))
    with pytest.raises(ValueError, match="more than once"):
        paired_difference(Outcomes.concatenate([build(), build(mode="forced")]), build())


@pytest.mark.parametrize(
    ("gained", "lost", "p"), [(0, 0, 1.0), (3, 3, 1.0), (0, 11, 0.5**11), (11, 0, 0.5**11), (1, 0, 0.5), (5, 1, 0.125)]
)
def test_mcnemar_mid_p(gained, lost, p):
    assert mcnemar_mid_p(gained, lost) == pytest.approx(p)


def test_the_spread_over_seeds_is_the_sample_standard_deviation():
    assert sample_std([1, 2, 3, 4]) == pytest.approx(1.2909944)
    assert sample_std([0.5]) is None
    assert sample_std([2, 2]) == 0.0


def test_rounds_are_ordered_as_numbers():
    phases = ["bc_policy", "grpo_echo_r9_policy", "grpo_echo_r10_policy", "grpo_echo_r2_policy", "do_nothing", "r3"]
    assert last_update(phases) == "grpo_echo_r10_policy"
    assert last_update(["bc_policy", "oracle_search"]) is None
    assert round_of("grpo_echo_r10_policy") == 10 and round_of("bc_policy_e1") is None


def test_summary_compares_the_last_round_with_copying():
    def policy(phase, count):
        parts = [
            build(split=split, phase=phase, k=k, solved=np.arange(20) < count) for split in SPLITS for k in (8, 12)
        ]
        return Outcomes.concatenate(parts)

    outcomes = Outcomes.concatenate(
        [policy("bc_policy", 5), policy("grpo_echo_r9_policy", 0), policy("grpo_echo_r10_policy", 15)]
    )
    comparisons = summary(outcomes)["comparisons"]
    assert [row["split"] for row in comparisons] == [*sorted(SPLITS), "all"]
    row = comparisons[-1]
    assert (row["arm"], row["phase"], row["mode"]) == ("grpo_echo", "grpo_echo_r10_policy", "learned")
    assert (row["difference"], row["tasks"], row["verdict"]) == (0.5, 100, "better")
    assert row["endpoint"] == "accuracy_at_budget"


def test_summary_falls_back_to_eight_edits_where_twelve_were_not_measured():
    rows = [
        build(split=split, phase=phase, solved=np.arange(4) < count)
        for split in SPLITS
        for phase, count in (("bc_policy", 2), ("grpo_echo_r1_policy", 2))
    ]
    row = summary(Outcomes.concatenate(rows))["comparisons"][-1]
    assert (row["endpoint"], row["tasks"], row["difference"], row["verdict"]) == ("k8_accuracy", 20, 0.0, "undecided")


def test_summary_of_copying_alone_has_no_comparison():
    found = summary(_ladder(arm="bc"))
    assert found["comparisons"] == [] and len(found["headline"]) == 1
