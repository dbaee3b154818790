"""How a user leaves a run that is followed: by a key, at the question that Ctrl-C asks, or by closing the terminal."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher import output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

    from launcher.console.keys import Keys
    from launcher.service.interrupts import Interrupts, Unattended

ANSWER_S = 2.0
"""How long Ctrl-C's question waits for an answer; then the run is cancelled, as scripts and habit expect."""

_DETACH, _CANCEL, _GO_ON = "d", "c", "g"


class Detached(Exception):  # noqa: N818 - not an error
    """The user has left the run, which continues."""


@contextmanager
def left_alone(interrupts: Interrupts | Unattended) -> Iterator[None]:
    """Inside the block the run is not followed yet: a request to stop ends only this command. Raises `Detached`."""
    try:
        with interrupts.at_once():
            yield
    except KeyboardInterrupt:
        raise Detached from None


class Leaving:
    """Notices that the user leaves, while entered."""

    def __init__(self, interrupts: Interrupts | Unattended, keys: Keys | None = None) -> None:
        """`keys`: those of our terminal, if no worker has them; then Ctrl-C asks."""
        self.interrupts = interrupts
        self._keys = keys
        self._told = self._explained = False

    def __enter__(self) -> Self:
        if self._keys is not None:
            self.interrupts.may_ask = self._keys.open()
            if not self._explained:
                self._explained = True
                output.note("d detaches, Ctrl-C asks")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interrupts.may_ask = False
        if self._keys is not None:
            self._keys.close()

    def give_keys_away(self) -> None:
        """Leave the keyboard to a worker: Ctrl-C cancels from now on."""
        if self._keys is not None:
            self._keys.close()
        self._keys, self.interrupts.may_ask = None, False

    def look(self) -> None:
        """Handle keys. Raises `Detached` if the user leaves."""
        self.interrupts.may_ask = self._keys is not None and self._keys.ours
        typed = self._keys.read() if self._keys is not None else ""
        if self.interrupts.hung_up or _DETACH in typed:
            raise Detached
        if self.interrupts.asked_at is None or self.interrupts.stops:
            self.interrupts.asked_at = None
            return
        if not self._told:
            self._told = True
            output.note(f"cancel, detach or go on? [c, d, g]; without an answer it is cancelled in {ANSWER_S:.0f} s")
        over = time.monotonic() - self.interrupts.asked_at > ANSWER_S
        if over or _CANCEL in typed or _GO_ON in typed:
            self._told = False
            self.interrupts.answered(cancel=_GO_ON not in typed)
            if _GO_ON in typed:
                output.note("going on")
