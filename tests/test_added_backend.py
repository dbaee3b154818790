"""Adding a backend takes a package and a page: nothing else names it, and everything finds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import site
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

COPIED = (
    "launcher",
    "distlaunch",
    "train",
    "playbooks",
    "slurm_templates",
    "testbed",
    "tests",
    "docs",
    "scripts",
    "benchmarks",
)
PACKAGE = {
    "__init__.py": '"""Run on toys.\n\n$ distlaunch toy train.py\n$ distlaunch toy --color red train.py\n"""\n',
    "options.py": '''"""Options of toys."""

from __future__ import annotations

from launcher.backends.local.options import LocalOptions
from launcher.settings.options import option
from launcher.system.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyOptions(LocalOptions):
    """This host's, and a color."""

    color: str = option("blue", metavar="NAME", help="Color of the toys.")
''',
    "plan.py": '"""What would be sent."""\n\nfrom launcher.backends.local.plan import Planned as Planned\n',
    "backend.py": '''"""Toys are processes on this host."""

from __future__ import annotations

from launcher.backends._base import Backend
from launcher.backends.local.backend import LocalBackend
from launcher.backends.toy.options import ToyOptions


class ToyBackend(LocalBackend):
    """As `local`, without starting a run again."""

    name = "toy"
    options = ToyOptions
    can_requeue = False
    requeue = Backend.requeue


BACKEND = ToyBackend
''',
}
PAGE = "# Toys\n\nRuns scripts on toys: `distlaunch toy --color red train.py`.\n"
COMPARING = (
    "test_documentation.py",
    "test_documented_cli.py",
    "test_documented_numbers.py",
    "test_documented_settings.py",
    "test_documented_trainer.py",
    "test_schema.py",
    "runs/test_capabilities.py",
)
CALL = "api/test_commands.py::test_every_command_has_its_call"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project to which a backend has been added as CONTRIBUTING says."""
    copy = tmp_path_factory.mktemp("added") / "checkout"
    copy.mkdir()
    for name in COPIED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (path for path in ROOT.iterdir() if path.is_file()):
        shutil.copy(path, copy)
    package = copy / "launcher/backends/toy"
    package.mkdir()
    for name, text in PACKAGE.items():
        (package / name).write_text(text)
    (copy / "docs/toy.md").write_text(PAGE)
    assert python(copy, "-m", "tests.schema").returncode == 0
    return copy


def python(checkout: Path, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run this Python with that checkout's packages."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DISTLAUNCH_", "PYTEST_"))}
    env |= {"PYTHONPATH": str(checkout), "DISTLAUNCH_RUNS_DIR": str(checkout / "runs"), "COLUMNS": "120"}
    env |= {"DISTLAUNCH_TEST_RESULTS": str(checkout / "results")}
    return subprocess.run(
        [sys.executable, *args], cwd=cwd or checkout, env=env, capture_output=True, text=True, timeout=240
    )


def test_it_runs_scripts_and_is_in_the_help(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text('import os\nprint("rank", os.environ["RANK"])\n')

    run = python(checkout, "-m", "distlaunch", "toy", "--nodes", "2", "--color", "red", "hello.py", cwd=tmp_path)
    shown = python(checkout, "-m", "distlaunch", "--help")
    own = python(checkout, "-m", "distlaunch", "toy", "--help")

    assert (run.returncode, run.stdout) == (0, "rank 0\n"), run.stderr
    assert "Run on toys." in shown.stdout
    assert "--color" in own.stdout
    assert "Color of the toys." in own.stdout


def test_nothing_else_has_to_be_changed(checkout: Path) -> None:
    """The tests that compare lists, tables and schemas with the program pass with it too."""
    done = python(
        checkout,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        *(f"tests/{name}" for name in (*COMPARING, CALL)),
    )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr


def test_its_page_has_a_place_in_the_navigation(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "ROOT", checkout)
    nav = [{"Reference": [site.AFTER, {"The terminal": "terminal.md"}]}]

    site.on_config({"nav": nav})

    pages = ["ansible.md", "kubernetes.md", "slurm.md", "toy.md"]
    assert nav == [{"Reference": [site.AFTER, *pages, {"The terminal": "terminal.md"}]}]
