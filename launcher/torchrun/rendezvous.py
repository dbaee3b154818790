"""Where the nodes of a run meet, as torchrun's options name it, and the secret that they share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.torchrun.options import TorchrunUsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

C10D_PORT = 29400
STATIC_PORT = 29500
KEY = "DISTLAUNCH_KEY"
_SHORTEST_KEY = 32


def endpoint(text: str, default_port: int) -> tuple[str, int]:
    """Host and port, as torchrun reads them; `localhost` for empty text."""
    text = text.strip()
    if not text:
        return "localhost", default_port
    host, colon, port = (text, "", "") if text[0] + text[-1] == "[]" else text.rpartition(":")
    if not colon:
        host = text
    host = host[1:-1] if host[:1] + host[-1:] == "[]" else host
    if colon and (not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 0xFFFF):
        raise TorchrunUsageError(f"rendezvous endpoint {text!r}: the port is a number from 0 to 65535")
    if not re.fullmatch(r"[\w.:-]+", host):
        raise TorchrunUsageError(f"rendezvous endpoint {text!r}: write HOST[:PORT]")
    return host, int(port) if colon else default_port


def settings(text: str) -> dict[str, str]:
    """Parse --rdzv-conf: `KEY=VALUE,...`."""
    found = {}
    for part in text.strip().split(",") if text.strip() else []:
        name, _, value = (word.strip() for word in part.partition("="))
        if not name or not value:
            raise TorchrunUsageError(f"--rdzv-conf {text!r}: write KEY=VALUE, with commas between several")
        found[name] = value
    return found


def key(env: Mapping[str, str], run: str, port: int) -> str:
    """The run's secret: as given, else derived from what torchrun's nodes share."""
    given = env.get(KEY)
    if given is None:
        import hashlib  # only runs of several nodes need it

        return hashlib.sha256(f"distlaunch torchrun\0{run}\0{port}".encode(errors="surrogateescape")).hexdigest()
    if len(given) < _SHORTEST_KEY:
        raise TorchrunUsageError(
            f"{KEY} is not a key: it must be {_SHORTEST_KEY} random characters or more, the same on all nodes"
        )
    return given
