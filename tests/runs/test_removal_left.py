"""What an earlier removal has left, and what a run has made read-only: the next removal removes it, or names it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from launcher.agent.ssh import calls, removal
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

NO_RIGHTS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner") if os.geteuid() == 0 else ()
"""Root is bound by the modes of its own files, too."""


def run_with_a_file(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "run[1]"
    (run / "work/cache").mkdir(parents=True)
    (run / "work/cache/kept").touch()
    return run


def test_read_only_directories_of_a_run_go_with_it(tmp_path: Path) -> None:
    run = run_with_a_file(tmp_path)
    for path, mode in ((run / "work/cache", 0o500), (run / "work", 0)):
        path.chmod(mode)
    code = f"from launcher.agent.ssh import calls\ncalls.main(['remove', {str(run)!r}])"

    done = subprocess.run([*NO_RIGHTS, sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.strip() == f"{calls.ANSWER}{{}}", done.stderr
    assert list(run.parent.iterdir()) == []


def test_what_cannot_be_removed_is_named_each_time_until_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_with_a_file(tmp_path)
    unlink = os.unlink

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        if os.path.basename(path) == "kept":
            raise PermissionError(1, "Operation not permitted", path)
        unlink(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        for _ in range(2):
            calls.main(["remove", str(run)])
            problem = json.loads(capfd.readouterr().out.strip().removeprefix(calls.ANSWER))["problem"]
            (left,) = run.parent.iterdir()
            assert problem == f"{left}/work/cache/kept: Operation not permitted"
    assert removal.remove(str(run)) == {}
    assert list(run.parent.iterdir()) == []


@pytest.mark.parametrize("command", ["rm", "prune"])
def test_what_a_removal_that_was_cut_off_has_left_here_goes_with_the_next_one(distlaunch: Cli, command: str) -> None:
    ended = make(distlaunch.runs, "good-20250101-101010-abcd", created=1.0, result="success")
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = [f".removed.old-20250101-101010-abcd.{pid}" for pid in (dead.pid, os.getpid())]
    for name in names:
        (distlaunch.runs / name / "nodes").mkdir(parents=True)

    assert distlaunch("prune", "--dry-run").exit_code == 0
    assert all((distlaunch.runs / name).exists() for name in names)
    done = distlaunch(command, *([ended.id] if command == "rm" else ()))

    assert done.exit_code == 0, done.stderr
    assert [(distlaunch.runs / name).exists() for name in names] == [False, True], "one is being removed"
