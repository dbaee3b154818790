"""A submission that went wrong: what it has started is ended, and the run with it where it is certain that nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import LaunchError

if TYPE_CHECKING:
    from launcher.backends._base import AnyBackend
    from launcher.runs.handle import Handle


def undo(backend: AnyBackend, begun: Handle | None, error: BaseException) -> str:
    """End what was started, as it was recorded last. Why something may be left all the same; empty: nothing is."""
    if begun is None:
        return ""
    try:
        backend.undo(begun)
    except LaunchError as problem:
        return problem.message
    return error.message if isinstance(error, LaunchError) and error.in_part else ""
