"""Where the ranks are is shown in the same way by all backends; the watchdog compares the nodes wherever they are."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from testbed import wait_until
from tests.frameworks.conftest import in_pods, local, on_slurm, over_ssh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.frameworks.place import Place

__all__ = ["in_pods", "local", "on_slurm", "over_ssh"]
pytestmark = [pytest.mark.timeout(600)]

SCRIPT = """
import os, signal, sys, threading, time

def meet():
    threading.Event().wait(3600)

def asleep():
    time.sleep(3600)

def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)

def reads():
    os.read(os.pipe()[0], 1)

print("ready", flush=True)
(globals()[sys.argv[1]] if os.environ["RANK"] == "3" else meet)()
"""

DOES = {
    "asleep": r"is in time\.sleep\(\) \(odd\.py:8\)",
    "stopped": r"does not answer: T \(stopped\)",
    "reads": r"is in reads \(odd\.py:14: os\.read\(os\.pipe\(\)\[0\], 1\)\)",
}


@pytest.fixture(
    params=[
        "local",
        pytest.param("on_slurm", marks=pytest.mark.slurm),
        pytest.param("over_ssh", marks=pytest.mark.ssh),
        pytest.param("in_pods", marks=pytest.mark.k8s),
    ]
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Two nodes of a cluster; its runs are ended."""
    found: Place = request.getfixturevalue(request.param)
    found.work.joinpath("odd.py").write_text(SCRIPT)
    yield found
    for path in found.cli.runs.glob("odd-*"):
        found.other("cancel", "--force", path.name)


def start(place: Place, how: str, *options: str) -> str:
    """A run of four ranks on two nodes, left running; its id."""
    words = ["--nodes=2", "--nproc-per-node=2", "--detach", *options]
    if place.backend == "ansible":
        words.append(f"--python={sys.executable}")
    if place.mounts:
        words.append(f"--volume=hostpath:{place.work}:{place.work}")
    done = place.other(place.backend, *place.where, *words, "odd.py", how)
    assert done.exit_code == 0, done.stderr
    return done.stdout.split()[-1]


def groups(place: Place, run: str) -> list[dict[str, Any]]:
    done = place.other("stacks", run, "--output", "json")
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, Any]] = done.json["result"]["groups"]
    return found


def test_each_hang_is_shown_with_its_host_and_line_or_state(place: Place) -> None:
    for how, pattern in DOES.items():
        run = start(place, how)

        def seen(run: str = run) -> list[tuple[list[int], str, list[int]]]:
            return [(each["ranks"], each["summary"], each["nodes"]) for each in groups(place, run)]

        def is_right(pattern: str = pattern) -> bool:
            found = seen()
            return (
                [ranks for ranks, _, _ in found] == [[0, 1, 2], [3]]
                and re.fullmatch(pattern, found[1][1]) is not None
                and found[1][2] == [1]
            )

        wait_until(f"the stacks of a rank that is {how}", is_right, limit_s=120, progress=seen)
        assert place.other("status", run, "--output", "json").json["result"]["state"] == "running"
        place.other("cancel", "--force", run)


def test_the_watchdog_ends_the_run_with_the_odd_rank_as_its_cause(place: Place) -> None:
    run = start(place, "asleep", "--hang-after=3s", "--on-hang=end", "--grace=2s")

    place.other("wait", run)

    cause = place.other("status", run, "--output", "json").json["result"]["cause"]
    assert (cause["class"], cause["rank"]) == ("no_progress", 3), cause
    assert re.search(r"rank 3 \(\S+\) is in time\.sleep\(\) \(odd\.py:8\); ranks 0, 1, 2 are in", cause["message"])
