"""Programs beside an agent, over a websocket that a test plays."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from launcher.backends.kubernetes import api, connecting, pod_exec
from launcher.backends.kubernetes.api import ApiError, UnreachableError
from launcher.errors import CommandError
from tests.k8s.test_api import answering, kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)

FORBIDDEN = 'pods "x-20260401-0" is forbidden: User "eve" cannot create resource "pods/exec"'


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "pod x does not have a host assigned"),
        (404, 'pods "x-20260403-140312-0-x7k2p" not found'),
        (500, "error dialing backend: dial tcp 10.0.0.5:10250: i/o timeout"),
    ],
)
def test_a_pod_that_is_not_reached_is_named_and_not_the_api_server(tmp_path: Path, status: int, said: str) -> None:
    """Names of pods have the time of day in them."""
    with (
        answering(tmp_path, [(status, json.dumps({"message": said}))]) as (cluster, _),
        pytest.raises(UnreachableError) as raised,
    ):
        pod_exec.execute(cluster, "x", "node", ["true"])

    told = api.explained(raised.value, cluster, "to signal the workers")
    assert (type(told), told.message) == (CommandError, f"pod x: {said}")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_api_server_that_accepts_and_says_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """As one that is overloaded, behind a balancer that accepts for it."""
    monkeypatch.setattr(api, "_CONNECT_S", 0.3)
    monkeypatch.setattr(pod_exec, "_ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = kubeconfig(tmp_path, silent.getsockname()[1])
        config.write_text(config.read_text().replace("http://", f"{scheme}://"))
        cluster = connecting.connect(str(config), "", "")
        with pytest.raises(UnreachableError, match="timed out"):
            pod_exec.bridge(cluster, "x", "node", ["true"])


def test_a_missing_right_is_reported_as_one(tmp_path: Path) -> None:
    with (
        answering(tmp_path, [(403, json.dumps({"message": FORBIDDEN}))]) as (cluster, _),
        pytest.raises(ApiError) as raised,
    ):
        pod_exec.execute(cluster, "x", "node", ["true"])

    assert "may not create pods/exec in namespace" in api.explained(raised.value, cluster, "to signal").message


def ends(monkeypatch: pytest.MonkeyPatch, **told: str) -> None:
    """Run a program, of whose end the API server says this."""
    about = SimpleNamespace(data=b"\x03" + json.dumps(told).encode())
    frames: list[tuple[int, Any]] = [(9, SimpleNamespace(data=b"\x03")), (2, about), (8, None)]
    websocket = SimpleNamespace(settimeout=Mock(), close=Mock(), recv_data_frame=lambda _: frames.pop(0))
    monkeypatch.setattr(pod_exec, "_exec", lambda *_, **__: websocket)
    pod_exec.execute(Mock(), "x", "node", ["true"])
    assert frames == []


@pytest.mark.parametrize("why", ["command terminated with exit code 1", "exec failed: cannot allocate memory"])
def test_a_program_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    with pytest.raises(UnreachableError, match=why) as raised:
        ends(monkeypatch, status="Failure", message=why)

    assert str(raised.value.why) == f"pod x: {why}"


def test_a_program_that_succeeds_or_whose_container_ends_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    ends(monkeypatch, status="Success")
    ends(monkeypatch, status="Failure", message="command terminated with exit code 137")
