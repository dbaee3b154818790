"""File systems without locks: what one process does there alone works."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, NoReturn

import pytest

from launcher.agent.outputs import project
from launcher.backends.kubernetes import locking
from launcher.errors import StorageError
from launcher.system.partial import Partial

if TYPE_CHECKING:
    from pathlib import Path


def fail(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each lock fail like this."""

    def flock(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks_takes_files_and_logs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(number, monkeypatch)
    part = Partial(tmp_path / "model.pt")
    part.write(b"content")
    part.finish(0)
    lock = locking.locked(tmp_path / "log.lock")
    (tmp_path / "sent").mkdir()
    made = project.prepare(str(tmp_path / "project"), "run", 0, "digest", str(tmp_path / "sent"), (), str(tmp_path))

    assert [path.name for path in tmp_path.glob("*.pt")] == ["model.pt"]
    assert lock is not None
    assert locking.locked(tmp_path / "log.lock") is None
    assert made.notes == []
    lock.close()
    again = locking.locked(tmp_path / "log.lock")
    assert again is not None
    again.close()


def test_a_file_that_another_process_fetches_and_one_that_cannot_be_locked_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Partial(tmp_path / "model.pt")
    with pytest.raises(StorageError, match="another process is fetching"):
        Partial(tmp_path / "model.pt")
    first.close()
    fail(errno.EIO, monkeypatch)
    with pytest.raises(StorageError, match="Input/output error"):
        Partial(tmp_path / "model.pt")
