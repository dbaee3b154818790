"""Keeps a node whose files are lost with it, such as a pod, until a launcher has fetched them."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, Optional

from ..outputs import signs
from ..stream.writer import Writer
from ..system import files
from .place import Place
from .stops import Stops

_LOOK_S = 0.1
_ASKED_S = 600.0


def hold(place: Place, out: Writer, stops: Stops, stopped: Callable[[], bool], result: str) -> None:
    """Wait until the files are fetched, or up to the job's limit; after a request to end at most for the grace time.

    `result`: how the node has ended.
    """
    job = place.job
    released, connected = (os.path.join(job.directory, name) for name in (signs.RELEASED, signs.CONNECTED))
    asked = os.path.exists(os.path.join(job.directory, signs.HELD))
    now = time.monotonic()
    limit, heartbeat_at, signals = now + (job.hold_s or _ASKED_S * asked), now + job.heartbeat_s, 0
    alone_s = signs.ALONE_STOPPED_S if stops.ends_node else signs.ALONE_S
    if stops.ends_node and stops.kill_at is not None:
        limit = min(limit, stops.kill_at)
    wanted = asked or job.hold_node in (None, place.node_rank)
    if not wanted or limit <= now or os.path.exists(released):
        return
    if asked:
        with contextlib.suppress(OSError):  # a full disk: who would fetch them waits in vain, up to the limit
            files.write_whole(os.path.join(job.directory, signs.WAITING), b"", 0o600, sync=False)
    out.event("outputs_ready", limit_s=round(limit - now, 3), result=result)
    sign, alone_since = _time_of(connected), now
    while not os.path.exists(released) and now < min(limit, alone_since + alone_s):
        time.sleep(_LOOK_S)
        now = time.monotonic()
        if stopped():
            signals += 1
            limit = min(limit, now + (job.grace_s if signals == 1 else 0.0))
        if (latest := _time_of(connected)) != sign:
            sign, alone_since = latest, now
        if now > heartbeat_at:
            heartbeat_at += job.heartbeat_s
            out.heartbeat(0)


def _time_of(path: str) -> Optional[int]:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
