"""Signals to pods about which the API server knows less than the kubelet."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from launcher.backends.kubernetes import signals
from launcher.backends.kubernetes import watch as kube_watch
from launcher.backends.kubernetes.api import UnreachableError
from launcher.errors import BackendUnavailableError, CommandError
from tests.k8s.kubelet import a_pod, handle

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("starts", [True, False])
def test_a_signal_reaches_pods_that_the_api_server_does_not_know_to_run_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    """Its log is read from the kubelet, which reports the pod to the API server later."""
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
        monkeypatch.setattr(signals, name, value)

    with nullcontext() if starts else pytest.raises(CommandError, match=r"have not started .* signalled: late$"):
        watch.signal(signal.SIGUSR1)

    assert (asked.count("runs"), asked.count("ended")) == (1, 0)
    assert asked.count("late") == (3 if starts else 4)


def test_a_pod_that_runs_and_has_not_answered_is_not_signalled_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def execute(_cluster: object, pod: str, _container: str, _command: list[str]) -> None:
        asked.append(pod)
        raise UnreachableError(f"pod {pod}: no answer")

    watch = kube_watch.RunWatch(handle(tmp_path, 1))
    watch.__dict__["cluster"] = SimpleNamespace(context="", tunnel=None)
    monkeypatch.setattr(signals, "execute", execute)
    running = {"containerStatuses": [{"name": "node", "state": {"running": {}}}]}
    pod = replace(a_pod(), name="runs", phase="Running", status=running)
    watch._pods = lambda: [[pod]]  # type: ignore[method-assign]

    with pytest.raises(BackendUnavailableError, match="pod runs: no answer"):
        watch.signal(signal.SIGUSR1)

    assert asked == ["runs"]


def test_a_pod_that_cannot_be_signalled_keeps_the_signal_from_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many pods, only some are signalled at once."""
    asked: list[str] = []

    def execute(_cluster: object, pod: str, _container: str, _command: list[str]) -> None:
        asked.append(pod)
        if pod == "0":
            raise UnreachableError("exit code 1", CommandError("pod 0: exit code 1"))
        time.sleep(0.01)

    watch = kube_watch.RunWatch(handle(tmp_path, 40))
    watch.__dict__["cluster"] = SimpleNamespace(context="")
    monkeypatch.setattr(signals, "execute", execute)
    running = {"containerStatuses": [{"name": "node", "state": {"running": {}}}]}
    pods = [replace(a_pod(), name=str(node), node=node, phase="Running", status=running) for node in range(40)]
    watch._pods = lambda: [[pod] for pod in pods]  # type: ignore[method-assign]

    with pytest.raises(CommandError, match="pod 0: exit code 1"):
        watch.signal(signal.SIGUSR1)

    assert len(asked) == 40


def test_of_many_pods_many_are_signalled_at_once_and_those_that_start_then_have_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the first pass has taken."""
    seconds, at_once, late = [0.0], threading.Barrier(64), threading.Event()

    def execute(_cluster: object, pod: str, _container: str, _command: list[str]) -> None:
        if int(pod) < 64:
            at_once.wait(30)
        if pod == "599" and not late.is_set():
            seconds[0] = 40.0
            late.set()
            raise UnreachableError(f"pod {pod}: container not found")

    watch = kube_watch.RunWatch(handle(tmp_path, 600))
    watch.__dict__["cluster"] = SimpleNamespace(context="")
    pods = [replace(a_pod(), name=str(node), node=node, phase="Running", status={}) for node in range(600)]
    watch._pods = lambda: [[pod] for pod in pods]  # type: ignore[method-assign]
    clock = SimpleNamespace(monotonic=lambda: seconds[0], sleep=lambda _: None)
    for name, value in (("execute", execute), ("time", clock)):
        monkeypatch.setattr(signals, name, value)

    watch.signal(signal.SIGUSR1)

    assert (at_once.broken, late.is_set()) == (False, True)
