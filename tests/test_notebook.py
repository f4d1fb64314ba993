"""The tour runs from top to bottom in a kernel of its own, as a reader runs it."""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).resolve().parents[1] / "docs" / "tour.ipynb"
LITTLE = "COPY_UPDATES, OWN_UPDATES, TASKS_A_TURN, SHOWN = 2, 2, 4, 8"


def run_tour(first=None):
    """What each cell printed, with other sizes in the first one if they are given."""
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code[0].source.splitlines()[-1].startswith("COPY_UPDATES, OWN_UPDATES, TASKS_A_TURN, SHOWN = ")
    if first is not None:
        code[0].source = first
    resources = {"metadata": {"path": str(TOUR.parent.parent)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in code]


def check(printed):
    text = "\n".join(printed)
    for words in (
        "FGT 3    -> [5, 4]",
        "broken: TYPE_ERROR",
        "edits away",
        "after copying: solved",
        "after the update: solved",
    ):
        assert words in text
    assert "P(STOP)" in text or "STOP" in text
    assert "programs run a task" in printed[-1]


def test_the_tour_runs_in_little():
    check(run_tour(LITTLE))


@pytest.mark.slow
def test_the_tour_runs_and_the_policy_learns():
    printed = run_tour()
    check(printed)
    shares = [int(line.split("solved ")[1].split("%")[0]) for cell in printed for line in cell.splitlines()
              if line.startswith(("after copying", "after the update"))]  # fmt: skip
    assert shares[1] > shares[0]


def test_it_is_kept_without_outputs():
    cells = json.loads(TOUR.read_text())["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")
