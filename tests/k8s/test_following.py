"""Many pods are followed by few threads, and nothing of their logs is lost or doubled."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from launcher.backends.kubernetes import connecting
from launcher.backends.kubernetes.demand import Demand
from launcher.backends.kubernetes.following import Following
from testbed import wait_until
from tests.command import ROOT
from tests.k8s.many_pods import RUN, line

if TYPE_CHECKING:
    from pathlib import Path

PODS, LINES = 100, 20


def test_a_hundred_pods_are_followed_by_few_threads(tmp_path: Path) -> None:
    """Over TLS, as its records hide from a socket what was received; each connection breaks once."""
    argv = [sys.executable, "-m", "tests.k8s.many_pods", str(tmp_path), str(PODS), str(LINES)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        cluster = connecting.connect(server.stdout.readline().strip(), "", "")
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
        cluster = connecting.connect(server.stdout.readline().strip(), "", "")
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
