"""A directory for each failed test: what its runs wrote, what it printed, and the ends of its clusters' logs."""

from __future__ import annotations

import os
import re
import stat
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testbed import registry
from tests.plugins import results

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

KEY = "distlaunch_results"
KEPT = ("stream*", "stderr*", "stdout*", "*.json", "*.log", "*.out", "*.err", "*.sbatch", "*.sh", "*.yaml", "*.toml")
"""Files below a test's directories that show what happened."""

PRINTED = ("stream*", "stderr*")
"""Those whose last lines are printed with the failure: what agents and workers wrote."""

LOGS = ("logs/*.log", "ssh/*.log", "kubernetes/logs/*.log")
"""Logs of a testbed's daemons, below its directory."""

MAX_BYTES = 200_000
MAX_FILES = 300
MAX_SCANNED = 20_000
LINES = 40


class Failures:
    """In each process that runs tests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """An error in this plugin is reported with the failure, never instead of it."""
        report = yield
        if report.failed:
            try:
                self.keep(item, report)
            except Exception as error:  # noqa: BLE001 - see above
                report.sections.append(("kept files", f"could not be kept: {error!r}"))
        return report

    def keep(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Copy files, and add their last lines to the report."""
        into = place(self.directory, item.nodeid)
        roots = directories(item)
        ends = []
        for number, root in enumerate(roots):
            for path in files_to_keep(root):
                name = Path(f"files{number or ''}") / path.relative_to(root)
                text = copy(path, into / name)
                if any(fnmatch(path.name, pattern) for pattern in PRINTED) and text.strip():
                    ends.append(f"--- {path.relative_to(root)}\n{last_lines(text)}")
        keep_logs(into)
        if ends:
            report.sections.append(("what agents and workers wrote", "\n".join(ends)))
        parts = [str(report.longrepr), *(f"----- {title}\n{text}" for title, text in report.sections)]
        into.mkdir(parents=True, exist_ok=True)
        (into / f"{report.when}.txt").write_text("\n".join(parts), encoding="utf-8", errors="replace")
        report.sections.append(("kept files", results.shown(into)))


def place(directory: Path, nodeid: str) -> Path:
    """A test's directory, by its name; a number of its own tells it from others with similar names."""
    path, _, name = nodeid.partition("::")
    plain = re.sub(r"[^\w.=-]+", "_", name)[:100].strip("_")
    tail = (
        "" if plain == name else f"-{sum(ord(letter) * 31**place for place, letter in enumerate(nodeid)) % 10**6:06d}"
    )
    return directory / "failures" / f"{Path(path).stem}.{plain}{tail}"


def directories(item: pytest.Item) -> list[Path]:
    """The directories of a test: its own, and those of what its fixtures made."""
    given: dict[str, Any] = getattr(item, "funcargs", None) or {}
    found = [value for value in given.values() if isinstance(value, Path)]
    found += [value for each in given.values() if isinstance(value := getattr(each, "directory", None), Path)]
    top: list[Path] = []
    for path in sorted({path.resolve() for path in found if path.is_dir()}):
        if "pytest-" in str(path) and not any(path.is_relative_to(other) for other in top):
            top.append(path)
    return top


def files_to_keep(root: Path) -> list[Path]:
    """The regular files below a directory that are worth keeping."""
    found: list[Path] = []
    for path in walk(root):
        if any(fnmatch(path.name, pattern) for pattern in KEPT):
            found.append(path)
            if len(found) >= MAX_FILES:
                break
    return sorted(found)


def walk(root: Path) -> Iterator[Path]:
    """All regular files except code, up to a limit; links are not followed."""
    number = 0
    for directory, inside, names in os.walk(root):
        inside[:] = sorted(name for name in inside if name not in ("__pycache__", ".git"))
        for name in sorted(names):
            number += 1
            if number > MAX_SCANNED:
                return
            path = Path(directory, name)
            try:
                regular = stat.S_ISREG(path.lstat().st_mode)
            except OSError:
                continue
            if regular and path.suffix != ".py":
                yield path


def copy(path: Path, target: Path) -> str:
    """Write the end of a file to the target, and return it as text."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MAX_BYTES))
        data = file.read(MAX_BYTES)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return data.decode(errors="replace")


def keep_logs(into: Path) -> None:
    """Copy the ends of the logs of this process's testbeds."""
    for record in registry.read():
        if record.pid == os.getpid():
            for path in sorted(path for pattern in LOGS for path in Path(record.directory).glob(pattern)):
                copy(path, into / f"testbed-{record.index}" / path.name)


def last_lines(text: str) -> str:
    """The last lines of a text, each cut to 500 characters."""
    return "\n".join(line[:500] for line in text.splitlines()[-LINES:])


class Controller:
    """Prints the directories, in the process that reports."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[KEY] = str(self.directory)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        failed: Iterable[Any] = [*terminalreporter.stats.get("failed", []), *terminalreporter.stats.get("error", [])]
        kept = sorted({place(self.directory, report.nodeid) for report in failed if getattr(report, "nodeid", "")})
        kept = [path for path in kept if path.is_dir()]
        if kept:
            terminalreporter.section("what failed tests left")
            for path in kept:
                terminalreporter.write_line(results.shown(path))


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", {}).get(KEY)
    directory = Path(given) if given else results.of(config)
    config.pluginmanager.register(Failures(directory), "distlaunch-failures")
    if not hasattr(config, "workerinput"):
        results.prune()
        config.pluginmanager.register(Controller(directory), "distlaunch-failures-controller")
