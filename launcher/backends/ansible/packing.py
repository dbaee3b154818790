"""The user's files as an archive, made while Ansible starts and given up once no host lacks them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO, TYPE_CHECKING, cast

from launcher import output
from launcher.agent.system import processes
from launcher.system import amounts, storage
from launcher.system.question import Question

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.backends.ansible.progress import Progress
    from launcher.payload.snapshot import Snapshot


class Packing:
    """Writes `files.tar.gz`, where the playbook's task expects it as soon as it is complete."""

    def __init__(self, snapshot: Snapshot, directory: Path) -> None:
        """Begin at once, in a thread: the files are to be those of the moment at which the launch began."""
        self._path, self._part = directory / "files.tar.gz", directory / "files.part"
        self._snapshot, self._over = snapshot, False
        self._work = Question(self._pack, "pack")

    @property
    def by(self) -> str:
        """This process, without which the archive is not waited for."""
        return f"{os.getpid()} {processes.start_ticks(os.getpid())}"

    def follow(self, progress: Progress) -> bool:
        """Whether a host waits for the archive; if none will, it is given up. Raises what the work has failed with."""
        if "files" in progress.steps:
            if not self._work.answered(0):
                output.progress(f"packing {amounts.size(self._snapshot.total_bytes)} of files")
                return True
            self._work.answer()
        elif "start" in progress.steps and not self._over:  # until then, other hosts may be chosen
            self.end()
        return False

    def wait(self) -> None:
        """Wait for the archive. Raises what the work has failed with: a file that has changed, a full disk."""
        try:
            self._work.answer()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Stop, and remove the archive."""
        self._over = True
        for path in (self._part, self._path):  # in the order in which the thread has them
            with suppress(OSError):
                path.unlink()

    def _pack(self) -> None:
        try:
            self.check()
            with storage.storage_errors(self._part), open(self._part, "wb") as file:
                self._snapshot.write_tar(cast("IO[bytes]", _Target(file, self)), compress=True)
            with storage.storage_errors(self._path):
                self.check()
                os.replace(self._part, self._path)
        except BaseException:  # which may be that the disk is full
            with suppress(OSError):
                self._part.unlink()
            raise

    def check(self) -> None:
        """Raise `InterruptedError` once it is over."""
        if self._over:
            raise InterruptedError("it is not needed any more")


class _Target:
    """What the archive is written to, until that is over."""

    def __init__(self, file: IO[bytes], packing: Packing) -> None:
        self._file, self._packing = file, packing

    def write(self, data: bytes) -> int:
        """Write to the file."""
        self._packing.check()
        return self._file.write(data)

    def flush(self) -> None:
        """What is compressed to a file calls this."""
        self._file.flush()
