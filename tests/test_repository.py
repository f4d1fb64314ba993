"""The project's own files agree with each other: README, Makefile, CI, packaging and the layers of the packages."""

import ast
import graphlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()


def imports(path):
    """The top-level names of the packages that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def test_the_readme_begins_with_commands_that_ci_runs():
    readme = (ROOT / "README.md").read_text()
    ci = (ROOT / ".ci/run").read_text()
    for command in ("make pilot", "make test"):
        assert command in "\n".join(readme.splitlines()[:30])
        assert re.search(rf"^\s*(PYTHONHASHSEED=\$run )?{command}\b", ci, re.MULTILINE)


def test_every_make_command_in_the_readme_exists():
    commands = re.findall(r"^\s*make ([\w-]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(commands) <= set(TARGETS)


def test_every_target_is_written_and_pilot_is_the_first():
    rules = re.findall(r"^([\w./-]+):(?!=)", MAKEFILE, re.MULTILINE)
    assert rules[0] == "pilot"
    assert set(TARGETS) <= set(rules)


def test_ci_names_test_files_that_exist():
    named = re.findall(r"tests/test_\w+\.py", (ROOT / ".ci/run").read_text())
    assert named and all((ROOT / name).exists() for name in named)


@pytest.mark.parametrize("path", sorted((ROOT / "vm").rglob("*.py")), ids=lambda path: path.name)
def test_the_machine_knows_jax_numpy_and_chex_only(path):
    assert imports(path) - set(sys.stdlib_module_names) <= {"vm", "jax", "numpy", "chex"}


def test_everything_imported_is_declared():
    """The Gymnasium wrapper and TensorBoard events need extras."""
    extras = PROJECT["project"]["optional-dependencies"]
    lines = PROJECT["project"]["dependencies"] + extras["gym"] + extras["tensorboard"]
    declared = {re.match(r"[\w-]+", line)[0].replace("-", "_").lower() for line in lines}
    modules = {"orbax_checkpoint": "orbax", "tensorboardx": "tensorboardX"}
    declared = {modules.get(name, name) for name in declared}
    used = set().union(*(imports(path) for package in ("vm", "fuyu_jax") for path in (ROOT / package).rglob("*.py")))
    assert used - set(sys.stdlib_module_names) - {"vm", "fuyu_jax"} <= declared


def test_jax_and_flax_cannot_meet_in_versions_that_clash():
    """flax 0.12.8 and older break under jax 0.11.1 and newer."""
    lines = [line for line in PROJECT["project"]["dependencies"] if re.match(r"(jax|flax)\b", line)]
    assert [line for line in lines if "< '3.12'" in line] == [
        "jax>=0.10.2,<0.11; python_version < '3.12'",
        "flax==0.12.8; python_version < '3.12'",
    ]
    assert [line for line in lines if ">= '3.12'" in line] == [
        "jax>=0.11.1,<0.13; python_version >= '3.12'",
        "flax>=0.12.9,<0.13; python_version >= '3.12'",
    ]


def test_the_packages_carry_their_data():
    data = PROJECT["tool"]["setuptools"]["package-data"]
    for package, patterns in data.items():
        for pattern in patterns:
            assert list((ROOT / package).glob(pattern)), f"{package} has no {pattern}"
    kept = {path for package, patterns in data.items() for p in patterns for path in (ROOT / package).glob(p)}
    other = {
        path
        for package in ("vm", "fuyu_jax")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert other <= kept


def module_imports(path):
    """Modules of ours that a file imports when it is imported: not inside functions, nor for type checking alone."""
    found = set()

    def visit(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.level == 0:
                found.update({child.module, *(f"{child.module}.{alias.name}" for alias in child.names)})
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def test_no_module_imports_itself_by_a_detour():
    """Following imports from any module never leads back to it; a package stands for its `__init__`."""
    paths = [path for package in ("vm", "fuyu_jax") for path in (ROOT / package).rglob("*.py")]
    name_of = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    graph = {name: {m for m in module_imports(path) if m in name_of.values() and m != name}
             for path, name in name_of.items()}  # fmt: skip
    assert len(graph) > 100 and graph["fuyu_jax.policy"] >= {"fuyu_jax.rollout"}
    packages = {name for path, name in name_of.items() if path.name == "__init__.py"}
    for name, imported in graph.items():
        # `from package import module` is an edge to the module; the package's own `__init__` may import its modules.
        graph[name] = {m for m in imported if not (m in packages and name.startswith(m + "."))}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_scripts_are_thin():
    for path in (ROOT / "experiments").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 40, path.name
