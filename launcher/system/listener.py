"""Passes messages to a program that uses distlaunch as a library, instead of printing them."""

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
    """Pass messages of this block to the listener instead of printing them, including those of `carried` threads."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def carried(function: Callable[..., T]) -> Callable[..., T]:
    """The function for a thread: its messages go to the caller's listener."""
    return partial(copy_context().run, function)


def told(kind: Kind, text: str) -> bool:
    """Pass the message to the listener. Returns whether there is one."""
    if (listener := _listener.get()) is None:
        return False
    listener(kind, text)
    return True


def listens() -> bool:
    """Whether there is a listener: then nothing is drawn, either."""
    return _listener.get() is not None
