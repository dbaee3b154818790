"""What pods report, in our terms."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, cast

import pytest

from launcher.backends.kubernetes import states
from launcher.backends.kubernetes.demand import Demand
from launcher.backends.kubernetes.pod_status import Pod
from launcher.backends.kubernetes.stuck import Stuck


def a_pod(phase: str = "Failed", **status: Any) -> Pod:
    """A pod of node 1, on host m."""
    deleted: float | None = status.pop("deleted", None)
    return Pod(1, "run-1-x", "uid", "2026-01-01T00:00:00Z", phase, "m", status, deleted)


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    """How its container ended."""
    return {"containerStatuses": [{"name": "node", "state": {"terminated": {"exitCode": code, "reason": reason}}}]}


def disrupted(reason: str) -> dict[str, Any]:
    """The condition that tells why the pod was taken."""
    told = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "told"}
    return {"conditions": [told], **ended(137)}


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (ended(0, "OOMKilled"), "out_of_memory", "for lack of memory"),
        (ended(137), "killed", "was killed by SIGKILL"),
        (disrupted("EvictionByEvictionAPI"), "preempted", "EvictionByEvictionAPI: told"),
        (disrupted("PreemptionByScheduler"), "preempted", "PreemptionByScheduler"),
        (disrupted("DeletionByTaintManager"), "node", "DeletionByTaintManager"),
        ({"reason": "Evicted", "message": "low on memory", **ended(137)}, "preempted", "Evicted: low on memory"),
        ({"reason": "DeadlineExceeded", **ended(143)}, "timeout", "DeadlineExceeded"),
        ({"reason": "NodeLost", **ended(137)}, "node", "NodeLost"),
        (ended(128, "ContainerCannotRun"), "node", "ContainerCannotRun"),
    ],
)
def test_ways_to_end_are_distinguished(status: dict[str, Any], kind: str, words: str) -> None:
    cause = states.cause(a_pod(**status))

    assert cause is not None
    assert cause["class"] == kind
    assert cause["message"].startswith("pod run-1-x on m ")
    assert words in cause["message"]


@pytest.mark.parametrize("code", [75, 143, 255])
def test_a_pod_that_starts_again_has_not_ended_until_its_workload_has(code: int) -> None:
    pod = a_pod(**ended(code))

    assert states.state(pod, over=False, restarts=True) == "pending"
    assert states.state(pod, over=True, restarts=True) == "ended"
    assert states.state(pod, over=False, restarts=False) == "ended"
    assert states.state(a_pod(**ended(1)), over=False, restarts=True) == "ended"


def test_a_pod_on_a_lost_host_waits_for_its_return_or_removal() -> None:
    running = {
        "containerStatuses": [{"name": "node", "ready": True, "state": {"running": {}}}],
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}],
    }
    unheard = a_pod("Running", **running)
    given_up = a_pod("Running", deleted=time.time() - 60, **running)

    assert states.state(unheard, over=False, restarts=True) == "running"
    assert states.state(given_up, over=False, restarts=True) == "pending"
    assert states.state(given_up, over=False, restarts=False) == "ended"
    for pod in (unheard, given_up):
        assert states.unheard([[pod]], restarts=True).endswith("kubectl delete node m")
        assert states.unheard([[pod]], restarts=True, context="a b").endswith("kubectl delete node m --context='a b'")
        assert "host m, which does not report" in states.unheard([[pod]], restarts=False)


def test_a_pod_that_has_ended_is_not_lost_however_long_kubernetes_keeps_it() -> None:
    """Its Job does, until the successor is made, which may be ten minutes later."""
    pod = a_pod("Failed", deleted=time.time() - 60, **ended(143))

    assert states.state(pod, over=False, restarts=True) == "pending"
    assert states.unheard([[pod]], restarts=True) == "", "its host is well"
    cause = states.cause(pod)
    assert cause is not None
    assert (cause["class"], cause["message"]) == ("preempted", "pod run-1-x on m was deleted")


@pytest.mark.parametrize(("before", "pause"), [(0, ""), (1, "20"), (5, "320"), (9, "600")])
def test_that_kubernetes_waits_before_it_starts_pods_again_is_reported(before: int, pause: str) -> None:
    pods = [[replace(a_pod(**ended(143)), restarts=before)], [a_pod(**ended(75))]]

    found = states.backs_off(pods)

    assert found.startswith(f"2 of 2 pods have ended: Kubernetes starts them again {pause} s later" if pause else "")
    assert bool(found) is bool(pause)
    assert states.backs_off([*pods, [a_pod("Running")]]) == "", "those that still run are not waited for"


MESH = {"name": "a-mesh", "ready": False, "state": {"running": {}}}
"""Of a container beside ours; statuses are in the order of names."""


@pytest.mark.parametrize(
    ("phase", "own", "state", "unstartable"),
    [
        ("Running", {"terminated": {"exitCode": 0, "reason": "Completed"}}, "ended", ""),
        ("Running", {"terminated": {"exitCode": 143, "reason": "Error"}}, "pending", ""),
        ("Running", {"running": {}}, "running", ""),
        ("Pending", {"running": {}}, "running", ""),
        ("Pending", {"waiting": {"reason": "ErrImagePull", "message": "no such"}}, "pending", "ErrImagePull: no such"),
        ("Pending", {"waiting": {"reason": "PodInitializing"}}, "pending", ""),
    ],
)
def test_of_several_containers_ours_counts(phase: str, own: dict[str, Any], state: str, unstartable: str) -> None:
    pod = a_pod(phase, containerStatuses=[MESH, {"name": "node", "ready": True, "state": own}, {**MESH, "name": "z"}])

    assert states.state(pod, over=False, restarts=True) == state
    assert states.unstartable(pod) == unstartable


@pytest.mark.parametrize("reason", ["ContainersNotReady", "ReadinessGatesNotReady"])
def test_a_pod_that_its_kubelet_reports_as_not_ready_is_not_lost(reason: str) -> None:
    conditions = [{"type": "Ready", "status": "False", "reason": reason}, {"type": "ContainersReady", "status": "True"}]
    pod = a_pod("Running", containerStatuses=[MESH, {"name": "node", "state": {"running": {}}}], conditions=conditions)

    assert not pod.lost
    assert states.unheard([[pod]], restarts=True) == ""


def test_an_init_container_that_keeps_ours_from_starting_is_named() -> None:
    image = {"name": "first", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "none"}}}
    failed = {"name": "first", "state": {"terminated": {"exitCode": 4, "reason": "Error"}}}
    ours = {"name": "node", "state": {"waiting": {"reason": "PodInitializing"}}}

    assert (
        states.unstartable(a_pod("Pending", initContainerStatuses=[image], containerStatuses=[ours]))
        == "ImagePullBackOff: none"
    )
    cause = states.cause(a_pod("Failed", initContainerStatuses=[failed], containerStatuses=[ours]))
    assert cause is not None
    assert cause["message"] == "pod run-1-x on m did not start: container first ended with exit code 4"


@pytest.mark.parametrize("name", ["run-1", "run-1-n-0", "run-1-node-0", "run-1-roll-out2", "run-1-roll-out2-0"])
def test_a_reason_stays_the_same_whatever_the_next_pod_is_called(name: str) -> None:
    """A kubelet's message has the pod's name and uid and a pause that doubles; each reason is to be reported once."""
    uids = ("1fd0445c-a981-4952-82a1-838aa2c15037", "64f2ed6c-a8fa-4708-ba6b-0a378e94596b")
    told = [
        states.steady(
            f"2 of 3 pods wait: CrashLoopBackOff: back-off {pause} restarting failed container=mesh "
            f"pod={pod}_ns({uid})",
            "run-1",
        )
        for pause, pod, uid in zip(("10s", "1m20s"), (f"{name}-0-npjmw", f"{name}-0-tp4z9"), uids, strict=True)
    ]

    assert told[0] == told[1]
    assert (
        told[0] == f"2 of 3 pods wait: CrashLoopBackOff: back-off restarting failed container=mesh pod={name}-0_ns(...)"
    )
    assert states.steady("pod run-12-0-npjmw waits for run-1-0", "run-1") == "pod run-12-0-npjmw waits for run-1-0"


def an_end(node: int, code: int, second: int, created: str = "2026-01-01T00:00:00Z") -> Pod:
    """A pod of that node that has ended in that second of a minute."""
    state = {"terminated": {"exitCode": code, "finishedAt": f"2026-01-01T00:01:{second:02}Z"}}
    status = {"containerStatuses": [{"name": "node", "state": state}]}
    return Pod(node, f"run-{node}-x", f"u{node}-{created}", created, "Failed", "m", status)


def test_the_logs_of_the_first_pods_that_ended_badly_are_wanted_once_per_attempt() -> None:
    demand = Demand(10_000)
    ends = [an_end(1000 + number, 1, 40 - number) for number in range(40)]

    demand.hear([*ends, an_end(5, 143, 0), an_end(6, 75, 0), an_end(7, 0, 0)])

    assert [*demand.nodes] == [0, *range(1024, 1040)], "those that were stopped or lost a node explain nothing"
    demand.hear([an_end(50, 137, 1), an_end(51, 137, 59, created="2026-01-01T00:01:58Z")])
    assert 50 not in demand
    assert 51 in demand, "it began after the others had ended"


def test_nodes_whose_logs_are_not_read_have_ended_as_their_exit_codes_tell() -> None:
    demand = Demand(1000)
    pods = [[an_end(node, code, 0)] for node, code in enumerate((0, 0, 143, 75, 137, 0))] + [[] for _ in range(994)]
    states: list[Any] = ["ended"] * 3 + ["pending", "ended", "running"] + ["ended"] * 994
    demand.hear(each for known in pods for each in known)
    demand.ask([1])

    assert demand.unread(pods, states) == {2: ("m", "preempted"), 5: ("m", None)}
    assert Demand(6).unread(pods[:6], states[:6]) == {}
    assert Demand(1000).unread(pods, states)[1] == ("m", "success")


_OF_OTHER_THINGS = ("FailedScheduling", "FailedMount", "Unhealthy")


class Events:
    """A cluster that has these warnings of a pod's host, `ago_s` seconds ago for the first time by its own clock."""

    namespace = "team"

    def __init__(self, ago_s: float | None) -> None:
        first = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now() - (ago_s or 0.0)))
        told = {"type": "Warning", "firstTimestamp": first, "reason": "Failed"}
        others = [{**told, "firstTimestamp": "2026-01-01T00:00:00Z", "reason": why} for why in _OF_OTHER_THINGS]
        self._items = [*others, *([] if ago_s is None else [told])]
        self.calls = 0

    def now(self) -> float:
        return time.time() - 300.0

    def call(self, *_: object, **__: object) -> dict[str, Any]:
        """What the API server answers."""
        self.calls += 1
        return {"items": self._items}


