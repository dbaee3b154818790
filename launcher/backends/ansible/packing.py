"""The user's files as an archive, which is made once a host lacks them: most starts find them on the hosts."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher import output
from launcher.system import amounts, storage
from launcher.system.question import Question

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.backends.ansible.progress import Answers
    from launcher.payload.snapshot import Snapshot


class Packing:
    """Writes `files.tar.gz`, where the playbook's task expects it as soon as it is complete."""

    def __init__(self, snapshot: Snapshot, directory: Path) -> None:
        self._snapshot, self._directory = snapshot, directory
        self._path, self._part = directory / "files.tar.gz", directory / "files.part"
        self._work: Question[None] | None = None
        self._over = False

    def begin(self) -> None:
        """Begin, unless it has begun."""
        if self._work is None:
            output.progress(f"packing {amounts.size(self._snapshot.total_bytes)} of files")
            self._work = Question(self._pack, "pack")

    def follow(self, answers: Answers) -> None:
        """Begin as soon as a host has answered that it lacks the files; raises as `check` does."""
        found = answers.get("preflight", {}).values()
        if self._work is None and not all(facts.get("problem") or facts.get("has_files") for facts in found):
            self.begin()
        self.check()

    def check(self, *, wait: bool = False) -> None:
        """Raise what the work has failed with: a file that has changed since the launch began, a full disk."""
        if self._work is not None and (wait or self._work.answered(0)):
            self._work.answer()

    def end(self) -> None:
        """Remove the archive."""
        self._over = True
        for path in (self._path, self._part):
            with suppress(OSError):
                path.unlink()

    def _pack(self) -> None:
        with storage.storage_errors(self._directory):
            self._snapshot.write_tar(self._part, compress=True)
            if not self._over:
                os.replace(self._part, self._path)
