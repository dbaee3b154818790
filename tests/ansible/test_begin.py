"""What a login waits for after it has started an agent: the agent's own word, its first line, or its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from launcher.agent.ssh import begin, container, preflight, run
from launcher.agent.ssh.user_files import HostError
from launcher.agent.system import processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINE = "import sys; open(sys.argv[1], 'a').write('{}\\n')"


def waited(own: Path, agent: Callable[[int], object]) -> tuple[bool, int | None]:
    """What is found of an agent that does that, with the pipe's end that it has."""
    (own / "stream").touch()
    hears, says = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(hears)
        try:
            agent(says)
        finally:
            os._exit(7)
    os.close(says)
    identity = {"pid": pid, "start_ticks": processes.start_ticks(pid), "stream_from": 0}
    found = begin.first_word(identity, str(own), hears)
    os.close(hears)
    if found[1] is None:
        os.waitpid(pid, 0)
    return found


def test_a_forked_agent_has_begun_when_it_reports_that_before_its_first_line(tmp_path: Path) -> None:
    assert waited(tmp_path, lambda says: os.write(says, b"\n")) == (True, None)
    assert (tmp_path / "stream").read_bytes() == b""


def test_an_agent_that_another_program_starts_has_begun_with_its_first_line(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LINE, str(tmp_path / "stream")]
    assert waited(tmp_path, lambda _: os.execv(argv[0], argv))[0]
    assert (tmp_path / "stream").read_bytes() == b"{}\n"


@pytest.mark.parametrize(("does", "code"), [(os._exit, 3), (lambda _: os.kill(os.getpid(), 9), -9)])
def test_the_exit_code_of_an_agent_that_has_not_begun_is_found(
    tmp_path: Path, does: Callable[[int], object], code: int
) -> None:
    assert waited(tmp_path, lambda _: does(3)) == (False, code)


def test_an_agent_that_gives_no_sign_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begin, "FIRST_LINE_S", 0.2)
    gate, opens = os.pipe()
    (tmp_path / "stream").touch()
    hears, says = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(opens)
        os.read(gate, 1)
        os._exit(0)
    try:
        found = begin.first_word({"pid": pid, "start_ticks": 0, "stream_from": 0}, str(tmp_path), hears)
        assert found == (False, None)
    finally:
        for fd in (opens, gate, hears, says):
            os.close(fd)
        os.waitpid(pid, 0)


def test_an_agent_that_gives_no_sign_is_ended_before_another_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's systemd starts it first; what that pulls for long could start beside the second one, unrecorded."""
    tried = tmp_path / "tried"
    for name in ("systemd-run", "podman"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho $$ >>{tried}\nexec sleep 600\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(begin, "FIRST_LINE_S", 0.5)
    monkeypatch.setattr(preflight, "supervisor", lambda: "systemd")
    monkeypatch.setattr(container, "words", lambda *_: ["podman"])
    own = tmp_path / "run/nodes/0"
    own.mkdir(parents=True)
    request = {"directory": str(tmp_path / "run"), "node_rank": 0, "secrets": {}, "job": {}}
    request["container"] = {"python": "python3"}

    with pytest.raises(HostError, match="has sent nothing"):
        run._spawn(request, str(own), str(tmp_path), "spec.json", {})

    first, second = map(int, tried.read_text().split())
    left = []
    for pid in (first, second):
        limit = time.monotonic() + 30
        while (found := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < limit:
            time.sleep(0.01)
        if not found[0]:
            left.append(pid)
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
    assert left == []
