"""`scripts/matrix`: the core tests under other versions of torch and Python, one after the other, and their results."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/matrix.md"
AGENT_PYTHON = "DISTLAUNCH_TESTS_AGENT_PYTHON"
"""Variable that tells the tests' harness which Python runs the agents."""

TORCH = {"2.4": ("2.4.*", "<2.3"), "2.6": ("2.6.*", ""), "newest": ("", "")}
"""The versions of torch and of numpy that uv is to install, by cell."""

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
_BESIDES = (
    "torchvision",
    "matplotlib",
    "scikit-learn",
    "typer",
    "submitit",
    "jinja2",
    "setuptools",
    "hatchling",
    "pyyaml",
    "webdataset",
    "psutil",
    "hypothesis",
)
_RUNNER = ("pytest>=8", "pytest-xdist", "pytest-timeout", "pytest-repeat", "coverage")
_TORCH_TESTS = (
    "tests/agent/test_private_names.py",
    "tests/agent/test_elastic.py",
    "tests/agent/test_elastic_losses.py",
    "tests/agent/test_membership.py",
    "tests/agent/test_restart.py",
    "tests/agent/test_workers_store.py",
    "tests/train/test_leave.py",
    "tests/train/test_trainer_checkpoint.py",
    "tests/train/test_trainer_saving.py",
    "tests/train/test_trainer_sync.py",
)
_PYTHON_TESTS = (
    "tests/agent/test_start.py",
    "tests/agent/test_life.py",
    "tests/agent/test_leftovers.py",
    "tests/agent/test_out_of_memory.py",
    "tests/agent/test_end.py",
    "tests/agent/test_output.py",
)
_LIMIT_S = 3600
_BEGIN, _END = "<!-- last result -->", "<!-- end -->"


class Counts(NamedTuple):
    """How many tests of a cell had which outcome."""

    passed: int
    failed: int
    skipped: int


class Result(NamedTuple):
    """The result of one cell."""

    cell: str
    versions: str
    counts: Counts | None
    """None: the cell is not available here."""

    why: str = ""
    """Why, then."""

    day: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether tests failed, or none ran."""
        return self.counts is not None and (self.counts.failed > 0 or self.counts.passed == 0)

    def row(self) -> str:
        """As a line of the table in docs/matrix.md."""
        cells = " | ".join(map(str, self.counts)) if self.counts else f"{self.why} | |"
        return f"| {self.cell} | {self.versions} | {cells} | {self.day} |"


class Unavailable(Exception):  # noqa: N818 - a cell that is not available is no failure
    """The package index or this host has no such version."""


def cells() -> list[str]:
    """The names of all cells."""
    return [*(f"torch-{version}" for version in TORCH), *(f"python-{version}" for version in PYTHONS)]


def counted(report: Path) -> Counts:
    """The counts in pytest's report, which is JUnit XML; if there is none, nothing has passed."""
    if not report.exists():
        return Counts(0, 1, 0)
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ET.parse(report).iter("testsuite"):
        for name in total:
            total[name] += int(suite.get(name, 0))
    failed = total["failures"] + total["errors"]
    return Counts(total["tests"] - failed - total["skipped"], failed, total["skipped"])


def prepared(cell: str, directory: Path, uv: str) -> tuple[Path, dict[str, str], Sequence[str], str]:
    """The Python for the tests, their variables, the tests, and a text with the versions; raises `Unavailable`."""
    kind, _, version = cell.partition("-")
    if kind == "python":
        found = interpreter(version, uv)
        about = _output([found, "--version"]) or version
        return Path(sys.executable), {AGENT_PYTHON: found}, [*_PYTHON_TESTS, "-m", "not torch"], f"agents under {about}"
    python = directory / cell / "bin/python"
    asked, numpy = TORCH[version]
    packages = (f"torch=={asked}" if asked else "torch", f"numpy{numpy}", *_BESIDES, *_RUNNER)
    complete = directory / cell / "packages"  # missing if the installation was interrupted
    if not complete.exists() or complete.read_text() != "\n".join(packages):
        shutil.rmtree(directory / cell, ignore_errors=True)
        _install([uv, "venv", "--quiet", "--python", "3.11", str(directory / cell)])
        _install([uv, "pip", "install", "--quiet", "--python", str(python), *packages])
        complete.write_text("\n".join(packages))
    imported = _output([str(python), "-W", "ignore", "-c", "import torch; print(torch.__version__)"])
    if imported is None:
        raise Unavailable(f"torch {version} cannot be imported here")
    about = (_output([str(python), "--version"]) or "").split()[-1]
    return python, {}, _TORCH_TESTS, f"torch {imported}, Python {about}"


