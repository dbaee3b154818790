"""Runs the login plugins of a kubeconfig through the client library, with a time limit and their errors raised."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from launcher import output
from launcher.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

LIMIT_S = 60.0
ASKED_LIMIT_S = 300.0
"""The limit with a terminal: the user may have to type a code into a browser."""

_TELL_S, _REST_S = 3.0, 10.0
_ONE_AT_A_TIME = threading.Lock()


class LoginError(Exception):
    """A login plugin failed, or did not exit in time."""


def run(work: Callable[[], T]) -> T:
    """Return the result of `work`, a call of the library that may run a login plugin; one at a time.

    Raises `LoginError` for errors that the library only logs, and for a plugin that takes too long, which is ended.
    """
    with _ONE_AT_A_TIME, _complaints() as complaints:
        thread = _Call(work)
        thread.start()
        limit_s = ASKED_LIMIT_S if sys.stdin is not None and sys.stdin.isatty() else LIMIT_S
        thread.join(min(_TELL_S, limit_s))
        if thread.is_alive():
            output.note(f"waiting for the cluster's login plugin, at most {limit_s:.0f} s")
            thread.join(limit_s - _TELL_S)
        if thread.is_alive():
            thread.end_children()
            raise LoginError(f"it did not end within {limit_s:.0f} s")
        if thread.error is not None:
            raise thread.error
        if complaints:
            raise LoginError(complaints[-1])
        return thread.result  # type: ignore[no-any-return]


class Rest:
    """Leaves a plugin that has failed alone for a while: it may open a browser, or count as a failed login."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._until, self._failure = 0.0, ""

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, as the function does. Raises `LoginError`, until it may run again the same."""
        with self._turn:
            if time.monotonic() < self._until:
                raise LoginError(self._failure)
            try:
                return run(work)
            except LoginError as error:
                self._until, self._failure = time.monotonic() + _REST_S, str(error)
                raise


rests: defaultdict[str, Rest] = defaultdict(Rest)
"""By the kubeconfig and context that name the plugin."""


class _Call(threading.Thread):
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name="login", daemon=True)
        self._work = work
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001  # raised by `run`
            self.error = error

    def end_children(self) -> None:
        """Send SIGTERM to the processes that this thread has started."""
        with suppress(OSError), open(f"/proc/self/task/{self.native_id}/children", encoding="ascii") as file:
            for pid in file.read().split():
                os.kill(int(pid), signal.SIGTERM)


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """Collect errors of login plugins that the client library logs instead of raising."""
    found: list[str] = []

    def emit(record: logging.LogRecord) -> None:
        if isinstance(threading.current_thread(), _Call):  # others of the program log, too
            found.append(one_line(record.getMessage()))

    handler = logging.Handler(logging.ERROR)
    handler.emit = emit  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield found
    finally:
        root.removeHandler(handler)


def failed(error: LoginError, where: str = "") -> BackendUnavailableError:
    """What a user is to read of it; `where`: the kubeconfig that names the plugin."""
    what = f"{where}: its login plugin" if where else "the login plugin of the cluster"
    return BackendUnavailableError(f"{what} failed: {error}", hint="log in to the cluster again")


def one_line(text: str) -> str:
    """A message of the library or of urllib3, without line breaks and the prefixes around it."""
    return re.sub(r"^<[^>]*>: |^HTTPS?Connection\([^)]*\): |^exec: ", "", " ".join(text.split()))


def plain(error: BaseException) -> str:
    """The innermost error, in one line."""
    inner = getattr(error, "reason", None) or (
        error.args[-1] if error.args and isinstance(error.args[-1], Exception) else None
    )
    if isinstance(inner, Exception):
        return plain(inner)
    return one_line(str(error)) or type(error).__name__
