"""The report: rebuilt from the run folder's files alone, with the answer that its numbers give."""

import re

import pytest
from run_samples import sample_outcomes, sample_train_log, write_run

from fuyu_jax.runs.document import Bullets, Code, Table, Text, code
from fuyu_jax.runs.markdown import escape, parts_text, table, table_of
from fuyu_jax.runs.report import answer, headline_text, write_report
from fuyu_jax.runs.report_tables import RunRecord, data_table
from fuyu_jax.runs.wording import between, interval, number, percent, points


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("run") / "run", seed=3)
    return folder, write_report(folder).read_text()


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_the_report_has_every_part(report):
    folder, text = report
    assert text.startswith("# GRPO + ECHO, preset pilot, seed 3\n")
    for heading in ("Ours beside the original", "Split by split", "Every phase and mode", "Signals of the last round"):
        assert f"## {heading}" in text
    for heading in ("Training diagnostics", "Figures", "What ran", "How to read this folder"):
        assert f"## {heading}" in text
    assert "python experiments/pilot.py --arm grpo_echo --preset pilot --seed 3" in text
    assert "`0123abc`, with local changes" in text
    assert "Qwen Fuyu VM GRPO-ECHO experiment report (2026-06-24)" in text
    assert "123456" in text  # a count from results.json
    assert not re.search(r"\b(nan|None)\b", text)


def test_every_figure_is_shown_and_exists(report):
    folder, text = report
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert len(shown) >= 9
    for name in shown:
        assert (folder / name).stat().st_size > 1000
        assert (folder / name).with_suffix(".csv").exists()


def test_every_table_is_rectangular(report):
    _, text = report
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(blocks) > 15
    for block in blocks:
        widths = {len(cells(line)) for line in block.splitlines()}
        assert len(widths) == 1, block


def test_the_originals_figures_stand_beside_ours(report):
    _, text = report
    section = text.split("## Ours beside the original")[1].split("##")[0]
    rows = {(row[0], row[1]): row for row in map(cells, section.splitlines()) if len(row) > 5}
    assert rows[("copied policy", "learned")][-3:] == ["10.0 %", "13.8 %", "8.3 %"]
    assert rows[("GRPO + ECHO, round 2†", "learned")][-3:] == ["7.1 %", "0.0 %", "4.2 %"]
    assert rows[("oracle (reference)‡", "verified‡")][-3:] == ["82.5 %", "82.5 %", "0.0 %"]
    assert rows[("do nothing", "forced")][2] == "12.5 %"


def test_eight_samples_are_shown_by_phase_and_split(report):
    _, text = report
    section = text.split("## With eight samples a task")[1].split("##")[0]
    rows = [cells(line) for line in section.splitlines() if line.startswith("|")]
    assert rows[0] == ["policy", "val_mixed", "fresh_paired"]
    assert rows[2:] == [["copied policy", "37.5 %", "25.0 %"], ["GRPO + ECHO, round 2†", "87.5 %", ""]]


def test_the_terminal_shows_the_answer_and_the_headline(report):
    folder, text = report
    shown = headline_text(folder)
    sentence = answer(RunRecord.read(folder))
    assert shown.startswith(sentence) and f"**{sentence}**" in text
    assert "copied policy" in shown and "10.0 %" in shown and "|" not in shown
    assert max(map(len, shown.splitlines()[2:])) <= 120


def test_it_is_rebuilt_from_the_files_alone(report):
    folder, text = report
    before = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    (folder / "report.md").unlink()
    assert write_report(folder).read_text() == text
    assert {path.name: path.read_bytes() for path in (folder / "figures").iterdir()} == before


def test_the_answer_says_what_was_not_measured(tmp_path):
    outcomes = sample_outcomes()
    folder = write_run(tmp_path / "run", outcomes.take(outcomes.k < 8))
    assert answer(RunRecord.read(folder)).startswith("The update was not measured at K=8")


