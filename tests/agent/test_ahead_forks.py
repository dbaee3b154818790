"""Agents of several nodes on this machine: forks of the process that is started ahead."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.agent.ahead import (
    CAPTURED,
    SHOWS,
    hooked,
    like,
    the_one_ahead,
    until_ended,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.command import Cli


def test_the_agents_of_several_nodes_are_its_forks_and_no_different(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]]
) -> None:
    script = tmp_path / "shows.py"
    script.write_text(SHOWS)
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)

    def run(*words: str) -> list[dict[str, Any]]:
        shape = ("--nodes", "3", "--contract", "env", "--log-ranks", "all")
        done = distlaunch("local", *shape, *words, str(script), env=hooked(distlaunch), real=True)
        assert done.exit_code == 0, done.stderr
        told = [line.partition("] ")[2] for line in done.stdout.splitlines()]
        return sorted(map(json.loads, told), key=node_of)

    forked = run()
    pythons = [words for _, words in started() if "--fork-server" not in words]
    usual = run("--python", str(wrapper))

    assert list(map(node_of, forked)) == [0, 1, 2]
    assert len({about["agent"] for about in forked}) == 3
    assert len([words for words in pythons if " --ahead " in words]) == 1
    assert not [words for words in pythons if "--spec" in words]
    for own, other in zip(forked, usual, strict=True):
        assert own["agent"] == own["group"] == own["session"] != the_one_ahead(started())
        alike = like(own, other)
        assert own["argv"][1:] == [word for word in alike["argv"][1:] if word != "--when-told"]
        assert [own["fds"][name] for name in "012"] == [alike["fds"][name] for name in "012"]
        assert set(own["fds"].values()) == set(alike["fds"].values())
        for what in ("cwd", "state", "limits", "modules"):
            assert own[what] == other[what], what
        assert _names(own) == _names(other)


def node_of(about: dict[str, Any]) -> int:
    return int(about["argv"][about["argv"].index("--node-rank") + 1])


def _names(about: dict[str, Any]) -> set[str]:
    """The variables of the agent; a shell sets some."""
    return {pair.partition("=")[0] for pair in about["env"].split("\0")} - {"PWD", "OLDPWD", "SHLVL", "_"}


@pytest.mark.parametrize("at", ["record", "answer"])
def test_no_fork_becomes_an_agent_if_the_launcher_ends_before_all_are_recorded(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]], at: str
) -> None:
    (tmp_path / "script.py").write_text("print('runs')")
    code = f"""
import json, os, signal, sys
from launcher.backends.local import ahead
usual = ahead._answer
def fork(*args, **more):
    def answer(line):
        pids = usual(line)
        print(json.dumps(pids), flush=True)
        if {at!r} == "answer":
            os.kill(os.getpid(), signal.SIGKILL)
        return pids
    ahead._answer = answer
    words, note = args
    def record(found):
        note(found)
        if {at!r} == "record":
            os.kill(os.getpid(), signal.SIGKILL)
    return really(words, record, **more)
really, ahead.fork = ahead.fork, fork
from launcher.cli import main
sys.exit(main())
"""
    command = [sys.executable, "-c", code, "local", "--nodes", "3", "--contract", "env", "script.py"]

    done = subprocess.run(command, env=distlaunch.env(hooked(distlaunch)), cwd=tmp_path, **CAPTURED)

    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = json.loads(done.stdout)
    assert len(pids) == 3
    for pid in (*pids, the_one_ahead(started())):
        until_ended(pid)
    assert not list(distlaunch.runs.glob("script-*/nodes/*/agent.json"))


FORKS = """
if "--ahead" in sys.orig_argv:
    usual, forks = os.fork, []
    def fork():
        forks.append(None)
        if len(forks) == 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return usual()
    os.fork = fork
"""


def test_a_process_that_cannot_fork_is_one_error(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]]
) -> None:
    (tmp_path / "script.py").write_text("print('runs')")
    with (tmp_path / "hooks/sitecustomize.py").open("a") as hook:
        hook.write(FORKS)

    done = distlaunch("local", "--nodes", "3", "--contract", "env", "script.py", env=hooked(distlaunch), real=True)

    assert (done.exit_code, done.stdout) == (4, ""), done.stderr
    assert "agents cannot be started: Resource temporarily unavailable" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [words for _, words in started() if "--spec" in words]
    until_ended(the_one_ahead(started()))
    assert not list(distlaunch.runs.glob("script-*/nodes/*/agent.json"))
