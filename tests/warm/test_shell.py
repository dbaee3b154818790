"""`distlaunch shell` in a run that was started from what an earlier one has left standing."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.agent.terminal import attach, frames
from tests.agent.harness import LIMIT_S
from tests.command import ROOT
from tests.warm.conftest import TORCH, left_by

if TYPE_CHECKING:
    from tests.agent.harness import Run
    from tests.warm.conftest import Warm

pytestmark = pytest.mark.torch

WAITS = TORCH + "import signal\nprint('up', flush=True)\nsignal.pause()\n"


def said_in_a_shell(run: Run, typed: str, last: str) -> str:
    """What is on the screen of a shell in node 0 once it has `last` on it."""
    ours, theirs = socket.socketpair()
    argv = [run.handle["python"], str(run.directory / "agent.pyz"), "--shell", str(run.directory / "nodes/0")]
    with theirs, subprocess.Popen(argv, stdin=theirs.fileno(), stdout=theirs.fileno()) as shell:
        assert ours.recv(len(attach.CONNECTED), socket.MSG_WAITALL) == attach.CONNECTED
        line, said = frames.Connection(ours), ""
        line.send(keys=typed)
        while last not in said and not line.ended:
            assert select.select([line], [], [], LIMIT_S)[0], said
            said += "".join(message.get("out", "") for message in line.receive())
        line.close()
        shell.terminate()
    return said


def test_it_has_the_variables_of_its_own_run(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE", "old")
    left_by(warm(TORCH))
    monkeypatch.setenv("EXAMPLE", "new")
    run = warm.start(WAITS, warm="10m", env=("MORE=yes",))
    run.until(lambda: b"up" in run.stdout[0])
    assert run.of("warm_start")[0]["used"]

    said = said_in_a_shell(run, "echo is-$EXAMPLE-$MORE-$((40 + 2))\n", "-42")

    assert "is-new-yes-42" in said


FULL = """
import os, resource, sys
from launcher.agent.job import Job
from launcher.agent.node.place import Place

job = Job("r", ["x.py"], "script", "/", {}, sys.argv[1], {}, warm_s=60.0)
place = Place.take(job, 0)
left = []
for room in (10, resource.RLIM_INFINITY):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    place.identify(None)
    left.append(sorted(name for name in os.listdir(place.scratch.path) if "environment" in name))
place.scratch.close()
print(left)
"""
"""An agent that can write files of 10 bytes, as on a full disk, and then any."""


def test_variables_for_which_there_is_no_room_leave_no_file(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", FULL, str(tmp_path)]

    said = subprocess.run(argv, capture_output=True, check=True, cwd=ROOT, timeout=LIMIT_S)

    assert said.stdout == b"[[], ['environment']]\n"


def test_an_empty_file_of_variables_hides_none(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE", "mine")
    run = warm.start(WAITS, warm="10m")
    run.until(lambda: b"up" in run.stdout[0])
    monkeypatch.delenv("EXAMPLE")
    scratch = json.loads((run.directory / "nodes/0/agent.json").read_text())["scratch"]
    (Path(scratch) / "environment").write_bytes(b"")

    assert "is-mine-42" in said_in_a_shell(run, "echo is-$EXAMPLE-$((40 + 2))\n", "-42")
