"""Projects' directories, without hosts: launches from one directory, and what they leave there."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from launcher.agent.outputs import project
from launcher.agent.outputs.tree import Tree
from launcher.agent.ssh import user_files
from launcher.agent.system.files import SENT_MTIME_S
from launcher.backends._login_outputs import LoginOutputs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Project:
    """A project's directory in a test."""

    def __init__(self, top: Path) -> None:
        self.top, self.work, self._runs = top, top / "work", 0

    def launch(
        self, sources: dict[str, str], links: dict[str, str] | None = None, *, keeps: bool = False
    ) -> project.Prepared:
        """Prepare it for a run with these files; `keeps`: the run does not end."""
        self._runs += 1
        sent = self.top / f"sent-{self._runs}"
        for name, text in sources.items():
            (sent / name).parent.mkdir(parents=True, exist_ok=True)
            (sent / name).write_text(text)
            os.utime(sent / name, (SENT_MTIME_S, SENT_MTIME_S))
        for name, target in (links or {}).items():
            (sent / name).symlink_to(target)
        entries = list(user_files._entries(str(sent)))
        digest, run = user_files.combined(entries), f"run{self._runs}"
        try:
            return project.prepare(str(self.top), run, 0, digest, str(sent), entries, str(self.top / f"own-{run}"))
        finally:
            if not keeps:
                project.leave(str(self.top), run, 0)


def is_newer(one: Path, other: Path) -> bool:
    return one.stat().st_mtime_ns > other.stat().st_mtime_ns


def build(path: Path) -> None:
    path.touch()
    time.sleep(0.02)  # the kernel's clock for files has steps


@contextmanager
def behind_login(work: Path) -> Iterator[LoginOutputs]:
    """Its files by a login node's shell."""
    login: Any = SimpleNamespace(name="here", words=lambda: ["sh", "-c"])
    behind = LoginOutputs(login, str(work), str(work / "granted"))
    try:
        yield behind
    finally:
        behind.close()


def fetched(work: Path) -> tuple[list[str], ...]:
    """The files that runs have written, as a Python on the node and a login node's shell list them."""
    with behind_login(work) as behind:
        listed = [file.name for file in behind.listed("").files]
    return [name for name, *_ in Tree(str(work)).listed("")["files"]], listed