def interpreter(version: str, uv: str) -> str:
    """An installed Python of that version: one of pyenv's, whose shims stop uv's search, or one that uv finds."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    found = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    uvs = _output([uv, "python", "find", "--no-project", "--no-python-downloads", version])
    for candidate in [*found, *([uvs] if uvs else [])]:
        if (_output([candidate, "--version"]) or "").startswith(f"Python {version}."):
            return candidate
    raise Unavailable(f"no Python {version} on this host")


def run(cell: str, directory: Path, uv: str) -> Result:
    """Install what a cell needs, and run its tests."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    try:
        python, variables, tests, versions = prepared(cell, directory, uv)
    except Unavailable as error:
        return Result(cell, "", None, str(error), day)
    report = directory / f"{cell}.xml"
    report.unlink(missing_ok=True)
    # Other versions of torch have other warnings, which are no failures here.
    options = ["-q", "-n2", "-o", "filterwarnings=default", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run(
        [str(python), "-m", "pytest", *options, *tests], cwd=ROOT, env={**os.environ, **variables}, timeout=_LIMIT_S
    )
    return Result(cell, versions, counted(report), day=day)


def written(page: str, results: Sequence[Result]) -> str:
    """The page with new rows for these cells; other cells keep their last result."""
    before, _, rest = page.partition(_BEGIN)
    table, _, after = rest.partition(_END)
    rows = dict(re.findall(r"^(\| (?:torch|python)-\S+ \|)(.*)$", table, re.MULTILINE))
    rows.update({(row := result.row())[: (end := row.index("|", 1) + 1)]: row[end:] for result in results})
    kept = [f"| {cell} |{rows[f'| {cell} |']}" for cell in cells() if f"| {cell} |" in rows]
    head = ["| cell | versions | passed | failed | skipped | day |", "| --- | --- | --- | --- | --- | --- |"]
    return before + _BEGIN + "\n" + "\n".join([*head, *kept]) + "\n" + _END + after


def _output(argv: Sequence[str]) -> str | None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT_S)
    return done.stdout.strip() if done.returncode == 0 else None


def _install(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise Unavailable((done.stderr.strip().splitlines() or ["uv failed"])[-1])


def main() -> int:
    """The exit code: 1 if a test failed."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parser = argparse.ArgumentParser(prog="scripts/matrix", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"of {', '.join(cells())}; without one: all")
    parser.add_argument(
        "--dir", type=Path, default=Path(cache, "distlaunch-matrix"), help="where environments are made [%(default)s]"
    )
    parser.add_argument("--keep", action="store_true", help="keep the environments, several GB each")
    parser.add_argument("--list", action="store_true", help="print the cells that would run, and run nothing")
    parser.add_argument("--uv", required=True, help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = sorted({*given.cells} - {*cells()})
    if unknown:
        parser.error(f"unknown cell {', '.join(unknown)}; known are {', '.join(cells())}")
    if given.list:
        print("\n".join(given.cells or cells()))
        return 0
    given.dir.mkdir(parents=True, exist_ok=True)
    results = []
    for cell in given.cells or cells():
        print(f"== {cell} on {platform.machine()}", flush=True)
        results.append(run(cell, given.dir.resolve(), given.uv))
        PAGE.write_text(written(PAGE.read_text(), results))
        if not given.keep:
            shutil.rmtree(given.dir / cell, ignore_errors=True)
    print("\n".join(result.row() for result in results))
    return int(any(result.is_bad for result in results))


if __name__ == "__main__":
    sys.exit(main())
