"""Pods that are taken away at every moment of a run's end, or by force."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testbed import wait_until
from tests.k8s.conftest import index_of, job_ends
from tests.k8s.scripts import WAITS

if TYPE_CHECKING:
    from testbed import Kube
    from tests.k8s.conftest import User
    from tests.k8s.following import Follower

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]

ENDS = """
import os, signal, sys, time
rank, attempt = os.environ["RANK"], os.environ.get("DISTLAUNCH_ATTEMPT", "0")
def save(*_):
    time.sleep(3)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
print("attempt", attempt, flush=True)
late = time.monotonic() + {late}
while attempt == "0" and rank == "{slow}" and time.monotonic() < late and not told:
    time.sleep(0.05)
print("finished", flush=True)
"""
"""One rank ends later than the others, at the latest when it is signalled.

A rank that is told to end takes longer than a deletion by force allows.
"""


LATE = """
import os, time
if os.environ["HOSTNAME"].endswith("-1") and "DISTLAUNCH_ATTEMPT" not in os.environ:
    time.sleep(600)
"""
"""A module whose import on node 1 takes longer than a test, at the first start only."""


def pod_of(user: User, run: str, node: int) -> str:
    """The name of a node's newest pod."""
    found = [pod for pod in user.pods(run) if index_of(pod) == node]
    return str(max(found, key=lambda pod: pod["metadata"]["creationTimestamp"])["metadata"]["name"])


def take(user: User, run: str, node: int, grace_s: int | None) -> None:
    """Delete a node's pod; with a grace time of 0 by force."""
    user.kube.delete_pod(user.namespace, pod_of(user, run, node), grace_s=grace_s)


def follow(user: User, slow: int, late: float, count: int = 2) -> Follower:
    """A run whose rank `slow` ends late enough for a test to act before."""
    name = f"ends{slow}-{late}.py"
    user.write(name, ENDS.format(slow=slow, late=late))
    run = user.follow("--nodes", str(count), "--grace", "60s", "--log-ranks", "all", name)
    run.until("attempt 0", count=count)
    return run


@pytest.mark.parametrize("grace_s", [None, 0], ids=["politely", "by force"])
def test_a_pod_that_is_taken_while_the_run_ends_neither_fails_nor_hangs_it(pods: User, grace_s: int | None) -> None:
    """Each node's, before and after its rank has finished, while the other's has not: several runs at once."""
    moments: list[tuple[str, Follower, int, str]] = []
    for node in (0, 1):
        moments += [("runs", follow(pods, node, 600.0), node, f"[{1 - node}:{1 - node}] finished")]
        moments += [("has finished", follow(pods, 1 - node, 6.0), node, f"[{node}:{node}] finished")]
    for _, run, node, said in moments:
        run.until(said)
        take(pods, run.run, node, grace_s)
    for moment, run, node, _ in moments:
        done = run.result()
        told = f"node {node}, {moment}: {done.stderr}"
        assert done.exit_code == 0, told
        assert {line[:5] for line in done.stdout.splitlines() if line.endswith("finished")} == {"[0:0]", "[1:1]"}, told
        assert job_ends(pods, run.run) == {"Complete"}, told
        assert pods.state(run.run)["state"] == "success", told


@pytest.mark.parametrize("grace_s", [None, 0], ids=["politely", "by force"])
def test_a_pod_that_is_taken_when_all_have_finished_changes_nothing(pods: User, grace_s: int | None) -> None:
    """Right after the last rank has finished, and a little later, when it may have been removed or recorded."""
    runs = [(follow(pods, 1, 3.0), node, later) for node in (0, 1) for later in (False, True)]
    for run, node, later in runs:
        run.until("[1:1] finished")
        if later:
            pods.kube.wait_pods(pods.namespace, "a node to end", _one_has_ended, selector=f"distlaunch/run={run.run}")
        take(pods, run.run, node, grace_s)
    for run, node, later in runs:
        done = run.result()
        told = f"node {node}, {'later' if later else 'at once'}: {done.stderr}"
        assert done.exit_code == 0, told
        assert job_ends(pods, run.run) == {"Complete"}, told
        assert pods.state(run.run)["state"] == "success", told


def test_an_agent_that_learns_of_its_deletion_before_the_end_of_the_run_succeeds(pods: User, own_kube: Kube) -> None:
    """It is stopped while the others end, and finds both when it continues: no node is left to meet its replacement.

    On node 0 and on node 1, in two runs at once.
    """
    runs: list[tuple[int, Follower, int]] = []
    try:
        for node in (0, 1):
            run = follow(pods, 1, 600.0)
            runs.append((node, run, _stopped(own_kube, run.run, node)))
            _finish(own_kube, run.run)
        for node, run, agent in runs:
            other = pod_of(pods, run.run, 1 - node)
            pods.kube.wait_pods(pods.namespace, "the other to end", lambda found, name=other: _has_ended(found, name))
            take(pods, run.run, node, None)
            wait_until("the agent to have a signal pending", lambda pid=agent: _sigterm_is_pending(pid))  # type: ignore[misc]
    finally:
        for *_, agent in runs:
            os.kill(agent, signal.SIGCONT)

    for node, run, _ in runs:
        done = run.result()
        assert done.exit_code == 0, f"node {node}: {done.stderr}"
        assert "attempt 1" not in done.stdout
        assert job_ends(pods, run.run) == {"Complete"}
        assert pods.state(run.run)["state"] == "success"


