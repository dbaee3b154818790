"""A project's directory: what a launch lays over what is there."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NoReturn
from unittest import mock

import pytest

from launcher.agent import __main__ as agent
from launcher.agent.environment import stage
from launcher.agent.job import Job
from launcher.agent.node.claim import Claim
from launcher.agent.node.place import Place
from launcher.agent.outputs import project
from launcher.agent.ssh import user_files
from launcher.agent.system import garbage
from launcher.agent.system.files import SENT_MTIME_S

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 30.0


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


def job_in(top: Path) -> Job:
    """A job that starts in a project's directory, where a run is known to be alive for a short time only."""
    (top / "project/runs").mkdir(parents=True)
    return Job(
        run="run1", command=["true"], kind="program", cwd=str(top), env={}, directory=str(top), rendezvous={},
        heartbeat_s=0.01, project="project", output_dir=str(top / "project/work"),
    )  # fmt: skip


def wait_for(path: Path) -> None:
    limit = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < limit, path
        time.sleep(0.01)


def test_a_node_uses_the_directory_while_its_environment_is_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(tmp_path)._replace(env_ship={"source": "env"})
    mark = tmp_path / "project/runs/run1.0"

    def become(*_: object) -> stage.Refused:
        for _again in range(2):
            wait_for(mark)
            mark.unlink()
        return stage.Refused("refused")

    def run(*_: object, **__: object) -> NoReturn:
        mark.unlink(missing_ok=True)
        time.sleep(0.1)
        assert not mark.exists(), "the node's own pulse goes on with it"
        raise SystemExit

    monkeypatch.setattr(stage, "become", become)
    monkeypatch.setattr("launcher.agent.node.run.run", run)
    monkeypatch.setattr("sys.argv", ["agent", "--spec", str(tmp_path / "spec.json"), "--node-rank", "0"])
    monkeypatch.setattr(garbage, "keep", lambda: None)
    monkeypatch.setattr(Job, "read", lambda _: job)
    with pytest.raises(SystemExit):
        agent.main()


def test_a_node_uses_the_directory_while_it_waits_for_its_claim(tmp_path: Path) -> None:
    job = job_in(tmp_path)._replace(claim={"wait_s": 5.0})
    mark = tmp_path / "project/runs/run1.0"
    stops = mock.Mock(reason=None, **{"cancelled.return_value": False})
    loop = mock.Mock(**{"signals.return_value": b""})
    place = mock.Mock(job=job, use_project=lambda: Place.use_project(mock.Mock(job=job, node_rank=0)))

    def wait(_: float) -> None:
        stops.reason = "cancelled" if mark.exists() else None
        time.sleep(0.01)

    loop.wait_for_signal = wait
    Claim(place, mock.Mock()).gained(loop, stops, mock.Mock())

    assert mark.exists()
