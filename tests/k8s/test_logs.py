"""Pod logs as streams: nothing is lost or doubled, wherever a connection breaks and whichever process continues."""

from __future__ import annotations

import itertools
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.kubernetes import api, library, logs
from launcher.backends.kubernetes.api import ApiError, UnreachableError
from launcher.backends.kubernetes.demand import Demand
from launcher.backends.kubernetes.following import Following
from launcher.backends.kubernetes.logs import NodeLog
from launcher.backends.kubernetes.pod_logs import PodLogs
from launcher.backends.kubernetes.position import Position
from launcher.errors import StorageError
from launcher.system import storage
from testbed import wait_until
from tests.k8s.kubelet import FakeKubelet, FakeResponse, a_pod, handle, some_lines, stamp, text_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", range(20))
def test_a_log_that_breaks_off_again_and_again_is_whole(tmp_path: Path, seed: int) -> None:
    kubelet: Any = FakeKubelet(some_lines(400, seed), seed)
    kubelet.breaks = 12
    log = NodeLog(tmp_path, 0, kubelet)

    while not log.is_complete(a_pod()):
        try:
            log.catch_up(a_pod())
        except UnreachableError:
            continue

    log.close()
    assert (tmp_path / "stream").read_bytes() == text_of(kubelet.lines)


@pytest.mark.parametrize("seed", range(5))
def test_logs_that_are_read_once_are_read_to_their_ends_over_connections_that_break(tmp_path: Path, seed: int) -> None:
    kubelet: Any = FakeKubelet(some_lines(400, seed), seed)
    kubelet.breaks = 1

    PodLogs(tmp_path, handle(tmp_path, 1), lambda: kubelet).catch_up([[a_pod()]])

    assert (tmp_path / "nodes/0/stream").read_bytes() == text_of(kubelet.lines)


@pytest.mark.parametrize("seed", range(10))
def test_another_process_continues_where_one_was_killed(tmp_path: Path, seed: int) -> None:
    lines = some_lines(300, seed)
    kubelet: Any = FakeKubelet(lines[:200], seed)
    running = a_pod(phase="Running")
    running.status["containerStatuses"][0]["state"] = {"running": {}}
    log = NodeLog(tmp_path, 0, kubelet)
    log.catch_up(running)
    with open(tmp_path / "stream", "ab") as file:  # it wrote more than it had time to note
        file.write(b"line 200 and so")

    kubelet.lines = lines
    later = NodeLog(tmp_path, 0, kubelet)
    later.catch_up(a_pod())

    assert later.is_complete(a_pod())
    assert (tmp_path / "stream").read_bytes() == text_of(lines)


def test_the_next_pod_of_a_node_is_appended(tmp_path: Path) -> None:
    kubelet: Any = FakeKubelet([(1.0, b"first")])
    log = NodeLog(tmp_path, 0, kubelet)
    log.catch_up(a_pod("u1"))
    kubelet.lines = [(0.5, b"second")]  # another host, whose clock is behind
    log.catch_up(a_pod("u2"))

    assert (tmp_path / "stream").read_bytes() == b"first\nsecond\n"


def test_a_pod_that_was_replaced_before_its_log_was_read_is_reported(tmp_path: Path) -> None:
    kubelet: Any = FakeKubelet([(1.0, b"first")])
    running = a_pod("u1", phase="Running")
    running.status["containerStatuses"][0]["state"] = {"running": {}}
    NodeLog(tmp_path, 0, kubelet).catch_up(running)
    kubelet.lines = [(0.5, b"second")]
    NodeLog(tmp_path, 0, kubelet).catch_up(a_pod("u2"))

    first, told, second = (tmp_path / "stream").read_bytes().splitlines()
    assert (first, second) == (b"first", b"second")
    assert b'"event":"warning"' in told
    assert b"was removed before it was read" in told


def test_a_line_that_is_still_being_written_waits_for_its_end() -> None:
    position = Position()

    assert position.take([stamp(1) + b" a"]) == [b"a"]
    position.since()
    assert position.take([stamp(1) + b" a", stamp(2) + b" b"]) == [b"b"]


