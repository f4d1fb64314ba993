"""`docs/machine.md` is current: its table, its commands, its code and the names it lists."""

import re
import shlex
from pathlib import Path

import pytest

import vm
from vm import edits, env, reference
from vm.__main__ import main
from vm.table import instruction_table

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "machine.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_instruction_table_is_that_of_the_code():
    shown = re.search(r"<!-- table:begin -->\n(.*?)\n<!-- table:end -->", TEXT, re.DOTALL)[1]
    assert shown == instruction_table(), "put the output of `python -m vm --table` between the markers"


def test_the_commands_print_what_is_shown(capsys):
    shown = blocks("console")
    assert shown
    for block in shown:
        command, output = block.split("\n", 1)
        words = shlex.split(command)
        assert words[:4] == ["$", "python", "-m", "vm"]
        assert main(words[4:]) == 0
        assert capsys.readouterr().out == output


def test_the_code_runs():
    code = blocks("python")
    assert len(code) >= 8
    exec(compile("\n".join(code), "docs/machine.md", "exec"), {})


def test_statuses_and_types_are_those_of_the_code():
    for codes in (vm.Status, vm.Type):
        rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (\d) \|", TEXT, re.MULTILINE))
        assert {code.name: str(code.value) for code in codes}.items() <= rows.items()
    assert re.findall(r"^\| `(\w+)` \| [^|]* \|$", TEXT.split("## The environment")[0], re.MULTILINE)[-6:] == [
        *vm.SPLITS
    ]


def test_numbers_of_actions_are_those_of_the_code():
    """The two formulas of the page, on every slot."""
    assert vm.DEFAULT_SETTINGS.num_actions == 1 + 8 * (44 + 16) == 481
    for slot in range(8):
        assert edits.encode_action("SET_OP", slot, 7) == 1 + slot * (44 + 16) + 7
        assert edits.encode_action("SET_ARG", slot, 7) == 1 + slot * (44 + 16) + 44 + 7


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`vm\.([a-zA-Z_.]+)", TEXT.split("## Names")[1]))))
def test_the_names_exist(name):
    found = vm
    for part in name.split("."):
        found = getattr(found, part, None) or {"env": env, "reference": reference}[part]
    assert found is not None


def test_every_public_name_is_listed():
    listed = set(re.findall(r"`vm\.(\w+)", TEXT))
    public = {name for name in vars(vm) if not name.startswith("_") and not hasattr(vars(vm)[name], "__path__")}
    modules = {name for name in public if type(vars(vm)[name]).__name__ == "module"}
    assert public - modules <= listed, public - modules - listed
