"""The end of a run's output: tests by outcome, skips by reason, the ten slowest, tests and time by subject.

In CI, an unexpected skip is a failure.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from testbed import packages
from tests.plugins import subjects

if TYPE_CHECKING:
    from collections.abc import Generator

SLOWEST = 10
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
MAY_SKIP: tuple[str, ...] = (
    "no GPU",
    "came with Python",
    "no Go toolchain",
    "that other users can run",
    "too little disk",
)
MAY_SKIP += ("no NetworkPolicies here", "no FUSE here", "the public's packages cannot be fetched here")
MAY_SKIP += ("cannot be mounted here", "can be made here", "needs root") if packages.why_no_hosts() else ()
"""Reasons for which a test may skip even if everything can be installed."""


class Summary:
    """Collects the time of all tests, in the process that reports."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, object, object]:
        """Print the summary after those of other plugins."""
        result = yield
        if self.seconds:
            terminalreporter.section("the run as a whole")
            for line in self.lines(terminalreporter.stats):
                terminalreporter.write_line(line)
            for reason in unexpected(terminalreporter.stats):
                terminalreporter.write_line(f"these should have run here: {reason}", red=True)
        return result

    def lines(self, stats: dict[str, list[pytest.TestReport]]) -> list[str]:
        """The lines of the summary."""
        counts = [f"{len(stats[name])} {name}" for name in OUTCOMES if stats.get(name)]
        lines = [f"tests: {', '.join(counts) or 'none'}"]
        lines += [f"skipped {count}: {reason}" for reason, count in skips(stats).most_common()]
        slowest = sorted(self.seconds.items(), key=lambda item: -item[1])[:SLOWEST]
        lines += ["slowest:", *(f"  {took:7.1f} s  {nodeid}" for nodeid, took in slowest)]
        number = Counter(subjects.subject_of(nodeid) for nodeid in self.seconds)
        total: dict[str, float] = defaultdict(float)
        for nodeid, took in self.seconds.items():
            total[subjects.subject_of(nodeid)] += took
        lines.append("by subject:")
        lines += [
            f"  {total[name]:7.1f} s  {number[name]:4d} tests  {name}"
            for name in sorted(total, key=lambda name: -total[name])
        ]
        lines.append(f"  {sum(total.values()):7.1f} s  {sum(number.values()):4d} tests  in all processes together")
        return lines

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail in CI if a test has skipped that should have run."""
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if os.environ.get("CI") and reporter and exitstatus == pytest.ExitCode.OK and unexpected(reporter.stats):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def skips(stats: dict[str, list[pytest.TestReport]]) -> Counter[str]:
    """How many tests were skipped, by reason."""
    return Counter(skip_reason(report) for report in stats.get("skipped", []))


def unexpected(stats: dict[str, list[pytest.TestReport]]) -> list[str]:
    """In CI, the reasons of skips of tests that this host could have run."""
    return [reason for reason in skips(stats) if is_unexpected(reason)] if os.environ.get("CI") else []


def skip_reason(report: pytest.TestReport) -> str:
    """Why a test was skipped."""
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")


def is_unexpected(reason: str) -> bool:
    """Whether this host could have run the test."""
    return not any(known in reason for known in MAY_SKIP)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(), "distlaunch-summary")
