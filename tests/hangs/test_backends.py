"""Where the ranks are is shown in the same way by all backends; the watchdog compares the nodes wherever they are."""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from testbed import wait_until
from tests.frameworks.conftest import in_pods, local, on_slurm, over_ssh
from tests.hangs.conftest import SCRIPT, dead_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from testbed.hosts import Host
    from tests.frameworks.place import Place

__all__ = ["in_pods", "local", "on_slurm", "over_ssh"]
pytestmark = [pytest.mark.timeout(600), pytest.mark.torch]

DOES = {
    "stopped": r"does not answer: T \(stopped\)",
    "asleep": r"is in time\.sleep\(\) \(hang\.py:9\)",
    "left out": r"is in (?:time\.sleep\(\)|odd) \(hang\.py:1[12].*?\)",
    "reads": r"does not answer: D \(disk sleep\), read of \S+/dead/file, in \w+.*",
}
WAIT = "wait in all_reduce (hang.py:23)"


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
    found.work.joinpath("hang.py").write_text(SCRIPT)
    yield found
    for path in found.cli.runs.glob("hang-*"):
        found.other("cancel", "--force", path.name)


def start(place: Place, how: str, *options: str) -> str:
    """A run of four ranks on two nodes, left running; its id."""
    words = ["--nodes=2", "--nproc-per-node=2", "--detach", *options]
    if place.backend == "ansible":
        words.append(f"--python={sys.executable}")
    if place.mounts:
        words.append(f"--volume=hostpath:{place.work}:{place.work}")
    done = place.other(place.backend, *place.where, *words, "--env=OMP_NUM_THREADS=1", "hang.py", how)
    assert done.exit_code == 0, done.stderr
    return done.stdout.split()[-1]


def groups(place: Place, run: str) -> list[dict[str, Any]]:
    done = place.other("stacks", run, "--output", "json")
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, Any]] = done.json["result"]["groups"]
    return found


def hangs(place: Place, run: str) -> list[str]:
    """What the watchdog has reported."""
    done = place.other("report", run, "--format", "json", "-o", "-")
    assert done.exit_code == 0, done.stderr
    return [each["message"] for each in json.loads(done.stdout)["stacks"] if each["reason"] == "hang"]


@pytest.fixture
def hosts(request: pytest.FixtureRequest, place: Place) -> Sequence[Host]:
    """The hosts of that cluster; none of this machine."""
    if place.backend == "k8s":
        return [node.host for node in request.getfixturevalue("kube_nodes").nodes]
    name = {"slurm": "slurm", "ansible": "ssh_hosts"}.get(place.backend)
    found: Sequence[Host] = request.getfixturevalue(name).hosts if name else ()
    return found


@contextmanager
def argument(place: Place, how: str, hosts: Sequence[Host]) -> Iterator[str]:
    """What the script gets: the kind of the hang, or a file that can be opened, and not read."""
    if how != "reads":
        yield how
        return
    with dead_files(place.work / "dead", hosts) as dead:
        yield dead.path
        dead.end()  # no signal ends the rank's wait


@pytest.mark.rotating
@pytest.mark.parametrize("how", DOES)
def test_each_hang_is_shown_with_its_host_and_line_or_state(place: Place, hosts: Sequence[Host], how: str) -> None:
    """By `stacks`, and by the watchdog within a minute after its limit."""
    with argument(place, how, hosts) as given:
        run = start(place, given, "--hang-after=3s")
        wait_until("all ranks", lambda: place.other("logs", run).stdout.count("ready") == 4, limit_s=120)

        def reported() -> list[str]:
            return hangs(place, run)

        wait_until(f"the report of a rank that is {how}", reported, limit_s=60)
        found = [(each["ranks"], each["summary"], each["nodes"]) for each in groups(place, run)]
        assert [(ranks, nodes) for ranks, _, nodes in found] == [([0, 1, 2], [0, 1]), ([3], [1])]
        assert (found[0][1], bool(re.fullmatch(DOES[how], found[1][1]))) == (WAIT, True), found
        (message, *_) = reported()
        assert re.search(rf"rank 3 \(\S+\) {DOES[how]}; ranks 0, 1, 2 {re.escape(WAIT)}", message)
        assert place.other("status", run, "--output", "json").json["result"]["state"] == "running"


@pytest.mark.rotating
@pytest.mark.parametrize("how", ["asleep", "reads"])
def test_the_watchdog_ends_the_run_with_the_odd_rank_as_its_cause(
    place: Place, hosts: Sequence[Host], how: str
) -> None:
    """Also if no signal ends that rank."""
    with argument(place, how, hosts) as given:
        run = start(place, given, "--hang-after=3s", "--on-hang=end", "--grace=2s")

        place.other("wait", run)

        result = place.other("status", run, "--output", "json").json["result"]
        cause = result["cause"]
        assert (result["state"], cause["class"], cause["rank"]) == ("failed", "no_progress", 3), cause
        assert re.search(rf"rank 3 \(\S+\) {DOES[how]}; ranks 0, 1, 2 {re.escape(WAIT)}", cause["message"])
