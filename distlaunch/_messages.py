"""Messages for people go to the logger `distlaunch`, which says nothing unless a program sets it up to."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from launcher.system import listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def logged() -> Iterator[None]:
    """Messages in here are logged."""
    with listener.told_to(_log):
        yield


def quiet(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose messages are logged."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with logged():
            return function(*args, **kwargs)

    return call


def _log(kind: str, text: str) -> None:
    import logging  # 10 ms, and most calls have nothing to say

    logger = logging.getLogger("distlaunch")
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())
    logger.log({"detail": logging.DEBUG, "note": logging.INFO}.get(kind, logging.WARNING), "%s", text)
