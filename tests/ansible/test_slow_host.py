"""`--stragglers quarantine`: a host that is really slow is excluded from later runs, if enough hosts are left."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.agent.protocol import Event
from launcher.runs import directories, samples
from launcher.runs.events import record
from testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.runs.records import Run
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh

STEPS = """\
import os, sys, time
step = 0
while not os.path.exists(sys.argv[1]):
    step += 1
    began = time.process_time()
    while time.process_time() - began < 0.005:
        pass
    with open(os.environ["DISTLAUNCH_PROGRESS_FILE"], "w") as file:
        file.write(f"step={step}\\n")
    time.sleep(0.045)
"""
"""Each step needs 5 ms of a CPU."""

CPU = Path("/sys/fs/cgroup/cpu")
ALL = Path("/sys/fs/cgroup/cgroup.controllers")


@pytest.fixture
def throttle() -> Iterator[Path]:
    """A cgroup whose processes get 1 % of a CPU: the file that takes their ids."""
    old = (CPU / "cpu.cfs_quota_us").exists()
    if not old and "cpu" not in (ALL.read_text().split() if ALL.exists() else ()):
        pytest.skip("there is no cgroup controller of CPUs here")
    group = (CPU if old else ALL.parent) / f"distlaunch-test-{os.getpid()}"
    group.mkdir()
    limits = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "1000"} if old else {"cpu.max": "1000 100000"}
    for name, value in limits.items():
        (group / name).write_text(value)
    yield group / "cgroup.procs"
    wait_until("the slowed process to end", lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def worker_pid(run: Run, node: int) -> int:
    """The process of a node's only worker; 0 before it is started."""
    if not run.stream_path(node).exists():
        return 0
    records = map(record, run.stream_path(node).read_bytes().splitlines())
    events = (each for each in records if isinstance(each, Event))
    return next((int(each.fields["pid"]) for each in events if each.name == "worker_started"), 0)


def some_steps(run: Run, node: int) -> bool:
    """Whether enough samples of a node tell another step than the one before."""
    return len({rank.step for sample in samples.of_node(run, node) for rank in sample.ranks if rank.step}) > 9


def settings(rack: Rack) -> None:
    """The cluster `lab`: all hosts of the rack."""
    values = {"backend": "ansible", "python": sys.executable, "remote_dir": str(rack.remote)}
    lines = [f'{key} = "{value}"' for key, value in values.items()]
    text = "\n".join(["[clusters.lab]", *lines, f'inventory = ["{rack.ssh.inventory}"]', ""])
    rack.cli.write(".config/distlaunch/config.toml", text)


def slow_run(rack: Rack, throttle: Path, name: str, nodes: int) -> str:
    """Follow a run to its end in which the worker on the second host is slowed; what its terminal shows."""
    go = rack.cli.directory / f"go-{name}"
    rack.write("steps.py", STEPS)
    where = ("run", "--on", "lab", "--name", name, "--nodes", str(nodes), "--samples", "1")
    followed = rack.open(*where, "--stragglers", "quarantine", "steps.py", str(go))
    wait_until("the run", lambda: list(rack.cli.runs.glob(f"{name}-2*/nodes/1/stream")), limit_s=120)
    run = directories.find(rack.cli.runs, rack.id_of(name))

    throttle.write_text(str(wait_until("the worker", lambda: worker_pid(run, 1), limit_s=120)))
    wait_until("some steps of the slowed worker", lambda: some_steps(run, 1), limit_s=120)
    go.touch()
    assert followed.end() == 0, followed.stderr
    return followed.stderr


def test_a_slow_host_is_left_out_of_later_runs_until_it_is_released(rack: Rack, throttle: Path) -> None:
    settings(rack)
    shown = slow_run(rack, throttle, "slow", 3)
    run = rack.id_of("slow")

    assert "n2 is in lab's quarantine from now on: rank 1 takes " in shown
    listed = rack.shell("hosts", "--on", "lab", "--output", "json").json["result"]["hosts"]
    reasons = {host["host"]: host["quarantine"] for host in listed}
    assert re.match(rf"slow in {run}: rank 1 takes [\d.]+ s for a step, the others [\d.]+ s$", reasons.pop("n2"))
    assert set(reasons.values()) == {None}
    later = rack.shell("run", "--on", "lab", "--nodes", "3", "--dry-run", "--output", "json", "steps.py")
    assert [node["host"] for node in later.json["result"]["nodes"]] == ["n1", "n3", "n4"], later.stderr

    assert rack.shell("doctor", "--on", "lab", "--release", "n2").exit_code == 0
    assert rack.shell("wait", run).exit_code == 0
    assert rack.shell("attach", run).exit_code == 0
    again = rack.shell("run", "--on", "lab", "--dry-run", "--output", "json", "steps.py")
    assert "n2" in [node["host"] for node in again.json["result"]["nodes"]], "once released, it stays released"


def test_a_slow_host_stays_if_a_run_of_this_size_would_not_find_its_hosts(rack: Rack, throttle: Path) -> None:
    settings(rack)
    shown = slow_run(rack, throttle, "all", 4)

    assert "n2 was slow, and is not put into quarantine: for another run of this size" in shown
    later = rack.shell("run", "--on", "lab", "--nodes", "4", "--dry-run", "steps.py")
    assert later.exit_code == 0, later.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("local",), "--stragglers quarantine needs a cluster to keep the list for"),
        (("run", "--on", "here"), "a cluster with the backend local has no hosts that could be left out"),
        (("run", "--on", "here", "--stragglers", "slow"), "stragglers"),
    ],
)
def test_where_nothing_can_be_put_aside_asking_for_it_is_an_error(
    rack: Rack, words: tuple[str, ...], message: str
) -> None:
    rack.write("x.py", "")
    rack.cli.write(".config/distlaunch/config.toml", '[clusters.here]\nbackend = "local"\nstragglers = "quarantine"\n')
    asked = words if "--stragglers" in words else (*words, "--stragglers", "quarantine")
    done = rack.shell(*asked, "x.py")

    assert done.exit_code == 2
    assert message in done.stderr
    assert rack.shell("run", "--on", "here", "x.py").exit_code == 0, "a setting that has no effect is no error"
