"""Passes messages to a program that uses distlaunch as a library, instead of printing them."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Concatenate

    Kind = Literal["detail", "note", "warning"]
    Listener = Callable[[Kind, str], object]
    LineListener = Callable[Concatenate[Kind, ...], object]

T = TypeVar("T")

_listener: ContextVar[LineListener | None] = ContextVar("listener", default=None)


def told_to(listener: Listener) -> AbstractContextManager[None]:
    """Pass messages of this block to the listener instead of printing them, including those of `carried` threads."""
    return lines_told_to(lambda kind, *lines: listener(kind, "\n".join(lines)))


@contextmanager
def lines_told_to(listener: LineListener) -> Iterator[None]:
    """As `told_to`, with a message's lines apart: foreign text in one of them may have line ends of its own."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def carried(function: Callable[..., T]) -> Callable[..., T]:
    """The function for a thread: its messages go to the caller's listener."""
    return partial(copy_context().run, function)


def told(kind: Kind, *lines: str) -> bool:
    """Pass the message to the listener. Returns whether there is one."""
    if (listener := _listener.get()) is None:
        return False
    listener(kind, *lines)
    return True


def listens() -> bool:
    """Whether there is a listener: then nothing is drawn, either."""
    return _listener.get() is not None
