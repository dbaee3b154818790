"""What only one file or package may have: a library, the names of failure classes, calls of `print`."""

from __future__ import annotations

import ast

import pytest

from launcher.agent.failures import Failure
from tests.imports import ROOT, files, named


@pytest.mark.parametrize(
    ("library", "directory"),
    [
        ("typer", "launcher/cli"),
        ("rich", "launcher/console"),
        ("kubernetes", "launcher/backends/kubernetes"),
        ("drawsvg", "launcher/pages"),
        ("starlette", "launcher/server"),
        ("uvicorn", "launcher/server"),
    ],
)
def test_a_library_is_imported_in_one_package_only(library: str, directory: str) -> None:
    using = {
        path for path in files("launcher/**/*.py") for module, *_ in named(path) if module.split(".")[0] == library
    }
    assert using
    assert not [path for path in using if not path.is_relative_to(ROOT / directory)]


@pytest.mark.parametrize(
    ("module", "name", "ours"),
    [
        ("dataclasses", "", "launcher/system/dataclass.py"),
        ("typing", "NamedTuple", "launcher/agent/named_tuple.py"),
    ],
)
def test_what_is_slow_to_import_has_one_replacement(module: str, name: str, ours: str) -> None:
    """Each start of a launcher or an agent would pay for it."""
    using = [
        path
        for path in files("launcher/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (
            isinstance(node, ast.ImportFrom) and node.module == module and name in (*map(imported_name, node.names), "")
        )
        or (isinstance(node, ast.Import) and not name and module in map(imported_name, node.names))
    ]
    assert set(using) == {ROOT / ours}


def imported_name(alias: ast.alias) -> str:
    """Before it is renamed."""
    return alias.name


def test_failure_classes_are_named_only_in_their_table() -> None:
    """A new one is a row there and one in docs/agent-stream.md. Ambiguous names count only where they are classes."""
    unambiguous = {each.value for each in Failure} - {"node", "fabric", "killed", "collective", "timeout"}
    wrong, seen = [], set()
    for path in files("launcher/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            found = [each for each in as_class(node) if each.value in {*Failure}]
            found += [node] if isinstance(node, ast.Constant) and node.value in unambiguous else []
            if path == ROOT / "launcher/agent/failures.py":
                seen |= {each.value for each in found}
            else:
                wrong += [f"{path.relative_to(ROOT)}:{each.lineno} has {each.value!r}, no Failure" for each in found]
    assert wrong == []
    assert seen == unambiguous


def test_a_fixture_of_a_whole_session_is_not_imported() -> None:
    """Each module that imports one has a fixture of its own: a second cluster, and a second server on one port."""
    defined = {
        (".".join(path.relative_to(ROOT).with_suffix("").parts), name)
        for path in files("tests/**/*.py")
        for name in session_fixtures(ast.parse(path.read_text()))
    }
    imported = [
        f"{path.relative_to(ROOT)}:{node.lineno} imports {each.name}"
        for path in files("tests/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.")
        for each in node.names
        if (node.module, each.name) in defined
    ]
    assert {name for _, name in defined} >= {"juno", "island"}
    assert imported == []


def session_fixtures(module: ast.Module) -> list[str]:
    """The names of a module's fixtures that last for the session."""
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    return [each.name for each in functions if any("scope='session'" in ast.unparse(d) for d in each.decorator_list)]


def as_class(node: ast.AST) -> list[ast.Constant]:
    """Texts that are failure classes: the value of "class" or `kind`, or what one of these is compared with."""
    if isinstance(node, ast.Dict):
        values = [value for key, value in zip(node.keys, node.values, strict=True) if is_text(key, "class")]
    elif isinstance(node, ast.Compare) and any(is_text(each, "class") for each in ast.walk(node.left)):
        values = node.comparators
    elif isinstance(node, ast.keyword) and node.arg in ("kind", "reason", "why_again", "sigterm_means"):
        values = [node.value]
    elif isinstance(node, ast.Call) and node.args and is_text(node.args[0], "class"):
        values = node.args[1:]
    else:
        return []
    inner = [each for value in values for each in ast.walk(value)]
    return [each for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def is_text(node: ast.AST | None, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def test_only_output_prints() -> None:
    wrong = []
    for path in files("launcher/**/*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        prints = any(isinstance(func, ast.Name) and func.id == "print" for func in calls)
        if prints and not path.is_relative_to(ROOT / "launcher/agent") and path != ROOT / "launcher/output.py":
            wrong.append(path)
    assert wrong == []
