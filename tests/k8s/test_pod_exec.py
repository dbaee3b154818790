"""Programs beside an agent, over a websocket that a test plays."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from launcher.backends.kubernetes import pod_exec
from launcher.backends.kubernetes.api import ApiError, UnreachableError

MISSING = 'Handshake status 404 Not Found -+-+- {"audit-id": "4031"} -+-+- pods "x-20260403-140312-0-x7k2p" not found'
FORBIDDEN = 'Handshake status 403 Forbidden -+-+- {} -+-+- pods "x-0-x7k2p" is forbidden: User "eve" cannot create it'


@pytest.mark.parametrize(("said", "kind"), [(MISSING, UnreachableError), (FORBIDDEN, ApiError)])
def test_a_right_is_missing_only_if_the_status_says_so(said: str, kind: type[Exception]) -> None:
    """Names of pods have the time of day in them."""
    assert type(pod_exec._refused("x", said, 0)) is kind


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
