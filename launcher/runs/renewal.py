"""A lock that is held (`lock.py`): its file is renewed, so that other hosts see that the owner lives, and released."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from launcher.agent.system import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FREE = b"{}\n"
"""The content of a lock that was released."""

_RENEW_S = 5.0


@contextmanager
def renewed(path: Path, about: dict[str, Any], watch: Callable[[], None]) -> Iterator[None]:
    """Renew the lock in that file within the block, then release it. `about`: its owner.

    `watch` is called every second meanwhile, in another thread.
    """
    over, done = threading.Event(), list[bool]()

    def freed() -> bool:
        try:
            release(path)
        except FileNotFoundError:  # the run was removed
            return True
        except OSError:
            return False
        return True

    def renew() -> None:
        next_s = time.monotonic() + _RENEW_S
        while not over.wait(min(1.0, _RENEW_S)):
            watch()
            if time.monotonic() > next_s:
                next_s = time.monotonic() + _RENEW_S
                try:
                    write(path, {**about, "renewed": time.time()})
                except OSError:  # a full disk still has room for a time
                    with suppress(OSError):
                        os.utime(path)
        while not freed():  # this process may live on for days, and no command could change the run
            time.sleep(_RENEW_S)
        done.append(True)

    thread = threading.Thread(target=renew, name="renew-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(1.0)  # a stuck disk must not block the exit
        if not done:
            freed()


def write(path: Path, about: dict[str, Any]) -> None:
    """Replace the lock's content by what its owner is now."""
    files.write_whole(str(path), json.dumps(about).encode("ascii"), 0o600, sync=False)


def release(path: Path) -> None:
    """Mark the lock as free. Raises `OSError`."""
    try:
        files.write_whole(str(path), FREE, 0o600, sync=False)
    except FileNotFoundError:
        raise
    except OSError:  # a full disk still has room for less than the file has
        with path.open("r+b") as file:
            file.write(FREE)
            file.truncate()
