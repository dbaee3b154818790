"""The lease that this process takes for a run before it starts the agent, and what a host reports about its leases."""

from __future__ import annotations

import os
from typing import Any, Dict, List

from ..lease import gpus
from ..lease.lease import Holder, Wish, held, waiting
from ..lease.lock_files import LockFiles
from ..system import facts
from . import preflight
from .preflight import identity_of

Request = Dict[str, Any]
HOLDER = Holder()


def lease(request: Request) -> Request:
    """Take the lease for a node of a run: `leased`, or who holds what (`held`) and waits before us (`ahead`)."""
    already = identity_of(request["directory"], int(request["node_rank"]))
    if already is not None and preflight.alive(already):
        return {"leased": {"gpus": None}, "held": [], "ahead": []}
    return HOLDER.take(_wish(request), wait_s=float(request["wait_s"]), queue=bool(request["queue"]))


def look(request: Request) -> Request:
    """Whether a run could have the lease now; takes none."""
    return HOLDER.look(_wish(request))


def _wish(request: Request) -> Wish:
    env = {name: str(value) for name, value in request["env"].items() if name in gpus.VISIBLE}
    return Wish(request["run"], str(request["workers"]), env)


def survey(_request: Request) -> Request:
    """The host's load and GPUs, who holds and who waits for what."""
    uses, files = gpus.found(), LockFiles()
    with files.mutex():
        now: Request = {"held": held(files, uses), "ahead": waiting(files)}
    memory: List[Request] = [
        {"gpu": use.gpu, "used_mib": use.used_mib, "total_mib": use.total_mib, "busy": use.busy} for use in uses
    ]
    return {**now, "load": facts.load_average(), "cpus": os.cpu_count() or 1, "gpus": memory}
