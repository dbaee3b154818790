"""Why a port cannot be bound."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from launcher.agent.network import ports


@pytest.mark.parametrize("port", [0, 80])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_a_port_that_cannot_be_bound_is_not_said_to_be_in_use(
    monkeypatch: pytest.MonkeyPatch, port: int, number: int
) -> None:
    class Refused(socket.socket):
        def __init__(self, *about: Any) -> None:
            if number == errno.EMFILE:
                raise OSError(number, "Too many open files")
            super().__init__(*about)

        def bind(self, address: Any) -> None:
            raise OSError(number, "Permission denied")

    monkeypatch.setattr(socket, "socket", Refused)

    with pytest.raises(OSError, match=r"port \d+ cannot be bound: (Permission denied|Too many open files)") as raised:
        ports.reserve(port)

    assert raised.value.errno == number


def test_a_port_that_is_in_use_is_said_to_be() -> None:
    with ports.reserve() as held:
        port = ports.port_of(held)
        with pytest.raises(ports.PortTakenError, match=f"port {port} is in use"):
            ports.reserve(port)
