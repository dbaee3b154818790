"""Messages for people go to the logger `distlaunch`, which is silent unless the program configures it."""

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
    """Log the messages of this block."""
    with listener.told_to(_log):
        yield


def quiet(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap the function so that its messages are logged."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with logged():
            return function(*args, **kwargs)

    return call


def warn(text: str) -> None:
    """Log a warning."""
    _log("warning", text)


def _log(kind: str, text: str) -> None:
    import logging  # takes 10 ms, and most calls have no message

    logger = logging.getLogger("distlaunch")
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())
    logger.log({"detail": logging.DEBUG, "note": logging.INFO}.get(kind, logging.WARNING), "%s", text)


def told(found: Iterator[R]) -> Iterator[R]:
    """The same items, with messages logged while the next one is fetched."""
    while True:
        with logged():
            try:
                each = next(found)
            except StopIteration:
                return
        yield each
