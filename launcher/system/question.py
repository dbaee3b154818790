"""Calls to a cluster in a thread, so that one that does not answer blocks neither reading nor signal handling."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from launcher.system import listener

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Question(Generic[T]):
    """One call in a daemon thread, which does not delay the process's exit."""

    def __init__(self, ask: Callable[[], T], name: str) -> None:
        self._ask = ask
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=listener.carried(self._run), name=name, daemon=True)
        self._thread.start()

    def answered(self, timeout_s: float) -> bool:
        """Whether the call has finished, after waiting for at most `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def answer(self) -> T:
        """The result of the call, once it has finished; raises what the call raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def _run(self) -> None:
        try:
            self._answer.append(self._ask())
        except BaseException as error:  # noqa: BLE001  # raised by `answer`
            self._error = error
