"""The user's files, as node 0 lays them out from packs, at each start of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.agent.job import Job
from launcher.agent.outputs import packs, project
from launcher.login.store import listing, pack_of, write_pack
from launcher.payload import snapshot

LIMIT = 1 << 20


class Scratch:
    """A directory on a cluster with packs, runs, and a project."""

    def __init__(self, top: Path) -> None:
        self.top = top
        for name in ("packs", "projects/name"):
            (top / name).mkdir(parents=True)

    def send(self, run: str, files: dict[str, str], *, shares: bool = True) -> None:
        """Send a run's files."""
        source, directory = self.top / f"here-{run}", self.top / "runs" / run
        for path in (source, directory):
            path.mkdir(parents=True)
        for name, text in files.items():
            (source / name).write_text(text)
        taken = snapshot.collect(source, limit_bytes=LIMIT)
        name = pack_of(taken.files)
        with (self.top / "packs" / name).open("wb") as pack:
            write_pack(taken, taken.files, pack)
        listed = listing(taken, (name,), str(self.top), "name" if shares else "")
        (directory / packs.LIST).write_text(json.dumps(listed))

    def start(self, run: str, session: str, task: str = "") -> Path:
        """Where the workers of this start of the run begin; it has not ended then."""
        directory = self.top / "runs" / run
        job = Job(
            run=run, command=["true"], kind="program", cwd=str(directory / "work"), env={}, rendezvous={},
            directory=str(directory / task), session=session,
        )  # fmt: skip
        return Path(packs.laid(job, str(directory), 0).cwd)

    def end(self, run: str) -> None:
        """End the run."""
        project.leave(str(self.top / "projects/name"), run, 0)


def texts(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path)


def test_a_run_that_starts_again_has_its_files_though_another_launch_has_laid_out_others(scratch: Scratch) -> None:
    one = {"train.py": "one"}
    scratch.send("a", one)
    scratch.send("b", {"train.py": "two", "more.py": ""})
    first = scratch.start("a", "1.0.0")
    scratch.end("a")
    scratch.start("b", "2.0.0")
    scratch.end("b")

    again = scratch.start("a", "1.0.1")

    assert first == again == scratch.top / "projects/name/work"
    assert texts(again) == one


def test_a_run_that_starts_again_beside_one_with_other_files_gets_a_directory_and_keeps_it(scratch: Scratch) -> None:
    scratch.send("a", {"train.py": "one"})
    scratch.send("b", {"train.py": "two"})
    scratch.start("a", "1.0.0")
    scratch.end("a")
    other = scratch.start("b", "2.0.0")

    again = scratch.start("a", "1.0.1")
    (again / "state").write_text("written")
    scratch.end("b")
    last = scratch.start("a", "1.0.2")

    assert again == last != other
    assert texts(last) == {"train.py": "one", "state": "written"}
    assert texts(other) == {"train.py": "two"}


@pytest.mark.parametrize("shares", [True, False])
def test_what_a_run_has_done_to_its_files_is_there_when_it_starts_again(scratch: Scratch, shares: bool) -> None:
    scratch.send("a", {"train.py": "one", "todo": "1"}, shares=shares)
    work = scratch.start("a", "1.0.0", "tasks/1")
    (work / "todo").unlink()

    assert scratch.start("a", "2.0.0", "tasks/2") == work
    assert texts(work) == {"train.py": "one"}


def test_what_a_launch_that_was_cut_off_has_laid_out_is_replaced(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"train.py": "one", "z.py": "1"}
    scratch.send("a", one)
    scratch.send("b", {"train.py": "two", "z.py": "2"})
    scratch.start("a", "1.0.0")
    scratch.end("a")

    def cut_off(sent: str, *_: object) -> str:
        raise KeyboardInterrupt

    lay = project._lay
    monkeypatch.setattr(
        project, "_lay", lambda sent, work, path, *more: (cut_off if path == "z.py" else lay)(sent, work, path, *more)
    )
    with pytest.raises(KeyboardInterrupt):
        scratch.start("b", "2.0.0")
    monkeypatch.undo()
    scratch.end("b")

    assert texts(scratch.start("a", "1.0.1")) == one
