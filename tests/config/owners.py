"""Files and directories of several users, and code that runs as one of them."""

from __future__ import annotations

import grp  # noqa: F401 - here: another user may not be able to read the standard library
import os
import pickle
import pwd  # noqa: F401 - as above
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from launcher.system import trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STRANGER, ME, LAB = 54321, 54322, 54323
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")


@pytest.fixture(autouse=True)
def _trust_is_reset() -> Iterator[None]:
    yield
    trust.except_for(())


def as_user(uid: int, work: Callable[[], Any], *, gid: int | None = None) -> Any:
    """What `work` returns in a process of that user."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setresgid(*[uid if gid is None else gid] * 3)
            os.setresuid(uid, uid, uid)
            os.chdir("/")
            os.write(write, pickle.dumps(work()))
        except BaseException:  # noqa: BLE001 - it must not continue as pytest
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return pickle.loads(answer)


def owned(path: Path, uid: int, mode: int, gid: int | None = None) -> Path:
    """Give a path to that user; one that does not exist becomes a directory."""
    if not path.exists():
        path.mkdir()
    os.chown(path, uid, uid if gid is None else gid)
    path.chmod(mode)
    return path


def file(path: Path, uid: int, mode: int = 0o644, text: str = "") -> Path:
    """A file of that user."""
    path.write_text(text)
    return owned(path, uid, mode)