def waiting(reason: str) -> Pod:
    """A pod that its host began to start long ago."""
    status = {"containerStatuses": [{"name": "node", "state": {"waiting": {"reason": reason, "message": "told"}}}]}
    return a_pod("Pending", startTime="2026-01-01T00:00:00Z", **status)


def late(stuck: Stuck, events: Events, reason: str, limit_s: float) -> bool:
    """Whether the pod has been unable to start for longer than that."""
    return stuck.late(cast("Any", events), [waiting(reason)], limit_s) is not None


def test_an_image_that_was_pulled_for_long_may_fail_to_be_pulled_for_a_while() -> None:
    stuck = Stuck()

    assert not late(stuck, Events(None), "ContainerCreating", 60.0)
    assert not late(stuck, Events(300.0), "ErrImagePull", 60.0), "it has just begun"
    assert late(stuck, Events(300.0), "ImagePullBackOff", -1.0), "the same failure"
    assert not late(stuck, Events(300.0), "ContainerCreating", 60.0)
    assert not late(stuck, Events(300.0), "ErrImagePull", 60.0), "another one"


def test_a_command_that_looks_once_knows_from_the_hosts_warnings_how_long_a_pod_cannot_start() -> None:
    assert late(Stuck(), Events(90.0), "ImagePullBackOff", 60.0)
    assert not late(Stuck(), Events(30.0), "ImagePullBackOff", 60.0)
    assert not late(Stuck(), Events(None), "ImagePullBackOff", 60.0), "other warnings are about other things"


def test_of_many_pods_that_cannot_start_one_is_asked_about() -> None:
    pods = [replace(waiting("ImagePullBackOff"), uid=f"{number}") for number in range(500)]
    events = Events(90.0)

    assert Stuck().late(cast("Any", events), pods, 60.0) is not None
    assert events.calls == 1
