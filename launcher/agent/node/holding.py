"""Keeps a node whose files are lost with it, such as a pod, until a launcher has fetched them."""

from __future__ import annotations

import os
import time
from typing import Callable

from ..outputs.serve import RELEASED
from ..stream.writer import Writer
from .place import Place
from .stops import Stops

_LOOK_S = 0.1


def hold(place: Place, out: Writer, stops: Stops, stopped: Callable[[], bool]) -> None:
    """Wait until the files are fetched, or up to the job's limit; after a signal at most for the grace time."""
    job = place.job
    released = os.path.join(job.directory, RELEASED)
    if place.node_rank or stops.reason is not None or os.path.exists(released):
        return
    out.event("outputs_ready", limit_s=job.hold_s)
    limit, heartbeat_at, signals = time.monotonic() + job.hold_s, time.monotonic() + job.heartbeat_s, 0
    while not os.path.exists(released) and time.monotonic() < limit:
        time.sleep(_LOOK_S)
        if stopped():
            signals += 1
            limit = min(limit, time.monotonic() + (job.grace_s if signals == 1 else 0.0))
        if time.monotonic() > heartbeat_at:
            heartbeat_at += job.heartbeat_s
            out.event("heartbeat", workers=0)
