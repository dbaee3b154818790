"""`distlaunch shell` in a run that was started from what an earlier one has left standing."""

from __future__ import annotations

import select
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from launcher.agent.terminal import attach, frames
from tests.agent.harness import LIMIT_S
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
