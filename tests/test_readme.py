"""The README's Python runs, and its table is the one of the committed data."""

import json
import re
from pathlib import Path

from fuyu_jax.qwen3 import memory
from fuyu_jax.runs.marked import marks
from fuyu_jax.runs.pooling import README_PART, pooled_table
from fuyu_jax.study import front_page
from fuyu_jax.study.packing import StudyData
from fuyu_jax.study.plan import read_plan
from fuyu_jax.study.results import Results

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def part_of_readme(name):
    begin, end = marks(name)
    return README[README.index(begin) + len(begin) : README.index(end)].strip()


def test_the_snippets_run(capsys):
    snippets = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), {})
    assert "\n18\n" in capsys.readouterr().out


def test_the_table_is_that_of_the_committed_runs():
    pooled = json.loads((ROOT / "reports/pilot.json").read_text())
    assert part_of_readme(README_PART) == pooled_table(pooled)
    assert pooled_table(pooled) in (ROOT / "reports/pilot.md").read_text()


def test_the_study_is_that_of_the_committed_data():
    folder = ROOT / "reports" / "study"
    results = Results(read_plan(ROOT / "experiments" / "study.toml"), StudyData.read(folder))
    assert part_of_readme(front_page.README_PART) == front_page.part_text(results, folder, ROOT / "README.md")


def test_the_memory_table_is_what_its_command_prints(capsys):
    memory.main([])
    begin, end = "<!-- memory:begin -->\n", "<!-- memory:end -->"
    assert README[README.index(begin) + len(begin) : README.index(end)] == capsys.readouterr().out


def test_the_readme_links_to_files_that_exist():
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
