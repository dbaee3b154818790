"""Waiting, always with a limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from testbed.errors import WaitError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def wait_until(
    what: str,
    condition: Callable[[], T],
    *,
    limit_s: float = 120,
    every_s: float = 0.1,
    progress: Callable[[], object] | None = None,
) -> T:
    """Poll a condition until it is true, and return its result: for changes that send no notification.

    Args:
        what: what is waited for, as named in the error: "n4 to be down".
        condition: called at least once, and once more after the limit.
        limit_s: seconds after which it raises a `WaitError` that names the last result.
        every_s: pause between two calls.
        progress: how far it has come; whenever that changes, the limit starts again. The error includes it, too.
    """
    deadline = time.monotonic() + limit_s
    seen: object = None
    while True:
        late = time.monotonic() >= deadline
        answer = condition()
        if answer:
            return answer
        if progress is not None and (now := progress()) != seen:
            seen, late, deadline = now, False, time.monotonic() + limit_s
        if late:
            instead = f"; it has come to {seen!r}" if progress else ""
            raise WaitError(f"waited {limit_s:g} s for {what}; the last answer was {answer!r}{instead}")
        time.sleep(every_s)
