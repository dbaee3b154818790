"""A run with a directory of its own, as another one uses the project's with other files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from launcher.agent.job import Job
from launcher.agent.outputs import project, serve
from launcher.agent.protocol import encode_event
from launcher.agent.ssh import user_files
from launcher.backends._outputs import SharedOutputs
from launcher.errors import RequestError
from launcher.runs import records
from tests.runs.projects import Project, behind_login, build, fetched, is_newer
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from launcher.runs.handle import Handle
    from tests.command import Cli


def spec_of(work: Path, run_dir: Path) -> Path:
    """A run's directory, with its spec."""
    (run_dir / "spec.json").write_text(json.dumps({"cwd": str(work)}))
    return run_dir


def test_a_run_with_files_of_its_own_builds_anew_what_these_change(tmp_path: Path) -> None:
    place = Project(tmp_path / "project")
    place.launch({"one.c": "1", "two.c": "1"}, keeps=True)
    build(place.work / "built.o")

    own = Path(place.launch({"one.c": "2", "two.c": "1"}).work)

    assert own != place.work
    assert [is_newer(own / name, own / "built.o") for name in ("one.c", "two.c")] == [True, False]
    assert fetched(own) == (["built.o"], ["built.o"])


def test_a_run_with_a_directory_of_its_own_has_nothing_that_the_user_has_removed(tmp_path: Path) -> None:
    """But all that runs have written."""
    place = Project(tmp_path / "project")
    kept = {"train.py": "1", "both/sent.py": "", "edited.txt": "sent"}
    place.launch(
        {**kept, "override.yaml": "lr: 1", "pkg/deep/gone.py": "", "pkg/gone.py": ""}, {"link": "train.py"}, keeps=True
    )
    for name in ("results/a.pt", "both/made.txt", "pkg/__pycache__/gone.cpython-311.pyc", "empty/x"):
        (place.work / name).parent.mkdir(exist_ok=True)
        (place.work / name).touch()
    (place.work / "empty/x").unlink()
    (place.work / "edited.txt").write_text("by a run")

    own = Path(place.launch({"train.py": "2"}).work)

    assert own != place.work
    assert sorted(path.name for path in own.iterdir()) == ["both", "edited.txt", "empty", "results", "train.py"]
    assert (own / "both/made.txt").exists()
    assert (own / "edited.txt").read_text() == "by a run"


@pytest.mark.parametrize("pattern", ["results/*.pt", "results", "**/*.pt", "results/deep/*.pt"])
def test_what_a_run_with_a_directory_of_its_own_writes_to_the_projects_is_fetched(tmp_path: Path, pattern: str) -> None:
    place = Project(tmp_path / "project")
    place.launch({"train.py": "1"}, keeps=True)
    (place.work / "results/deep").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (place.work / "away").symlink_to(tmp_path / "elsewhere")
    own = Path(place.launch({"train.py": "2"}).work)
    for name in ("results/b.pt", "results/deep/c.pt", "away/d.pt"):
        (own / name).write_text(name)
    wanted = ["results/deep/c.pt"] if "deep" in pattern else ["results/b.pt", "results/deep/c.pt"]
    wanted = ["results/b.pt"] if pattern == "results/*.pt" else wanted
    with behind_login(own) as behind:
        for outputs in (behind, SharedOutputs(spec_of(own, tmp_path))):
            listing = outputs.listed(pattern)
            assert [file.name for file in listing.files] == wanted
            for file in listing.files:
                got: list[bytes] = []
                outputs.read(file.name, 0, got.append)
                assert b"".join(got).decode() == file.name
            assert outputs.listed("away").left_out == (("away", "a link that leads out of the directory"),)
            with pytest.raises(RequestError):
                outputs.read("away/d.pt", 0, got.append)


def test_a_run_keeps_its_own_directory_on_a_volume_when_it_is_started_again(tmp_path: Path) -> None:
    """And on a node that starts late, though the other run has ended meanwhile: fetch looks there."""
    volume = tmp_path / "volume"

    def started(run: str, node: int) -> str:
        (tmp_path / run).mkdir(exist_ok=True)
        (tmp_path / run / "train.py").write_text(run)
        job = Job(run=run, command=["x"], kind="program", cwd="/", env={}, directory="/nowhere", rendezvous={})
        return user_files.in_volume(str(tmp_path / run), str(volume), job, node).work

    work, own = started("other", 0), started("mine", 0)
    project.leave(str(volume), "other", 0)

    assert [os.path.basename(each) for each in (work, own)] == ["work", "work-mine"]
    assert [started("mine", node) for node in (0, 1)] == [own, own]
    assert serve.directory_of({"output_dir": work, "cwd": "/", "run": "mine"}) == own
    assert not list(volume.glob("sent-*"))


def test_the_output_directory_of_such_a_run_is_its_own_also_in_json(distlaunch: Cli) -> None:
    """Though only its nodes know that, once they have started."""
    run = make(distlaunch.runs, "train-20250101-000000-abcd", result=None)
    handle = {"run_dir": str(run.path), "agents": [], "output_dir": "/out/train/work"}
    run = records.record_handle(run, cast("Handle", handle))
    before = distlaunch("status", run.id, "--output", "json").json["result"]
    stream = run.stream_path(0)
    stream.parent.mkdir(parents=True)
    own = f"/out/train/work-{run.id}"
    ended = encode_event("done", 0, result="success", exit_code=0)
    stream.write_bytes(encode_event("agent_started", 0, host="pod", output_dir=own) + ended)

    status = distlaunch("status", run.id, "--output", "json").json["result"]
    report = distlaunch("report", run.id, "--format", "md").stdout

    assert before["output_dir"] == "/out/train/work"
    assert status["output_dir"] == own
    assert own in report