def test_a_line_without_an_end_is_not_kept_until_it_ends() -> None:
    """A pod may write one forever; nothing of it is lost."""

    def size_of(count: int) -> int:
        ahead = [b"", *[b"x" * (1 << 20)] * count]
        response = SimpleNamespace(read1=lambda _: ahead.pop())
        lines = [line for lines in api.blocks(response, cut=True) for line in lines]
        assert max(map(len, lines)) < 20 << 20
        return sum(map(len, lines))

    assert (size_of(1), size_of(50)) == (1 << 20, 50 << 20)


def test_a_pod_that_writes_without_end_leaves_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [(2 << 30, 1 << 40), (0, 1 << 40)]
    monkeypatch.setattr(storage, "_space", lambda _: free[0])
    log = NodeLog(tmp_path / "0", 0, FakeKubelet([(5.0, b"a line")]))  # type: ignore[arg-type]
    assert log.fetch(a_pod(), follow=False, ended=True)
    free.pop(0)
    more = FakeKubelet([(5.0, b"a line"), *((6.0 + number, b"x" * 100_000) for number in range(20))])
    log._cluster = more  # type: ignore[assignment]

    with pytest.raises(StorageError, match="leaves 1024 MiB of its disk to others"):
        log.fetch(a_pod(), follow=False, ended=True)
    log.close()

    assert (tmp_path / "0/stream").read_bytes().startswith(b"a line\n")
    assert (tmp_path / "0/stream").stat().st_size < 2_000_000


def test_times_of_other_zones_and_the_kubelets_own_messages_are_read(tmp_path: Path) -> None:
    position = Position()
    lines = [b"2026-11-20T16:00:00.5+02:00 a", b"2026-11-20T14:00:01Z b", b"rpc error: the runtime is not there"]

    assert position.take(lines) == [b"a", b"b", b"rpc error: the runtime is not there"]
    assert position.since() == "2026-11-20T14:00:00Z"


def test_the_log_of_a_pod_that_was_removed_ends_with_a_warning(tmp_path: Path) -> None:
    class Gone(FakeKubelet):
        def open(self, _path: str, query: dict[str, Any], *, silent_s: float) -> FakeResponse:
            if query.get("sinceTime"):
                raise ApiError(404, 'pods "pod-u1" not found')
            return super().open(_path, query, silent_s=silent_s)

    kubelet: Any = Gone([(1.0, b"first")])
    running = a_pod(phase="Running")
    running.status["containerStatuses"][0]["state"] = {"running": {}}
    log = NodeLog(tmp_path, 0, kubelet)
    log.catch_up(running)
    log.catch_up(running)

    lines = (tmp_path / "stream").read_bytes().splitlines()
    assert lines[0] == b"first"
    assert b'"event":"warning"' in lines[1]
    assert b"was removed before it was read" in lines[1]
    assert log.is_complete(running)


@pytest.mark.parametrize(("started", "warnings"), [("2026-11-20T14:00:02Z", 1), ("1970-01-01T00:00:00Z", 0)])
def test_a_log_that_was_removed_whole_is_reported_unless_nothing_has_run(
    tmp_path: Path, started: str, warnings: int
) -> None:
    """Between two looks; of the node's former pod, all was read."""

    class Gone(FakeKubelet):
        def open(self, _path: str, query: dict[str, Any], *, silent_s: float) -> FakeResponse:
            if "u2" in _path:
                return FakeResponse(b"unable to retrieve container logs for containerd://7", None, self.rng)
            return super().open(_path, query, silent_s=silent_s)

    kubelet: Any = Gone([(1.0, b'{"event":"done","node":0}')])
    log, second = NodeLog(tmp_path, 0, kubelet), a_pod("u2")
    second.status["containerStatuses"][0]["state"]["terminated"]["startedAt"] = started
    log.catch_up(a_pod("u1"))
    log.catch_up(second)

    text = (tmp_path / "stream").read_text()
    assert text.count("the log of pod pod-u2 is lost: the pod was removed before it was read") == warnings
    assert (text.count('"event":"warning"'), log.is_complete(second)) == (warnings, True)


