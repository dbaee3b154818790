"""Nothing of a run outlives it, however it ends."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from launcher.agent.system import processes
from testbed import wait_until
from tests.agent.harness import Run, alive, all_exited

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.harness import Runner

FAMILY = """
import os, signal, subprocess, sys, time
def tell(name):
    open(f"{sys.argv[1]}/{name}.{os.environ['RANK']}", "w").write(str(os.getpid()))
if os.fork() == 0:  # a daemon: in a session of its own, its parent gone, deaf to SIGTERM
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tell("daemon")
        time.sleep(600)
    os._exit(0)
if os.fork() == 0:
    tell("child")
    time.sleep(600)
os.wait()
subprocess.Popen(["sleep", "600"], start_new_session=True)
tell("worker")
print("ready", flush=True)
time.sleep(600)
"""


def contents_of(directory: Path, count: int) -> list[str]:
    """What the files in a directory hold, once there are `count` and none of them is empty."""
    told = [path.read_text() for path in directory.iterdir()]
    return told if len(told) == count and all(told) else []


def family(agents: Runner, directory: Path, **options: Any) -> tuple[Run, list[int]]:
    """A run of workers with children of every kind, and all of their pids."""
    directory.mkdir()
    run = agents.start(FAMILY, str(directory), nproc_per_node="2", **options)
    nodes = int(options.get("nodes", "1"))
    run.until(lambda: list(run.stdout.values()) == [b"ready\n"] * 2 * nodes)
    told = wait_until("all processes to write their pids", lambda: contents_of(directory, 3 * 2 * nodes), limit_s=30)
    pids = list(map(int, told))
    below = [psutil.Process(int(agent["pid"])).children(recursive=True) for agent in run.handle["agents"]]
    pids += [process.pid for processes in below for process in processes]
    assert len(set(pids)) >= 2 * 4 * nodes
    return run, pids


def test_cancel_ends_all_processes_of_a_run_and_of_no_other(agents: Runner, tmp_path: Path) -> None:
    other, others = family(agents, tmp_path / "other")
    run, pids = family(agents, tmp_path / "mine", nodes="2")

    run.backend.cancel(run.handle)

    assert run.wait().result() == "cancelled"
    assert [fields["exit_code"] for fields in run.of("done")] == [130, 130]
    assert all_exited(*pids)
    assert all(alive(pid) for pid in others)
    other.backend.cancel(other.handle)
    assert other.wait().result() == "cancelled"


@pytest.mark.parametrize("victim", ["agent", "fork server", "worker group"])
def test_killing_one_of_an_agents_own_processes_ends_all_processes_of_the_run(
    agents: Runner, tmp_path: Path, victim: str
) -> None:
    run, pids = family(agents, tmp_path / "mine", grace="2s")
    agent = psutil.Process(run.agent_pid())
    server = agent.children()[0]
    workers = run.worker_pids()
    group = next(child for child in server.children() if child.pid not in workers and child.num_threads() > 1)
    target = {"agent": agent, "fork server": server, "worker group": group}[victim]

    target.kill()
    run.wait()

    assert all_exited(*pids)
    if victim != "agent":
        assert run.result() == "failed"
        assert run.cause()["class"] == "killed"
        assert run.cause()["message"].endswith(" was killed by SIGKILL, sent by another process, not distlaunch")


@pytest.fixture(scope="module")
def unified_cgroups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The unified hierarchy, mounted where the agent finds it; a single mount, as an agent takes any that it finds."""
    directory = tmp_path_factory.mktemp("unified")
    mounted = subprocess.run(["mount", "-t", "cgroup2", "none", str(directory)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cgroup v2 cannot be mounted here")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)  # an agent of another test may use it, too


def test_with_a_cgroup_cancel_finds_what_is_left_when_all_of_the_agents_own_processes_were_killed(
    unified_cgroups: Path, agents: Runner, tmp_path: Path
) -> None:
    run, pids = family(agents, tmp_path / "mine")
    own = json.loads((run.directory / "nodes/0/agent.json").read_text())["cgroup"]
    assert Path(own).is_relative_to(unified_cgroups)
    agent = psutil.Process(run.agent_pid())
    ours = [agent, *agent.children()]
    for process in ours:
        process.suspend()  # so that none can clean up after another
    for process in reversed(ours):
        process.kill()
    daemon = int((tmp_path / "mine/daemon.0").read_text())
    run.wait()
    assert alive(daemon)

    run.backend.cancel(run.handle)

    assert all_exited(*pids)
    assert not Path(own).exists()


def test_empty_cgroups_of_agents_that_were_killed_are_removed_by_the_next_one(
    unified_cgroups: Path, agents: Runner
) -> None:
    here = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    own = unified_cgroups / here.strip("/")
    pid = os.getpid()
    dead, reused, living, foreign = (
        own / name
        for name in (
            "distlaunch-a-0-999999999-1",
            f"distlaunch-b-0-{pid}-1",
            f"distlaunch-c-0-{pid}-{processes.start_ticks(pid)}",
            "other-d-0-999999999-1",
        )
    )
    for directory in (dead, reused, living, foreign):
        directory.mkdir()
    try:
        assert agents("print(1)\n").result() == "success"

        assert [directory.exists() for directory in (dead, reused, living, foreign)] == [False, False, True, True]
    finally:
        living.rmdir()
        foreign.rmdir()


def test_a_worker_that_succeeds_leaves_nothing_behind_at_the_end_of_the_run(agents: Runner, tmp_path: Path) -> None:
    directory = tmp_path / "mine"
    directory.mkdir()
    run = agents(FAMILY.replace('time.sleep(600)\n"""', "").rpartition("time.sleep(600)")[0], str(directory))

    assert run.result() == "success", run.stderr
    assert all_exited(*(int(path.read_text()) for path in directory.iterdir()))
