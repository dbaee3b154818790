"""The package itself: what it exports, what importing it costs, how it is started, and what hides it."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

import distlaunch
from distlaunch import __main__ as entry
from launcher import errors
from tests.command import ROOT
from tests.pages import page, quoted, section, table, tree

if TYPE_CHECKING:
    from pathlib import Path

LISTS = ("Launching", "Runs", "Clusters", "Errors")


def python(code: str, directory: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code, or the command line, in a new interpreter that finds the checkout last."""
    path = ":".join(filter(None, (env.get("PYTHONPATH"), str(ROOT))))
    whole = {"PATH": "/usr/bin:/bin", "HOME": str(directory), **env, "PYTHONPATH": path}
    argv = [sys.executable, "-"] if code else [sys.executable, "-m", "distlaunch", "--version"]
    return subprocess.run(argv, input=code, cwd=directory, env=whole, capture_output=True, text=True, timeout=60)


def test_all_exported_names_exist_and_are_documented() -> None:
    text = page("docs/api.md")
    names = {name for name in distlaunch.__all__ if re.search(rf"`{name}[`(]", text)}

    assert names == set(distlaunch.__all__) == set(dir(distlaunch))
    assert distlaunch.__all__ == sorted(distlaunch.__all__)
    for name in distlaunch.__all__:
        value = getattr(distlaunch, name)
        assert name in ("__version__", "Event") or inspect.getdoc(value), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = distlaunch.nothing


def test_all_names_on_the_page_exist() -> None:
    functions = {
        re.split(r"\W", word)[0]
        for head in LISTS
        for row in table(section("docs/api.md", head))
        for word in quoted(row[0])
    }
    members = {name for name in functions if name not in distlaunch.__all__}

    assert members <= set(dir(distlaunch.Run))
    public = {name for name in vars(distlaunch.Run) if not name.startswith("_")}
    assert public == members
    for kind in (
        distlaunch.Result,
        distlaunch.Cause,
        distlaunch.StateChanged,
        distlaunch.WorkerLine,
        distlaunch.NodeEvent,
    ):
        assert {name for name in vars(kind)["__annotations__"] if f"`{name}`" not in page("docs/api.md")} == set()


def test_all_documented_errors_are_exported() -> None:
    named = set(re.findall(r"(\w+Error)\b", str(errors.__doc__)))

    assert named < set(distlaunch.__all__)
    assert {kind.__name__ for kind in tree(errors.LaunchError) if kind.__module__ == "launcher.errors"} == named


def test_type_checkers_see_the_same_names_as_programs() -> None:
    source = ast.parse(inspect.getsource(distlaunch))
    checking = next(node for node in source.body if isinstance(node, ast.If))
    seen = {alias.name for node in checking.body if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert seen == set(distlaunch.__all__)
    assert (ROOT / "distlaunch/py.typed").exists()


def test_importing_it_imports_nothing_of_the_launcher_and_using_it_no_command_line(tmp_path: Path) -> None:
    code = """
import sys
before = set(sys.modules)
import distlaunch
new = set(sys.modules) - before
assert not [name for name in new if name.split(".")[0] not in ("distlaunch", *sys.stdlib_module_names)], new
assert len(new) < 40, new
distlaunch.plan, distlaunch.call, distlaunch.doctor
slow = ("typer", "click", "rich", "torch")
print(*(name for name in sys.modules if name.split(".")[0] in slow or name.startswith("launcher.cli")))
"""
    done = python(code, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("\n", "", 0)


def test_it_works_where_main_is_not_a_file(tmp_path: Path) -> None:
    """As in a notebook's kernel, where the source of a function exists only as long as the notebook keeps it."""
    (tmp_path / "work.py").write_text("print('hello')\n")
    code = """
import distlaunch
run = distlaunch.submit("work.py")
print(run.wait(60).state, [line.text for line in run.logs()])
def double(number):
    return 2 * number
print(distlaunch.call(double, (21,)))
"""
    done = python(
        code, tmp_path, DISTLAUNCH_RUNS_DIR=str(tmp_path / "runs"), DISTLAUNCH_SYSTEM_CONFIG=str(tmp_path / "none")
    )
    assert (done.stdout, done.stderr) == ("success ['hello']\n[42]\n", "")


def test_python_m_is_the_command_line(tmp_path: Path) -> None:
    done = python("", tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == (f"distlaunch {distlaunch.__version__}\n", "", 0)


CONSOLE_SCRIPT = (
    "import sys; sys.argv[:] = ['distlaunch', '--version']; from distlaunch.__main__ import main; sys.exit(main())"
)


@pytest.mark.parametrize("kind", ["a file", "a package", "a directory"])
@pytest.mark.parametrize("place", ["the working directory", "PYTHONPATH"])
def test_a_users_own_launcher_module_is_reported_in_one_sentence(tmp_path: Path, kind: str, place: str) -> None:
    directory = tmp_path / "own"
    (directory / "launcher").mkdir(parents=True)
    path = {"a file": "launcher.py", "a package": "launcher/__init__.py", "a directory": "launcher/cli.py"}[kind]
    (directory / path).write_text("raise SystemExit('it was run')\n")
    if kind == "a file":
        (directory / "launcher").rmdir()
    env = {} if place == "the working directory" else {"PYTHONPATH": str(directory)}
    where = directory if place == "the working directory" else tmp_path

    for code in ("", CONSOLE_SCRIPT) if env else ("",):
        done = python(code, where, **env)
        if kind == "a directory":  # without __init__.py it hides nothing
            assert done.returncode == 0, done.stderr
            continue
        assert done.returncode == 4
        assert done.stdout == ""
        assert done.stderr == (
            f"error[hidden]: {directory / path} hides the package `launcher`, which is part of distlaunch: "
            "rename it, or start Python where it is not found first\n"
        )
    if kind != "a directory":
        done = python(
            "import distlaunch\ntry: distlaunch.submit\nexcept ImportError as error: print(error)", where, **env
        )
        assert done.stdout.startswith(f"{directory / path} hides the package `launcher`"), done.stderr


def test_a_users_own_launcher_module_that_was_imported_before_is_detected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module: Any = types.ModuleType("launcher")
    module.__file__ = "/home/me/launcher.py"
    monkeypatch.setitem(sys.modules, "launcher", module)

    assert entry.main() == 4
    assert "/home/me/launcher.py hides" in capsys.readouterr().err