class Restarted(FakeKubelet):
    """It has just started, and does not know its pods yet; or it rotates a log."""

    asked, answer = 0, b""

    def open(self, _path: str, query: dict[str, Any], *, silent_s: float) -> FakeResponse:
        self.asked += 1
        if self.asked not in (2, 3):
            return super().open(_path, query, silent_s=silent_s)
        if not self.answer:
            raise ApiError(404, "the server could not find the requested resource ( pods/log pod-u1)")
        return FakeResponse(self.answer, None, self.rng)


@pytest.mark.parametrize("answer", [b"", b"failed to try resolving symlinks in path: no such file or directory\n"])
@pytest.mark.parametrize("follows", [True, False])
def test_the_log_of_a_pod_that_runs_is_not_lost_when_its_kubelet_does_not_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, follows: bool
) -> None:
    monkeypatch.setattr(library, "is_ahead", lambda _: True)
    kubelet: Any = Restarted([(1.0, b"first")])
    kubelet.answer = answer
    running, ended = a_pod(phase="Running"), a_pod()
    running.status["containerStatuses"][0]["state"] = {"running": {}}
    looks = [running] * 3
    log = NodeLog(tmp_path, 0, kubelet)

    if follows:
        list(log.follow(running, lambda: looks.pop() if looks else ended))
    else:
        for pod in (*looks, ended):
            log.catch_up(pod)

    assert (tmp_path / "stream").read_bytes() == b"first\n"
    assert (kubelet.asked, log.is_complete(ended)) == (4, True)


class NoLogs(FakeKubelet):
    """An API server that lists a pod, and refuses to show its log."""

    context, access = "c", None

    def call(self, _method: str, _path: str, **_more: Any) -> dict[str, Any]:
        labels = {"batch.kubernetes.io/job-completion-index": "0"}
        meta = {"name": "p", "uid": "u", "creationTimestamp": "2026-11-20T14:00:00Z", "labels": labels}
        status = {"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]}
        return {"items": [{"metadata": meta, "status": status}], "metadata": {"resourceVersion": "1"}}

    def open(self, path: str, _query: dict[str, Any], *, silent_s: float) -> FakeResponse:
        if path.endswith("/log"):
            raise ApiError(403, 'pods "p" is forbidden: User "eve" cannot get resource "pods/log" in API group ""')
        raise UnreachableError(f"silent for {silent_s} s")


def test_a_user_who_may_not_read_logs_is_told_which_right_is_missing(tmp_path: Path) -> None:
    cluster: Any = NoLogs([])
    following = Following(cluster, "x-1", tmp_path, Demand(1))
    try:
        error = wait_until("the failure", lambda: following.failure)
    finally:
        following.stop()

    assert str(error) == "eve may not get pods/log in namespace 'ns', which is needed to read the pods' logs"


class Refusing(FakeKubelet):
    """A log that the API server refuses, for the moment or for good."""

    status, asked = 400, 0

    def open(self, _path: str, query: dict[str, Any], *, silent_s: float) -> FakeResponse:
        self.asked += 1
        if self.status == 400 or self.asked < 4:
            raise ApiError(self.status, f"a container name must be specified, not {query['container']}; {silent_s}")
        return super().open(_path, query, silent_s=silent_s)


@pytest.mark.slow
@pytest.mark.parametrize("status", [400, 429, 500])
def test_a_log_that_is_refused_is_reported_after_a_while_and_one_that_is_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(logs, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: next(hours)}))
    kubelet: Any = Refusing([(1.0, b"first")])
    kubelet.status = status
    pod, log = a_pod(), NodeLog(tmp_path, 0, kubelet)

    with pytest.raises(ApiError, match="must be specified, not node") if status == 400 else nullcontext():
        list(log.follow(pod, lambda: pod))

    assert kubelet.asked < 5
    assert log.is_complete(pod) == (status != 400)


def test_a_refused_attempt_to_lock_the_logs_leaves_the_lock_to_its_holder(tmp_path: Path) -> None:
    """As when a run is released while another thread still asks about it."""
    kept = PodLogs(tmp_path, handle(tmp_path, 1), lambda: pytest.fail("no cluster is needed"))
    held = kept.lock()
    assert held is not None

    assert kept.lock() is None
    held.close()

    again = kept.lock()
    assert again is not None
    again.close()
