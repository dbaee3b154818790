"""Programs beside an agent, over a websocket that a test plays."""

from __future__ import annotations

import pytest

from launcher.backends.kubernetes import pod_exec
from launcher.backends.kubernetes.api import ApiError, UnreachableError

MISSING = 'Handshake status 404 Not Found -+-+- {"audit-id": "4031"} -+-+- pods "x-20260403-140312-0-x7k2p" not found'
FORBIDDEN = 'Handshake status 403 Forbidden -+-+- {} -+-+- pods "x-0-x7k2p" is forbidden: User "eve" cannot create it'


@pytest.mark.parametrize(("said", "kind"), [(MISSING, UnreachableError), (FORBIDDEN, ApiError)])
def test_a_right_is_missing_only_if_the_status_says_so(said: str, kind: type[Exception]) -> None:
    """Names of pods have the time of day in them."""
    assert type(pod_exec._refused("x", said, 0)) is kind
