"""Pod logs as streams: nothing lost and nothing doubled, wherever a connection breaks and whoever goes on."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.kubernetes import api, logs
from launcher.backends.kubernetes import watch as kube_watch
from launcher.backends.kubernetes.api import ApiError, UnreachableError
from launcher.backends.kubernetes.following import Following
from launcher.backends.kubernetes.logs import NodeLog, Position
from launcher.backends.kubernetes.pod_logs import PodLogs
from launcher.backends.kubernetes.states import Pod
from launcher.errors import BackendUnavailableError, CommandError, StorageError
from launcher.system import storage
from testbed import wait_until

if TYPE_CHECKING:
    from pathlib import Path


class FakeResponse:
    """Gives the bytes in odd pieces, and breaks off where it is told to."""

    def __init__(self, data: bytes, breaks_at: int | None, rng: random.Random) -> None:
        self._data = data if breaks_at is None else data[:breaks_at]
        self._breaks, self._rng = breaks_at is not None, rng

    def read1(self, _size: int) -> bytes:
        count = self._rng.randint(1, 700)
        block, self._data = self._data[:count], self._data[count:]
        if not block and self._breaks:
            raise ConnectionResetError
        return block

    def close(self) -> None:
        pass


class FakeKubelet:
    """A log of lines with times, served as a kubelet does: only those that are not before `sinceTime`, by whole seconds."""

    namespace = "ns"

    def __init__(self, lines: list[tuple[float, bytes]], seed: int = 0) -> None:
        self.lines, self.rng, self.breaks = lines, random.Random(seed), 0

    def open(self, _path: str, query: dict[str, Any], *, silent_s: float) -> FakeResponse:
        since = query.get("sinceTime", "")
        data = b"".join(stamp(when) + b" " + text + b"\n" for when, text in self.lines if stamp(when).decode()[:19] >= since[:19])
        if self.breaks:
            self.breaks -= 1
            return FakeResponse(data, self.rng.randint(0, len(data)), self.rng)
        return FakeResponse(data, None, self.rng)


def handle(run_dir: Path, nodes: int) -> Any:
    return {"run_dir": str(run_dir), "nodes": nodes, "kind": "job"}


def stamp(when: float) -> bytes:
    whole, fraction = divmod(when, 1)
    return f"2026-11-20T14:{int(whole) // 60:02}:{int(whole) % 60:02}.{int(fraction * 1e9):09}Z".encode()


def a_pod(uid: str = "u1", phase: str = "Succeeded") -> Pod:
    ended = {"name": "node", "state": {"terminated": {"exitCode": 0}}}
    return Pod(0, f"pod-{uid}", uid, "2026-11-20T14:00:00Z", phase, "n1", {"containerStatuses": [ended]})


def some_lines(count: int, seed: int) -> list[tuple[float, bytes]]:
    """Bursts of lines in one moment, pauses, and times that are a little out of order, as of two pipes."""
    rng, now, found = random.Random(seed), 5.0, []
    for number in range(count):
        now += rng.choice([0, 0, 0.000001, 0.01, 0.3, 1.2])
        found.append((max(0.0, now - rng.choice([0, 0, 0.00002])), b"line %d " % number + b"x" * rng.randint(0, 300)))
    return found


def text_of(lines: list[tuple[float, bytes]]) -> bytes:
    return b"".join(text + b"\n" for _, text in lines)


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


@pytest.mark.parametrize("seed", range(10))
def test_another_process_goes_on_where_one_was_killed(tmp_path: Path, seed: int) -> None:
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
    kubelet.lines = [(0.5, b"second")]  # another machine, whose clock is behind
    log.catch_up(a_pod("u2"))

    assert (tmp_path / "stream").read_bytes() == b"first\nsecond\n"


def test_that_a_pod_was_replaced_before_its_log_was_read_is_told(tmp_path: Path) -> None:
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
    """A pod may write one for ever; nothing of it is lost."""

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


def test_times_of_other_zones_and_the_kubelets_own_words(tmp_path: Path) -> None:
    position = Position()
    lines = [b"2026-11-20T16:00:00.5+02:00 a", b"2026-11-20T14:00:01Z b", b"rpc error: the runtime is not there"]

    assert position.take(lines) == [b"a", b"b", b"rpc error: the runtime is not there"]
    assert position.since() == "2026-11-20T14:00:00Z"


def test_the_log_of_a_pod_that_was_removed_ends_with_a_word(tmp_path: Path) -> None:
    class Gone(FakeKubelet):
        def open(self, _path: str, query: dict[str, Any], *, silent_s: float) -> FakeResponse:
            if query.get("sinceTime"):
                raise ApiError(404, "gone")
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


class NoLogs(FakeKubelet):
    """An API server that tells of a pod, and shows its log to nobody."""

    context = "c"

    def call(self, _method: str, _path: str, **_more: Any) -> dict[str, Any]:
        labels = {"batch.kubernetes.io/job-completion-index": "0"}
        meta = {"name": "p", "uid": "u", "creationTimestamp": "2026-11-20T14:00:00Z", "labels": labels}
        status = {"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]}
        return {"items": [{"metadata": meta, "status": status}], "metadata": {"resourceVersion": "1"}}

    def open(self, path: str, _query: dict[str, Any], *, silent_s: float) -> FakeResponse:
        if path.endswith("/log"):
            raise ApiError(403, 'pods "p" is forbidden: User "eve" cannot get resource "pods/log" in API group ""')
        raise UnreachableError(f"silent for {silent_s} s")


def test_whoever_may_not_read_logs_is_told_which_right_is_missing(tmp_path: Path) -> None:
    cluster: Any = NoLogs([])
    following = Following(cluster, "x-1", tmp_path, nodes=1)
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
def test_a_log_that_is_refused_is_told_after_a_while_and_one_that_is_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(logs, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: next(hours)}))
    kubelet: Any = Refusing([(1.0, b"first")])
    kubelet.status = status
    pod, log = a_pod(), NodeLog(tmp_path, 0, kubelet)

    with pytest.raises(ApiError, match="must be specified, not node") if status == 400 else nullcontext():
        log.follow(pod, lambda: pod, Event())

    assert kubelet.asked < 5
    assert log.is_complete(pod) == (status != 400)


def test_who_is_refused_the_lock_of_the_logs_does_not_take_it_from_who_has_it(tmp_path: Path) -> None:
    """As when a run is let go of while it is still being asked about, in another thread."""
    kept = PodLogs(tmp_path, handle(tmp_path, 1), lambda: pytest.fail("no cluster is needed"))
    held = kept.lock()
    assert held is not None

    assert kept.lock() is None
    os.close(held)

    again = kept.lock()
    assert again is not None
    os.close(again)


@pytest.mark.parametrize("starts", [True, False])
def test_a_signal_reaches_pods_that_the_api_server_does_not_know_to_run_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    """Its log is read from the kubelet, which tells the API server of the pod later."""
    asked: list[str] = []

    def execute(_cluster: object, pod: str, _container: str, command: list[str]) -> None:
        asked.append(pod)
        assert command[-1].endswith("os.kill(1, 10)")
        if pod == "late" and (not starts or asked.count(pod) < 3):
            raise UnreachableError(f"pod {pod}: container not found")

    watch = kube_watch.RunWatch(handle(tmp_path, 3))
    watch.__dict__["cluster"] = SimpleNamespace()
    waiting = {"containerStatuses": [{"name": "node", "state": {"waiting": {}}}]}
    pods = [
        replace(a_pod(), name="runs", phase="Running", status={}),
        replace(a_pod(), name="late", node=1, phase="Pending", status=waiting),
        replace(a_pod(), name="ended", node=2, phase="Succeeded"),
    ]
    watch._pods = lambda: [[pod] for pod in pods]  # type: ignore[method-assign]
    seconds = itertools.count(0.0, 9.0)  # a limit of 30 s is over at the fourth look
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None)
    for name, value in (("execute", execute), ("time", clock)):
        monkeypatch.setattr(kube_watch, name, value)

    with nullcontext() if starts else pytest.raises(CommandError, match=r"have not started .* signalled: late$"):
        watch.signal(signal.SIGUSR1)

    assert (asked.count("runs"), asked.count("ended")) == (1, 0)
    assert asked.count("late") == (3 if starts else 4)


def test_a_pod_that_runs_and_has_not_answered_is_not_signalled_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def execute(_cluster: object, pod: str, _container: str, _command: list[str]) -> None:
        asked.append(pod)
        raise UnreachableError(f"pod {pod}: no answer")

    watch = kube_watch.RunWatch(handle(tmp_path, 1))
    watch.__dict__["cluster"] = SimpleNamespace(context="")
    monkeypatch.setattr(kube_watch, "execute", execute)
    running = {"containerStatuses": [{"name": "node", "state": {"running": {}}}]}
    watch._pods = lambda: [[replace(a_pod(), name="runs", phase="Running", status=running)]]  # type: ignore[method-assign]

    with pytest.raises(BackendUnavailableError, match="pod runs: no answer"):
        watch.signal(signal.SIGUSR1)

    assert asked == ["runs"]
