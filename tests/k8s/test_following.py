"""Many pods are followed by few threads, and nothing of their logs is lost or doubled."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from launcher.backends.kubernetes import api, logs
from launcher.backends.kubernetes.demand import MOST_FOLLOWED, Demand
from launcher.backends.kubernetes.following import Following
from testbed import wait_until
from tests.command import ROOT
from tests.k8s.many_pods import RUN, asked, line
from tests.k8s.proxy import connected

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PODS, LINES = 100, 20


class Closing:
    """A cluster that accepts watches and closes them, without and with a page of a proxy."""

    namespace, access = "team", None

    def __init__(self) -> None:
        self.opened = 0

    def call(self, *_: object, **__: object) -> dict[str, Any]:
        return {"items": [], "metadata": {"resourceVersion": "7"}}

    def open(self, *_: object, **__: object) -> io.BytesIO:
        self.opened += 1
        if self.opened > 100:
            raise api.ApiError(401, "that is enough")
        return io.BytesIO(b"<html>\n" if self.opened % 2 else b"")


class Busy(Closing):
    """A cluster that lists its pods once, behind a proxy that then answers 503."""

    lists = 0

    def call(self, *_: object, **__: object) -> dict[str, Any]:
        self.lists += 1
        if self.lists > 1:
            raise api.ApiError(503, "no server is available")
        return super().call()

    def open(self, *_: object, **__: object) -> io.BytesIO:
        return io.BytesIO()


def test_pods_are_unknown_while_the_api_server_answers_with_errors(tmp_path: Path) -> None:
    """A status query then asks the API server, and reports that."""
    cluster = Busy()
    following = Following(cast("Any", cluster), RUN, tmp_path, Demand(1))
    try:
        wait_until("them to be unknown", lambda: cluster.lists > 1 and following.pods() is None, limit_s=20)
    finally:
        following.stop()


class Pauses(threading.Event):
    """They take no time; after some of them, the following stops."""

    made: ClassVar[list[float]] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.made.append(timeout or 0.0)
        if len(self.made) == 8:
            self.set()
        return True


def test_watches_that_do_not_work_are_followed_by_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{Following.__module__}.threading", SimpleNamespace(**{**vars(threading), "Event": Pauses}))
    cluster = Closing()
    found = Following(cast("Any", cluster), RUN, tmp_path, Demand(1))
    wait_until("some pauses, or an error", lambda: len(Pauses.made) == 8 or found.failure)
    found.stop()

    assert found.failure is None
    assert cluster.opened == 8
    assert (Pauses.made[0], Pauses.made[-1]) == (0.5, 5.0)


def test_a_hundred_pods_are_followed_by_few_threads(tmp_path: Path) -> None:
    """Over TLS, as its records hide from a socket what was received; each connection breaks once."""
    argv = [sys.executable, "-m", "tests.k8s.many_pods", str(tmp_path), str(PODS), str(LINES)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        cluster = connected(server.stdout.readline().strip())
        before, most = threading.active_count(), 0
        following = Following(cluster, RUN, tmp_path, Demand(PODS))
        try:

            def complete() -> bool:
                nonlocal most
                most = max(most, threading.active_count() - before)
                pods = following.pods() or []
                return len(pods) == PODS and all(following.has_log(pod.node, pod) for pod in pods)

            wait_until("all logs to be complete", complete, limit_s=120)
        finally:
            following.stop()
            server.kill()

    assert following.failure is None
    assert 2 < most <= 16
    for node in range(PODS):
        first, *printed, last = (tmp_path / "nodes" / str(node) / "stream").read_text().splitlines()
        assert printed == [f"[{node}:{node}] {line(node, number)}" for number in range(LINES)]
        assert ('"event":"agent_started"' in first, '"event":"done"' in last) == (True, True)


def test_pods_that_say_nothing_hold_no_thread_and_threads_end_with_the_follower(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.k8s.many_pods", str(tmp_path), "30", "1000", "29"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        cluster = connected(server.stdout.readline().strip())
        before = threading.active_count()
        following = Following(cluster, RUN, tmp_path, Demand(30))
        streams = [tmp_path / "nodes" / str(node) / "stream" for node in range(30)]
        wait_until("a line of each", lambda: all(b"line 0" in stream.read_bytes() for stream in streams))
        seen = streams[-1].stat().st_size
        wait_until("more lines", lambda: streams[-1].stat().st_size > seen + 200)
        following.stop()
        wait_until("all threads but that of the watch to end", lambda: threading.active_count() <= before + 1)
        size = streams[-1].stat().st_size
        server.kill()
    assert size == streams[-1].stat().st_size


def test_hosts_that_do_not_answer_keep_no_log_of_another_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked again and again, a few at once, for as long as their Nodes exist."""
    monkeypatch.setattr(logs, "_ANSWER_S", 0.5)
    monkeypatch.setattr(logs, "_SLOW_S", 0.2, raising=False)
    argv = [sys.executable, "-m", "tests.k8s.many_pods", str(tmp_path), "13", "6000", "0", "-1", "12"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        kubeconfig = server.stdout.readline().strip()
        following = Following(connected(kubeconfig), RUN, tmp_path, Demand(13))
        stream = tmp_path / "nodes/12/stream"
        try:
            again = lambda: asked(kubeconfig)["dead_again"] == 12  # noqa: E731
            wait_until("each to be asked again", again, limit_s=40)
            seen = stream.stat().st_size
            wait_until("lines of the other", lambda: stream.stat().st_size > seen + 200)
            at_once = asked(kubeconfig)["dead_again_at_once"]
        finally:
            following.stop()
            server.kill()

    assert following.failure is None
    assert 1 <= at_once <= 4, "of eight threads"


def test_of_many_pods_only_the_logs_that_are_needed_are_opened(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.k8s.many_pods", str(tmp_path), str(MOST_FOLLOWED + 1), str(LINES)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        kubeconfig = server.stdout.readline().strip()
        demand = Demand(MOST_FOLLOWED + 1)
        following = Following(connected(kubeconfig), RUN, tmp_path, demand)
        try:
            wait_until("all pods to be known", lambda: len(following.pods() or ()) == MOST_FOLLOWED + 1, limit_s=120)
            demand.ask([7, MOST_FOLLOWED])
            following.follow_wanted()
            wanted = [pod for pod in following.pods() or () if pod.node in (0, 7, MOST_FOLLOWED)]
            complete = lambda: all(following.has_log(pod.node, pod) for pod in wanted)  # noqa: E731
            wait_until("their logs to be complete", complete, limit_s=120)
            opened = asked(kubeconfig)
        finally:
            following.stop()
            server.kill()

    assert following.failure is None
    assert opened["logs_at_once"] <= 3
    assert {found.name for found in (tmp_path / "nodes").iterdir()} == {"0", "7", str(MOST_FOLLOWED)}
    for node in (0, 7, MOST_FOLLOWED):
        _, *printed, _ = (tmp_path / "nodes" / str(node) / "stream").read_text().splitlines()
        assert printed == [f"[{node}:{node}] {line(node, number)}" for number in range(LINES)]


def test_a_log_is_read_by_one_process_and_by_another_once_that_has_left(tmp_path: Path) -> None:
    """Each command that follows a large run reads what it needs itself."""
    argv = [sys.executable, "-m", "tests.k8s.many_pods", str(tmp_path), str(MOST_FOLLOWED + 1), "60"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        kubeconfig = server.stdout.readline().strip()
        first, second = (Following(connected(kubeconfig), RUN, tmp_path, Demand(MOST_FOLLOWED + 1)) for _ in "12")
        try:
            stream = tmp_path / "nodes/0/stream"
            wait_until("a line", lambda: stream.exists() and b"line 0" in stream.read_bytes(), limit_s=120)
            before = asked(kubeconfig)["logs_at_once"]
            first.stop()
            wait_until("the end of the log", lambda: b'"event":"done"' in stream.read_bytes(), limit_s=120)
        finally:
            first.stop()
            second.stop()
            server.kill()

    assert before == 1
    _, *printed, _ = stream.read_text().splitlines()
    assert printed == [f"[0:0] {line(0, number)}" for number in range(60)]
