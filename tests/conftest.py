"""Fixtures for everybody."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.command import Cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest_plugins = ["tests.testbed.fixtures", "tests.forked"]

CLUSTERS = {"k8s": "k8s", "slurm": "slurm", "ansible": "hosts", "testbed_tests": "hosts"}
"""Folders of tests that mostly wait for real clusters, and the process (pytest-xdist) that has such tests."""


WITHOUT = (
    "test_choice.py",
    "test_hostlist.py",
    "test_login.py",
    "test_logs.py",
    "test_manifests.py",
    "test_states.py",
    "test_stream.py",
)
"""Files in these folders that need no cluster."""


def cluster_of(nodeid: str) -> str | None:
    """Which cluster a test is for, by its folder, and in the testbed's own by its file."""
    _, folder, file = ["", *nodeid.partition("::")[0].split("/")][-3:]
    if file.startswith("test_kube"):
        return "k8s"
    return None if file in WITHOUT else CLUSTERS.get(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes, one has all tests of a cluster, so that it comes up once; the largest groups are started first.

    By name, as xdist's marks for groups do nothing in pytest 9.2, without a word.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByCluster(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return cluster_of(nodeid) or nodeid

    return ByCluster(config, log)


MAY_SKIP: tuple[str, ...] = ("no GPU", "came with Python", "no Go toolchain", "that other users can run")
MAY_SKIP += ("cannot be mounted here", "can be made here") if os.geteuid() else ()
"""Reasons for which a test may skip even where everything can be installed."""


MAY_NEED_A_SECOND_TRY = 3
"""How many failed tests `.ci/run` may try again."""

BEYOND_A_SECOND_TRY = 6
"""pytest's exit code in CI where trying again is no way out: more tests failed, or some skipped that should have run."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the skips by their reasons."""
    reasons = Counter(skip_reason(report) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
    if os.environ.get("CI"):
        for reason in filter(is_unexpected, reasons):
            terminalreporter.write_line(f"these should have run here: {reason}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skip that should not have been is a failure, and so are too many tests that fail now and then."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not (os.environ.get("CI") and reporter):
        return
    stats: dict[str, list[pytest.TestReport]] = reporter.stats
    skipped = any(is_unexpected(skip_reason(report)) for report in stats.get("skipped", []))
    if skipped or len(stats.get("failed", [])) + len(stats.get("error", [])) > MAY_NEED_A_SECOND_TRY:
        session.exitstatus = BEYOND_A_SECOND_TRY


def skip_reason(report: pytest.TestReport) -> str:
    """Why a test was skipped."""
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")


def is_unexpected(reason: str) -> bool:
    """Whether this machine could have run it."""
    return not any(known in reason for known in MAY_SKIP)


@pytest.fixture
def distlaunch(tmp_path: Path) -> Cli:
    """The command line, in a folder of its own."""
    return Cli(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB. Ask for it before what writes to it, so that it is taken away last."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
