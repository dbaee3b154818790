"""What this host lacks for the tests: reported when the run starts and at its end; the other tests run."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import TestbedError, kube_builds, kube_given, kube_programs, packages, registry

if TYPE_CHECKING:
    import pytest

ENOUGH_GB = 8


def complaints() -> list[str]:
    """What is missing here, one line for each."""
    found = []
    if os.geteuid():
        found.append("no root: no clusters here; tests that bring hosts up skip")
    elif why := packages.why_no_hosts():
        found.append(f"{why}; tests that bring hosts up skip")
    elif not os.environ.get(kube_given.VARIABLE):
        reasons = {reason: None for build in kube_builds.ALL if (reason := kube_programs.why_not(build))}
        found += [f"{reason}; tests that need it skip" for reason in reasons]
    if len(os.sched_getaffinity(0)) == 1:
        found.append("one core: one process runs all tests, and takes twice as long")
    return [*found, *little_disk(Path(tempfile.gettempdir()))]


def little_disk(path: Path) -> list[str]:
    """A complaint if a directory's file system has too little room."""
    free_gb = shutil.disk_usage(path).free / 1e9
    enough = free_gb >= ENOUGH_GB
    return (
        []
        if enough
        else [f"only {free_gb:.1f} GB are free in {path}: tests that write much may fail below {ENOUGH_GB}"]
    )


def leftovers() -> list[str]:
    """Remove the testbeds of killed runs."""
    if os.geteuid() or not any(not record.owner.alive() for record in registry.read()):
        return []
    if packages.missing(packages.NETWORK):
        return ["a killed run has left a testbed, which cannot be removed: no `ip` here"]
    try:
        with registry.locked():
            removed = registry.clean()
    except TestbedError as error:
        return [f"a killed run has left a testbed, which could not be removed: {error}"]
    return [
        f"removed testbed {record.index} ({record.network}), left by process {record.pid}, which was killed"
        for record in removed
    ]


class Host:
    """Reports what is missing."""

    def __init__(self) -> None:
        self.lines = [*complaints(), *leftovers()]

    def pytest_report_header(self) -> list[str]:
        return self.lines

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.lines:
            terminalreporter.write_line(f"this host: {line}", yellow=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Host(), "distlaunch-host")
