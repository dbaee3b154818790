"""What a cluster is asked or told, in a thread: one that does not answer keeps nobody from reading and from obeying signals."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from launcher.system import listener

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Question(Generic[T]):
    """One question; nobody waits for its thread when the process ends."""

    def __init__(self, ask: Callable[[], T], name: str) -> None:
        self._ask = ask
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=listener.carried(self._run), name=name, daemon=True)
        self._thread.start()

    def answered(self, timeout_s: float) -> bool:
        """Whether the answer is there, after waiting for it so long at most."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def answer(self) -> T:
        """What was answered; raises what the asking raised."""
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def _run(self) -> None:
        try:
            self._answer.append(self._ask())
        except BaseException as error:  # noqa: BLE001  # raised where it is asked for
            self._error = error