def test_a_node_0_that_is_lost_when_all_have_succeeded_is_not_waited_for(pods: User, own_kube: Kube) -> None:
    """The follower ends the run, or without one the next command that looks at it: no other node is left to meet it."""
    followed = follow(pods, 1, 600.0)
    alone = pods.detached("--nodes", "2", "--grace", "60s", "ends1-600.0.py")
    pods.wait_printed(alone, "attempt 0", 2)
    agents = {run: _stopped(own_kube, run, 0) for run in (followed.run, alone)}
    for run in agents:
        _finish(own_kube, run)
    for run, agent in agents.items():
        other = pod_of(pods, run, 1)
        pods.kube.wait_pods(pods.namespace, "the other to end", lambda found, name=other: _has_ended(found, name))
        os.kill(agent, signal.SIGKILL)

    done = followed.result()
    assert done.exit_code == 0, done.stderr
    assert "came back after the others had exited and is ended" in done.stderr
    pods.kube.wait_pods(pods.namespace, "node 0 to come back", _runs_again, selector=f"distlaunch/run={alone}")
    wait_until("the run to be over", lambda: pods.state(alone)["state"] == "success")
    pods.wait_nothing_left()
    assert pods("logs", alone).stdout.count("finished\n") == 2


def agent_of(own_kube: Kube, run: str, node: int) -> int:
    """The process of a node's agent, as this host sees it."""
    return _process_of(own_kube, run, node, "status", rb"(?m)^NSpid:.*\s1$")


def _process_of(own_kube: Kube, run: str, node: int, file: str, says: bytes) -> int:
    """The process of a node's pod whose file in /proc says that."""
    for process in (process for host in own_kube.nodes for process in host.containers()):
        with suppress(OSError):
            told = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            here = f"HOSTNAME={run}-{node}".encode() in told
            if here and re.search(says, Path(f"/proc/{process.pid}/{file}").read_bytes()):
                return process.pid
    raise AssertionError(f"no such process of node {node}")


def _stopped(own_kube: Kube, run: str, node: int) -> int:
    """The agent of a node, stopped."""
    agent = agent_of(own_kube, run, node)
    os.kill(agent, signal.SIGSTOP)
    return agent


def _finish(own_kube: Kube, run: str) -> None:
    """Let rank 1 end, which is the slow one."""
    os.kill(_process_of(own_kube, run, 1, "cmdline", rb"ends1-[\d.]+py"), signal.SIGUSR1)


def _sigterm_is_pending(pid: int) -> bool:
    """Whether a SIGTERM is pending for a process."""
    told = re.findall(r"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return any(int(each, 16) >> (signal.SIGTERM - 1) & 1 for each in told)


def _has_ended(found: list[dict[str, Any]], name: str) -> bool:
    return _one_has_ended([pod for pod in found if pod["metadata"]["name"] == name])


def _one_has_ended(found: list[dict[str, Any]]) -> bool:
    states = [item["state"] for pod in found for item in pod["status"].get("containerStatuses", ())]
    return any("terminated" in state for state in states)


def _runs_again(found: list[dict[str, Any]]) -> bool:
    first = [pod for pod in found if index_of(pod) == 0]
    states = [item["state"] for pod in first for item in pod["status"].get("containerStatuses", ())]
    return len(first) > 1 and any("running" in state for state in states)


def test_a_pod_that_is_deleted_by_force_is_a_lost_node_and_comes_back(pods: User) -> None:
    run = follow(pods, 1, 600.0)

    take(pods, run.run, 1, 0)

    done = run.result()
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("attempt 1") == 2
    assert re.search(r"started again by the scheduler.*attempt 1", done.stderr)
    assert job_ends(pods, run.run) == {"Complete"}


def test_a_node_that_is_lost_before_all_have_met_comes_back_and_the_others_with_it(pods: User, own_kube: Kube) -> None:
    pods.write("late.py", LATE)
    pods.write(
        "early.py", "# distlaunch: preload late\nimport os\nprint('attempt', os.environ['DISTLAUNCH_ATTEMPT'])\n"
    )
    run = pods.follow("--nodes", "2", "--grace", "5s", "--log-ranks", "all", "early.py")
    run.wait_err("missing: node 1")

    os.kill(agent_of(own_kube, run.run, 0), signal.SIGKILL)  # nothing of its pod is left that could report it

    done = run.result()
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("attempt 1") == 2
    assert job_ends(pods, run.run) == {"Complete"}


def test_a_host_whose_kubelet_has_stopped_is_named_while_the_run_continues(pods: User, own_kube: Kube) -> None:
    """As soon as the control plane misses its reports (here 10 s, by default 50), not when it gives its pods up."""
    pods.write("waits.py", WAITS)
    run = pods.detached("waits.py")
    pods.wait_printed(run, "ready", 1)
    assert pods.state(run)["state"] == "running"
    (place,) = {pod["spec"]["nodeName"] for pod in pods.pods(run)}
    node = next(node for node in own_kube.nodes if node.name == place)
    node.stop_kubelet()
    try:
        pods.kube.wait_pods(pods.namespace, "its pod to be doubted", _one_is_doubted, selector=f"distlaunch/run={run}")

        state = pods.state(run)

        assert state["state"] == "running"
        assert f"is on host {node.name}, which does not report" in state["detail"]
        assert f"kubectl delete node {node.name}" in state["detail"]
    finally:
        node.start_kubelet()
        node.wait_ready()
        node.gpus(own_kube.options.gpus_per_host)
    assert pods("cancel", run).exit_code == 0


def _one_is_doubted(found: list[dict[str, Any]]) -> bool:
    return any(
        {"Ready", "False"} <= set(map(str, item.values())) for pod in found for item in pod["status"]["conditions"]
    )
