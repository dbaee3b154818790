"""A project's directory: what a launch lays over what is there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.agent.outputs import project
from launcher.agent.ssh import user_files
from launcher.agent.system.files import SENT_MTIME_S

if TYPE_CHECKING:
    from pathlib import Path


class Project:
    """A project's directory in a test."""

    def __init__(self, top: Path) -> None:
        self.top, self.work, self._runs = top / "project", top / "project" / "work", 0

    def launch(self, files: dict[str, str], links: dict[str, str] | None = None) -> project.Prepared:
        """Prepare it for a run with these files, which no other run uses at that time."""
        self._runs += 1
        sent = self.top / f"sent-{self._runs}"
        for name, text in files.items():
            (sent / name).parent.mkdir(parents=True, exist_ok=True)
            (sent / name).write_text(text)
            os.utime(sent / name, (SENT_MTIME_S, SENT_MTIME_S))
        for name, target in (links or {}).items():
            (sent / name).symlink_to(target)
        entries = list(user_files._entries(str(sent)))
        digest, run = user_files.combined(entries), f"run{self._runs}"
        made = project.prepare(str(self.top), run, 0, digest, str(sent), entries, str(self.top / f"own-{run}"))
        project.leave(str(self.top), run, 0)
        return made


def test_a_directory_that_is_renamed_with_a_link_in_its_place_keeps_its_files(tmp_path: Path) -> None:
    place = Project(tmp_path)
    place.launch({"src/f.py": "one", "src/g.py": "two"})
    (place.work / "src/__pycache__").mkdir()
    (place.work / "src/__pycache__/f.cpython-311.pyc").touch()
    made = place.launch({"lib/f.py": "one", "lib/g.py": "two"}, {"src": "lib"})

    assert made.notes == []
    assert sorted(path.name for path in place.work.iterdir()) == ["lib", "src"]
    assert [(place.work / "src" / name).read_text() for name in ("f.py", "g.py")] == ["one", "two"]

    back = place.launch({"src/f.py": "one"})

    assert back.notes == []
    assert [str(path.relative_to(place.work)) for path in place.work.rglob("*")] == ["src", "src/f.py"]


def test_nothing_is_removed_through_a_link_that_a_run_has_made(tmp_path: Path) -> None:
    place = Project(tmp_path)
    place.launch({"data/in/f.txt": "one", "keep/f.txt": "two"})
    (place.work / "data/in/f.txt").unlink()
    (place.work / "data/in").rmdir()
    (place.work / "data/in").symlink_to("../keep")

    place.launch({"keep/f.txt": "two", "more": ""})

    assert (place.work / "keep/f.txt").read_text() == "two"
