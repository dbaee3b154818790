"""Messages for people, told to whoever uses distlaunch as a library instead of being printed."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Kind = Literal["detail", "note", "warning"]
    Listener = Callable[[Kind, str], None]

T = TypeVar("T")

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def told_to(listener: Listener) -> Iterator[None]:
    """What would be printed for people in here, also by threads of `carried`, is told to the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def carried(function: Callable[..., T]) -> Callable[..., T]:
    """The function for a thread: what it says goes where it would go here."""
    return partial(copy_context().run, function)


def told(kind: Kind, text: str) -> bool:
    """Tell somebody who listens; whether there is one."""
    if (listener := _listener.get()) is None:
        return False
    listener(kind, text)
    return True


def listens() -> bool:
    """Whether somebody does: then nothing is drawn, either."""
    return _listener.get() is not None
