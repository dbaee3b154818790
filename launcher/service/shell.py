"""A shell beside a run's workers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from launcher.errors import BackendUnavailableError, RequestError
from launcher.service import attaching, observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.runs.records import Run
    from launcher.system.pipes import Bridge


def connection(found: Run, node: int) -> Callable[[], Bridge]:
    """What opens a shell on that node of the run. Raises `RequestError` if the run has ended, or has no such node."""
    found = observe.whole(found)
    if found.tasks:
        raise RequestError(f"{found.id} is a job array", hint=f"distlaunch shell {found.id}/{found.tasks[0]}")
    if attaching.end(found) is not None:
        raise RequestError(f"{found.id} has ended", hint=f"distlaunch logs {found.id}")
    if not 0 <= node < len(found.hosts):
        raise RequestError(f"{found.id} has no node {node}", hint=f"nodes: 0 to {len(found.hosts) - 1}")
    backend = observe.backend_of(found)
    if not backend.has_terminals:
        raise BackendUnavailableError(f"{backend.name} cannot open a shell", hint="ssh to the host, if you may")
    return partial(backend.open_terminal, attaching.submitted(found).known, node, None)
