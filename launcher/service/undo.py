"""Undo a failed submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.console import live_line
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from launcher.backends._base import AnyBackend
    from launcher.runs.handle import Handle


def undo(backend: AnyBackend, begun: Handle | None, error: BaseException) -> str:
    """End what was started, as recorded last. Returns why something may be left; empty if nothing is."""
    if begun is None:
        return ""
    try:
        with live_line.waiting("ending what was started"):
            backend.undo(begun)
    except LaunchError as problem:
        return problem.message
    return error.message if isinstance(error, LaunchError) and error.in_part else ""
