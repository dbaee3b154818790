"""What this machine lacks for the tests: each named once, as the run starts and in its tail; the rest runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed import kube_given, kube_programs, packages, registry

if TYPE_CHECKING:
    import pytest

ENOUGH_BYTES = 8 << 30


def complaints() -> list[str]:
    """What is missing here, a line each."""
    found = []
    root = os.geteuid() == 0
    if not root:
        found.append("no root: no clusters here; tests marked slurm, ssh, k8s and testbed skip")
    building = not os.environ.get(kube_given.VARIABLE) and any(map(kube_programs.missing, kube_programs.ALL))
    if root and building and kube_programs._go() is None:
        found.append("no Go toolchain, and Kubernetes' programs are not built yet: tests marked k8s skip")
    if len(os.sched_getaffinity(0)) == 1:
        found.append("one core: one process runs all tests, and takes twice as long")
    found += little_disk(tempfile.gettempdir(), "tests that write much may fail")
    if root and building:
        found += little_disk(str(kube_programs.cache()), "Kubernetes' programs are not built, tests marked k8s skip")
    return found


def little_disk(path: str, consequence: str) -> list[str]:
    """The complaint about a folder's file system, if there is one."""
    where = Path(path)
    while not where.exists():
        where = where.parent
    free = shutil.disk_usage(where).free
    return [f"only {free / (1 << 30):.1f} GB are free in {path} (8 are enough): {consequence}"] if free < ENOUGH_BYTES else []


def leftovers() -> list[str]:
    """Remove the testbeds of killed runs."""
    if os.geteuid() or not any(not record.owner.alive() for record in registry.read()):
        return []
    if packages.missing(packages.NETWORK):
        return ["a killed run has left a testbed, which cannot be removed: no `ip` here"]
    with registry.locked():
        removed = registry.clean()
    return [
        f"removed testbed {record.index} ({record.network}), left by process {record.pid}, which was killed" for record in removed
    ]


class Machine:
    """Says it."""

    def __init__(self) -> None:
        self.lines = [*complaints(), *leftovers()]

    def pytest_report_header(self) -> list[str]:
        return self.lines

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.lines:
            terminalreporter.write_line(f"this machine: {line}", yellow=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Machine(), "distlaunch-machine")
