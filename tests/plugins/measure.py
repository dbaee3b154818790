"""`--cov`: which lines of the project ran in any process of a run, agents and workers included, by startup.py."""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.plugins import coverage_report, hooks, results, startup
from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

KEY = "distlaunch_measured"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("coverage")
    group.addoption("--cov", action="store_true", help="measure which lines of the project run, in all processes")
    group.addoption("--cov-by-test", action="store_true", help="the same test by test, for scripts/mutate")


def prepare(directory: Path, *, by_test: bool, root: Path = ROOT) -> None:
    """Make the directory that all processes write to, as any user, with the index of each file's lines."""
    offsets = {}
    size = 0
    for path in coverage_report.sources(root):
        offsets[path] = size
        size += (root / path).read_bytes().count(b"\n") + 2
    directory.mkdir(parents=True, exist_ok=True)
    for part in (directory, directory / "tests", directory / "current"):
        part.mkdir(exist_ok=True)
        part.chmod(0o777)
    index = {"root": str(root), "offsets": offsets, "size": size, "by_test": by_test}
    (directory / "index").write_bytes(marshal.dumps(index))
    (directory / "lines").write_bytes(bytes(size))
    (directory / "lines").chmod(0o666)


def key_of(nodeid: str) -> str:
    """A short name for a test."""
    return hashlib.sha1(nodeid.encode(), usedforsecurity=False).hexdigest()[:12]


class Mark:
    """The file that makes each Python of this environment measure; it counts while its process runs."""

    def __init__(self) -> None:
        self.path = Path(sys.prefix) / startup.MARK

    def owner(self) -> str:
        """The running process that measures already, if there is one."""
        try:
            pid = self.path.read_text(encoding="utf-8").split("\n")[1]
        except (OSError, IndexError):
            return ""
        return pid if pid != str(os.getpid()) and Path(f"/proc/{pid}").exists() else ""

    def set(self, directory: Path) -> None:
        """Measure from now on."""
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        new.write_text(f"{directory}\n{os.getpid()}\n", encoding="utf-8")
        new.replace(self.path)

    def remove(self) -> None:
        """Stop measuring."""
        with suppress(OSError):
            self.path.unlink()


class Controller:
    """Starts and stops measuring, and reports."""

    def __init__(self, config: pytest.Config, *, by_test: bool) -> None:
        self.directory = results.of(config) / "coverage"
        self.by_test = by_test
        self.tests: set[str] = set()
        self.mark = Mark()
        self.reason = ""
        if not hooks.install():
            self.reason = f"{sys.prefix} is not a virtual environment that can be written to"
        elif self.mark.owner():
            self.reason = f"process {self.mark.owner()} measures already, in the same environment"
        else:
            prepare(self.directory, by_test=by_test)
            self.mark.set(self.directory)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[KEY] = str(self.directory) if self.by_test and not self.reason else ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print coverage by package; write a file with all lines."""
        if self.reason:
            terminalreporter.write_line(f"coverage was not measured: {self.reason}", yellow=True)
            return
        self.mark.remove()
        if self.by_test:
            (self.directory / "names.json").write_text(json.dumps({key_of(name): name for name in sorted(self.tests)}))
        measured = coverage_report.measure(coverage_report.read(self.directory), ROOT)
        (self.directory / "report.txt").write_text(coverage_report.by_file(measured), encoding="utf-8")
        terminalreporter.section("coverage by package")
        for line in coverage_report.table([measured]):
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"line by line: {results.shown(self.directory / 'report.txt')}")

    def pytest_unconfigure(self) -> None:
        if not self.reason:
            self.mark.remove()


class ByTest:
    """Records which test runs now, in each process that runs tests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "current"
        self.name = os.environ.get("PYTEST_XDIST_WORKER") or "main"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        link = self.directory / self.name
        new = self.directory.parent / f".{self.name}"
        with suppress(FileNotFoundError):
            new.unlink()
        new.symlink_to(key_of(item.nodeid))
        new.replace(link)
        lines = in_this_process()
        if lines:
            lines.load()
        return (yield)


def in_this_process() -> Any:
    """What measures this process, whatever has started it."""
    return getattr(sys.modules.get(hooks.MODULE), "lines", None) or startup.lines


def pytest_configure(config: pytest.Config) -> None:
    by_test = config.getoption("cov_by_test")
    if not (by_test or config.getoption("cov")):
        return
    worker = hasattr(config, "workerinput")
    if not worker:
        controller = Controller(config, by_test=by_test)
        config.pluginmanager.register(controller, "distlaunch-coverage")
        if controller.reason:
            return
        if not in_this_process():
            startup.lines = startup.measure()
    directory = getattr(config, "workerinput", {}).get(KEY, "") if worker else str(controller.directory)
    if directory and by_test:
        config.pluginmanager.register(ByTest(Path(directory)), "distlaunch-coverage-by-test")
