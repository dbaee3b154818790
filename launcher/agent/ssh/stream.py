"""A node's agent stream from an offset on, and how the agent ended, over a connection that may break at any byte.

Frames, each a line and the data that it announces:
    d BYTES    this many bytes of the stream follow
    k          nothing new; keeps the connection alive
    e JSON     the agent has exited and all of its stream was sent: its stderr, its last words, a message
    r          the agent runs and all of its stream was sent (with --once)
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from typing import Any, Dict, Optional

from ..stream.sizes import RESERVED_BYTES
from ..system import files
from . import preflight
from .preflight import identity_of

_BLOCK_BYTES = 256 * 1024
_POLL_S = 0.1
_ALIVE_S = 4.0
_SETTLE_S = 2.0
"""How long the witness of a killed agent has to report that in its stream (`group/witness.py`)."""

_END_BYTES = 256 * 1024


def tail(directory: str, rank: int, offset: int, *, once: bool) -> None:
    """Send the stream from the offset on as it grows, until the agent has exited or stdin is closed."""
    path = os.path.join(directory, "nodes", str(rank), "stream")
    spoke = time.monotonic()
    gone_at: Optional[float] = None
    while True:
        identity = identity_of(directory, rank)
        # Before reading: what an agent writes last comes before its exit.
        running = identity is not None and preflight.alive(identity)
        sent = False
        with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            file.seek(offset)
            while data := file.read(_BLOCK_BYTES):
                _send(b"d %d\n" % len(data) + data)
                offset, sent = offset + len(data), True
        if sent:
            spoke = time.monotonic()
            if not once:
                continue
        gone_at = None if running else gone_at or time.monotonic()
        if gone_at is not None:
            told = (
                once or identity is None or identity["boot_id"] != preflight.boot_id() or _has_last_word(path, offset)
            )
            if told or time.monotonic() - gone_at > _SETTLE_S:
                _send(b"e " + json.dumps(_ending(directory, rank, identity)).encode("ascii") + b"\n")
                return
        elif once:
            _send(b"r\n")
            return
        if time.monotonic() - spoke > _ALIVE_S:
            _send(b"k\n")
            spoke = time.monotonic()
        if select.select([0], [], [], _POLL_S)[0] and not os.read(0, 4096):
            return


def _has_last_word(path: str, sent: int) -> bool:
    """Whether the stream reports how the node ended, and all of it was sent (`sent` bytes)."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END_BYTES))
        last = file.read(size).splitlines()[-1:]
        return size == sent and bool(last) and last[0].startswith((b'{"event":"done"', b'{"event":"failure"'))
    return False


def _ending(directory: str, rank: int, identity: Any) -> Dict[str, Any]:
    own = os.path.join(directory, "nodes", str(rank))
    found: Dict[str, Any] = {}
    for name, size in (("stderr", 4096), ("last_words", RESERVED_BYTES)):
        with contextlib.suppress(OSError):
            found[name] = files.read_end(os.path.join(own, name), size).decode("utf-8", "replace").rstrip(" ")
    if identity is None:
        found["message"] = "it was not started" if os.path.isdir(own) else f"{own} is gone"
    elif identity["boot_id"] != preflight.boot_id():
        found["message"] = "the host was restarted"
    return found


def _send(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
