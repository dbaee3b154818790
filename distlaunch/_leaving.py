"""Runs that mean nothing without the call that waits for them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from distlaunch._messages import warn
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distlaunch._run import Run


@contextmanager
def cancelled_if_left(run: Run) -> Iterator[None]:
    """Cancel the run if an exception leaves the block. A failure to cancel it does not replace that exception."""
    try:
        yield
    except BaseException:
        try:
            run.cancel(wait=False)
        except LaunchError as error:
            warn(f"{run.id} was not cancelled: {error.message}; try distlaunch cancel {run.id}")
        raise