@pytest.mark.parametrize(
    ("copied", "updated", "words"),
    [
        (0.2, 0.9, "The update made the policy better: after 2 rounds of GRPO + ECHO"),
        (0.9, 0.2, "The update made the policy worse: after 2 rounds of GRPO + ECHO"),
        (0.5, 0.5, "Whether the update made the policy better is undecided: after 2 rounds"),
    ],
)
def test_the_answer_follows_the_interval(copied, updated, words, tmp_path):
    folder = write_run(tmp_path / "run", sample_outcomes(copied=copied, updated=updated))
    record = RunRecord.read(folder)
    found = next(r for r in record.results["comparisons"] if r["split"] == "all" and r["mode"] == "learned")
    sentence = answer(record)
    assert sentence.startswith(words)
    assert f"{100 * found['difference']:+.1f} points" in sentence
    assert f"{100 * found['low']:+.1f} to {100 * found['high']:+.1f}" in sentence
    assert sentence.count(". ") == 0 and sentence.endswith(".")


def test_one_round_and_budget_eight_are_said_so(tmp_path):
    folder = write_run(tmp_path / "run", sample_outcomes(rounds=1, budgets=(0, 4, 8)), preset="original")
    sentence = answer(RunRecord.read(folder))
    assert "after 1 round of" in sentence and "of the tasks at K=8 against" in sentence
    assert write_report(folder).exists()


def test_a_run_that_only_copied(tmp_path):
    folder = write_run(tmp_path / "run", sample_outcomes("bc", rounds=0), sample_train_log("bc", 0), arm="bc")
    text = write_report(folder).read_text()
    record = RunRecord.read(folder)
    row = next(r for r in record.tables.headline if (r["phase"], r["mode"]) == ("bc_policy", "learned"))
    assert f"copying alone solves {100 * row['accuracy_at_budget']:.1f} % of the tasks" in text
    assert "This arm samples no rollouts" in text and "†" not in text


def test_arms_without_oracle_labels_are_not_marked(tmp_path):
    folder = write_run(tmp_path / "run", anchor_weight=0.0, reward="terminal")
    assert "†" not in write_report(folder).read_text()


def test_policies_that_see_the_targets_are_marked(tmp_path):
    folder = write_run(tmp_path / "run", show_targets=True)
    assert "copied policy‡" in write_report(folder).read_text()


def test_odd_text_does_not_break_the_tables(tmp_path):
    outcomes = sample_outcomes("a|b*<c>", rounds=0)
    folder = write_run(tmp_path / "run", outcomes, manifest={"command": "python `x`\n| y"})
    text = write_report(folder).read_text()
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({len(cells(line)) for line in block.splitlines()}) == 1
    assert "A \\| B \\<c\\>" in text
    assert "`python 'x' | y`" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", "a\\|b"), ("fresh_standard", "fresh_standard"), ("_x_", "\\_x\\_"), ("a*b`c", "a\\*b\\`c"),
        ("<td>&amp;", "\\<td\\>\\&amp;"), ("two\nlines", "two lines"), ("[a](b)", "\\[a\\](b)"), ("a\\b", "a\\\\b"),
    ],
)  # fmt: skip
def test_escape(text, shown):
    assert escape(text) == shown


def test_numbers_in_words():
    assert percent(0.1234) == "12.3 %" and percent(None) == ""
    assert points(0.031) == "+3.1" and points(-0.029) == "-2.9"
    assert interval(0.5, 0.4, 0.6) == "50.0 % (40.0 to 60.0)" and interval(0.5, None, None) == "50.0 %"
    assert number(1234567) == "1,234,567" and number(0.12345) == "0.1235" and number(None) == ""
    assert number("a|b") == "a|b" and number(1e-9) == "1e-09"
    assert between(0.1, -0.2) == "+10.0 to -20.0" and between(None, 0.1) == ""


def test_tables():
    assert table(["a"], []) == "*No data.*"
    shown = table_of(data_table([{"name": "x", "n": 1}, {"name": "y", "m": 0.5}]))
    assert [cells(line) for line in shown.splitlines()[2:]] == [["x", "1", ""], ["y", "", "0.5"]]
    long = table_of(data_table([{"n": index} for index in range(601)], most=60))
    assert len(long.splitlines()) == 2 + 55 + 2 and long.endswith("One row in 11 of 601.")
    assert cells(table_of(Table(["a|b"], [["<c>"]])).splitlines()[2]) == ["\\<c\\>"]


def test_words_are_plain_but_for_code():
    assert parts_text([Text("a `b_*` *c* ` d"), Bullets(["<x>", code("`y`\nz")])]) == (
        "a `b_*` \\*c\\* ` d`\n\n- \\<x\\>\n- `'y' z`"
    )
    assert parts_text([Code("a ``` b")]) == "````\na ``` b\n````"
