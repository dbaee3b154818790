"""A project's directory: what a launch lays over what is there."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, NoReturn
from unittest import mock

import pytest

from launcher.agent import __main__ as agent
from launcher.agent.environment import stage
from launcher.agent.job import Job
from launcher.agent.node.claim import Claim
from launcher.agent.node.project_use import ProjectUse
from launcher.agent.system import files, garbage
from launcher.login import store
from tests.runs.projects import Project, build, fetched, is_newer

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 30.0


def test_a_directory_that_is_renamed_with_a_link_in_its_place_keeps_its_files(tmp_path: Path) -> None:
    place = Project(tmp_path / "project")
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
    place = Project(tmp_path / "project")
    place.launch({"data/in/f.txt": "one", "keep/f.txt": "two"})
    (place.work / "data/in/f.txt").unlink()
    (place.work / "data/in").rmdir()
    (place.work / "data/in").symlink_to("../keep")

    place.launch({"keep/f.txt": "two", "more": ""})

    assert (place.work / "keep/f.txt").read_text() == "two"


def test_a_directory_whose_files_are_not_sent_any_more_is_looked_at_once(tmp_path: Path) -> None:
    place = Project(tmp_path / "project")
    place.launch({**{f"data/{number}/f.txt": "" for number in range(20)}, **{f"data/{n}": "" for n in "abcdefgh"}})
    with mock.patch.object(os, "listdir", wraps=os.listdir) as listed:
        place.launch({"x.py": ""})

    looks = [call.args[0] for call in listed.call_args_list if str(call.args[0]).startswith(str(place.work))]
    assert sorted(looks) == sorted(set(looks))
    assert [path.name for path in place.work.iterdir()] == ["x.py"]


def test_what_is_built_from_a_file_is_older_than_what_a_launch_changes_of_it(tmp_path: Path) -> None:
    place = Project(tmp_path / "project")
    one, two, new, built = (place.work / name for name in ("one.c", "dir/two words.c", "new.c", "built.o"))
    first = {"one.c": "1", "dir/two words.c": "1"}
    place.launch(first)
    build(built)
    assert is_newer(built, one), "nothing is built twice"

    edited = {**first, "dir/two words.c": "2", "new.c": ""}
    place.launch(edited, {"link.c": "dir/two words.c"})
    assert [is_newer(path, built) for path in (one, two, new)] == [False, True, True]
    assert fetched(place.work) == (["built.o"], ["built.o"])
    build(built)
    again = place.launch(edited, {"link.c": "dir/two words.c"})
    assert [is_newer(path, built) for path in (one, two, new)] == [False] * 3
    back = place.launch(first)
    assert [is_newer(path, built) for path in (one, two)] == [False, True]
    assert fetched(place.work) == (["built.o"], ["built.o"])
    assert again.notes == back.notes == []
    assert sorted(path.name for path in place.work.iterdir()) == ["built.o", "dir", "one.c"]


def test_what_a_run_writes_to_a_changed_file_stays(tmp_path: Path) -> None:
    """Even at the time of the launch, as a coarse clock tells."""
    place = Project(tmp_path / "project")
    file = place.work / "count"
    place.launch({"count": "0"})
    place.launch({"count": "1"})
    at = file.stat().st_mtime_ns
    file.write_text("2")
    os.utime(file, ns=(at, at))

    same = place.launch({"count": "1"})
    other = place.launch({"count": "3"})

    assert same.notes == ["count stays as a run has changed it"]
    assert other.notes == ["count was changed by a run and here: the run's version is now count.before-run4"]
    assert [(place.work / name).read_text() for name in ("count", "count.before-run4")] == ["3", "2"]


def test_a_launch_that_was_cut_off_leaves_no_file_that_seems_to_be_a_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Project(tmp_path / "project")
    place.launch({"one.c": "1"})
    whole = files.write_whole
    for left in ([0], [1]):

        def cut_off(path: str, data: bytes, mode: int, left: list[int] = left) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            whole(path, data, mode)

        monkeypatch.setattr(files, "write_whole", cut_off)
        with pytest.raises(KeyboardInterrupt):
            place.launch({"one.c": "2"})
        monkeypatch.setattr(files, "write_whole", whole)
        assert place.launch({"one.c": "1"}).notes == []
        assert (place.work / "one.c").read_text() == "1"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_project_in_which_no_run_has_written_is_removed(tmp_path: Path, shell: str) -> None:
    """By the shell of a login node, which has no Python."""
    place = Project(tmp_path / "store/projects/work-1234")
    for name in ("packs", "runs", "claims", "projects/work-1234"):
        (tmp_path / "store" / name).mkdir(parents=True)
    place.launch({"a b.txt": "1", "b.txt": "1"})
    place.launch({"a b.txt": "2", "b.txt": "3"})
    at = (place.work / "b.txt").stat().st_mtime_ns
    clean = (shell, "-c", store._CLEAN, "sh", str(tmp_path / "store"))

    for name, text in (("b.txt", "2"), ("other.txt", "2")):
        (place.work / name).write_text(text)
        os.utime(place.work / name, ns=(at, at))
        assert subprocess.run(clean, capture_output=True, text=True, check=True).stdout == "stays projects/work-1234\n"
        (place.work / "b.txt").write_text("3")
        (place.work / "other.txt").unlink(missing_ok=True)
    done = subprocess.run(clean, capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("", "")
    assert not place.top.exists()


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
    place = mock.Mock(job=job, project=ProjectUse(job, 0))

    def wait(_: float) -> None:
        stops.reason = "cancelled" if mark.exists() else None
        time.sleep(0.01)

    loop.wait_for_signal = wait
    Claim(place, mock.Mock()).gained(loop, stops, mock.Mock())

    assert mark.exists()
