"""The end of a run's output, and what this host lacks."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, NoReturn

import pytest

from testbed import TestbedError, kube_programs, packages, registry
from testbed.registry import Record
from tests.plugins import host, results
from tests.plugins.summary import is_unexpected

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.plugins_tests.conftest import Inner

TESTS = """
import time
import pytest

@pytest.mark.parametrize("n", range(12))
def test_one(n):
    time.sleep(0.3 if n == 7 else 0)

@pytest.mark.parametrize("n", range(2))
def test_two(n):
    pytest.skip("no GPU here")

def test_three():
    pytest.skip("of reasons")

@pytest.mark.xfail(strict=True)
def test_four():
    assert False
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_summary_says_what_ran_and_how_long_before_the_last_line_which_is_of_pytest(
    inner: Callable[..., Inner], processes: str
) -> None:
    done = inner({"tests/cli/test_some.py": TESTS}, f"-n{processes}", "--strict-markers")

    assert done.code == 0, done.text
    assert "12 passed, 3 skipped, 1 xfailed in" in done.lines[-1]
    tail = done.lines[next(index for index, line in enumerate(done.lines) if "the run as a whole" in line) :]
    assert "tests: 12 passed, 3 skipped, 1 xfailed" in tail
    assert "skipped 2: no GPU here" in tail
    assert "skipped 1: of reasons" in tail
    slowest = tail[tail.index("slowest:") + 1 : tail.index("by subject:")]
    assert len(slowest) == 10
    assert slowest[0].endswith("tests/cli/test_some.py::test_one[7]")
    assert any(line.split()[2:] == ["16", "tests", "cli"] for line in tail)


def test_in_ci_a_skip_of_a_test_that_this_host_could_run_is_a_failure(inner: Callable[..., Inner]) -> None:
    done = inner({"test_some.py": TESTS}, "-n0", env={"CI": "1"})

    assert done.code == 1
    assert [line for line in done.lines if "should have run" in line] == ["these should have run here: of reasons"]


def test_a_single_core_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})

    assert [line.partition(":")[0] for line in host.complaints() if "core" in line] == ["one core"]


def test_little_disk_space_is_reported(small_disk: Path) -> None:
    (complaint,) = host.little_disk(small_disk)

    assert complaint.startswith(f"only 0.0 GB are free in {small_disk}: ")


@pytest.mark.parametrize("lacking", ["no root", "no Go", "no room"])
def test_what_clusters_lack_is_reported_once_and_their_tests_may_skip(
    lacking: str, monkeypatch: pytest.MonkeyPatch, small_disk: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if lacking == "no root" else 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))  # nothing is built there yet
    monkeypatch.setattr(kube_programs, "_failed", {})
    monkeypatch.setattr(kube_programs, "_go", lambda: None if lacking == "no Go" else "go")

    (complaint,) = (line for line in host.complaints() if "skip" in line)

    words = {"no root": "no root: no clusters here", "no Go": "no Go toolchain", "no room": "too little disk"}
    assert words[lacking] in complaint
    if lacking != "no root":
        assert not is_unexpected(complaint)


def test_a_cluster_that_a_killed_run_has_left_is_removed_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if os.geteuid() or packages.missing(packages.NETWORK):
        pytest.skip("the testbed needs root")
    monkeypatch.setattr(registry, "STATE", tmp_path / "state")
    directory = tmp_path / "left"
    directory.mkdir()
    dead = subprocess.Popen(("true",))
    dead.wait(timeout=20)
    with registry.locked():
        registry.write(Record(index=99, pid=dead.pid, start_ticks=1, directory=str(directory), own_directory=True))

    removed = host.leftovers()

    assert removed == [f"removed testbed 99 (10.77.99.0/24), left by process {dead.pid}, which was killed"]
    assert not directory.exists()
    assert registry.read() == []
    assert host.leftovers() == []


def test_a_cluster_that_cannot_be_removed_is_reported_and_the_run_continues(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if os.geteuid() or packages.missing(packages.NETWORK):
        pytest.skip("the testbed needs root")
    monkeypatch.setattr(registry, "STATE", tmp_path / "state")
    dead = subprocess.Popen(("true",))
    dead.wait(timeout=20)
    with registry.locked():
        registry.write(Record(index=99, pid=dead.pid, start_ticks=1, directory=str(tmp_path), own_directory=False))
    monkeypatch.setattr("testbed.processes.run", refuse)

    assert host.leftovers() == ["a killed run has left a testbed, which could not be removed: ip: not permitted"]


def refuse(*_args: object, **_options: object) -> NoReturn:
    raise TestbedError("ip: not permitted")


def test_results_of_the_last_runs_and_of_running_ones_are_kept(tmp_path: Path) -> None:
    dead = subprocess.Popen(("true",))
    dead.wait(timeout=20)
    for number in range(results.KEPT + 3):
        (tmp_path / f"20260101-{number:06d}-{dead.pid}").mkdir()
    (tmp_path / f"20250101-000000-{os.getpid()}").mkdir()
    (tmp_path / "mine").mkdir()

    results.prune(tmp_path)

    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == results.KEPT + 2
    assert {"mine", f"20250101-000000-{os.getpid()}"} <= set(left)
    assert f"20260101-000002-{dead.pid}" not in left
