"""Signals that stop or end us, which first have the terminal left as it was found."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from typing_extensions import Self


class Signals:
    """While open, calls `leave` for each of the signals, and then does what the signal did before."""

    def __init__(self, leave: Callable[[], object], *signals: signal.Signals) -> None:
        self._leave, self._signals = leave, signals
        self._before: dict[int, Any] = {}

    def open(self) -> None:
        """Handle those of the signals that are not ignored."""
        for number in self._signals:
            if (before := signal.getsignal(number)) != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._obey)

    def close(self) -> None:
        """Handle the signals as before."""
        while self._before:
            signal.signal(*self._before.popitem())

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _obey(self, signum: int, frame: FrameType | None) -> None:
        self._leave()
        before = self._before[signum]
        if callable(before):
            before(signum, frame)
        else:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        signal.signal(signum, self._obey)
