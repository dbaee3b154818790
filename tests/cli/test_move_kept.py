"""A move whose cluster loses a run's files with its nodes, for which this machine stands in: they stay until moved."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from launcher.backends._outputs import SharedOutputs
from launcher.backends.local.backend import LocalBackend
from launcher.errors import CommandError, RequestError
from launcher.runs import directories
from launcher.service import carrying, observe
from launcher.service import move as moving
from testbed import wait_until
from tests.moving import STEPS, went_on

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.runs.records import Run
    from tests.command import Cli

CLUSTERS = '[clusters.a]\nbackend = "local"\n[clusters.b]\nbackend = "local"\n'
STEPS_IN_ALL = 40
CARRIED = ("out/*",)


@pytest.fixture
def run(distlaunch: Cli, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run on `a` that has made some steps. Its files are lost with it, once they are fetched."""
    distlaunch.write("system.toml", CLUSTERS)
    distlaunch.write("steps.py", STEPS)
    for name, value in distlaunch.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(distlaunch.directory)
    started = distlaunch("run", "--on", "a", "--detach", "steps.py", str(STEPS_IN_ALL))
    assert started.exit_code == 0, started.stderr
    name = started.stdout.strip()
    wait_until("steps", lambda: "step 3\n" in distlaunch("logs", name).stdout)
    found = directories.find(distlaunch.runs, name)
    monkeypatch.setattr(LocalBackend, "loses_outputs", True)
    monkeypatch.setattr(SharedOutputs, "await_end", lambda _: wait_until("its end", lambda: _ended(found)))
    monkeypatch.setattr(SharedOutputs, "release", lambda _: shutil.rmtree(distlaunch.directory / "out"))
    return found


def _ended(run: Run) -> bool:
    return observe.state_of(directories.again(run))["exit_code"] is not None


def _kept(run: Run) -> list[Path]:
    return list(run.path.glob("carried*"))


def _fails(run: Run, how: BaseException | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that fails in this way when it brings the files; None: it is killed."""
    if how is not None:
        with monkeypatch.context() as broken:
            broken.setattr(carrying, "bring", Mock(side_effect=how))
            with pytest.raises(type(how)):
                moving.move(run, "b", CARRIED, "0")
    elif not (child := os.fork()):
        monkeypatch.setattr(carrying, "bring", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        moving.move(run, "b", CARRIED, "0")
        os._exit(0)
    else:
        assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize(
    ("how", "to"), [(CommandError("the connection broke"), "b"), (KeyboardInterrupt(), "a"), (None, "b")]
)
def test_a_second_move_continues_with_the_files_that_the_first_has_fetched(
    distlaunch: Cli,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    how: BaseException | None,
    to: str,
) -> None:
    """Also where the run was."""
    _fails(run, how, monkeypatch)
    said = capfd.readouterr().err

    (kept,) = _kept(run)
    assert how is None or f"its files are kept in {kept}: the same command continues with them" in said
    assert next(kept.rglob("state-0")).read_text().isdecimal()
    assert not (distlaunch.directory / "out").exists()
    distlaunch("status", run.id)  # takes the job of a command that was killed back
    with pytest.raises(RequestError, match="another move, which has fetched other files") as refused:
        moving.move(run, to, ("other/*",), "0")
    assert refused.value.hint == "--carry 'out/*' --node 0"

    moved = moving.move(run, to, CARRIED, "0")

    assert (moved.cluster, moved.attempt, _kept(run)) == (to, 1, [])
    assert distlaunch("wait", run.id).exit_code == 0
    went_on(distlaunch("logs", run.id).stdout, STEPS_IN_ALL, 2)


def test_files_of_which_some_are_missing_are_kept_but_not_taken_for_all(
    distlaunch: Cli, run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    distlaunch.write("out/more", "more")
    read = SharedOutputs.read

    def breaks(outputs: SharedOutputs, name: str, *rest: object) -> object:
        if name == "out/more":
            return read(outputs, name, *rest)  # type: ignore[arg-type]
        raise CommandError("the connection broke")

    monkeypatch.setattr(SharedOutputs, "read", breaks)
    for error in ("the connection broke", "has ended, and the files of its workers with it"):
        wait_until("its end", lambda: not _kept(run) or _ended(run))
        with pytest.raises((CommandError, RequestError), match=error):
            moving.move(run, "b", CARRIED, "0")
        said = capfd.readouterr().err
        (kept,) = _kept(run)
        assert f"what was fetched of its files is kept in {kept}\n" in said
        assert [path.name for path in (kept / "files").rglob("*") if path.is_file() and path.stat().st_size] == ["more"]


def test_a_move_that_takes_no_files_along_keeps_those_of_an_earlier_one(
    distlaunch: Cli, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fails(run, CommandError("the connection broke"), monkeypatch)
    moving.move(run, "b", (), "0")

    assert [path.name for path in _kept(run)] == ["carried-0"]
    assert distlaunch("cancel", run.id, "--force").exit_code == 0
