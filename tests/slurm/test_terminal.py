"""A terminal on Slurm: the launcher's on the login node, the worker's on a node of the job."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.terminal.asks import (
    ASKS,
    CHATS,
    SHOWN,
    debug,
    has_no_terminal,
    kill_child,
    look_on,
    lose_connection,
    lose_connection_for_good,
    on_screen,
)
from tests.terminal.screen import Screen
from tests.unused_gpus import besides

if TYPE_CHECKING:
    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm


WAITS = """
import os, time
print([os.isatty(fd) for fd in (0, 1, 2)], flush=True)
while not os.path.exists("go"):
    time.sleep(0.1)
"""

REFUSES = """#!/bin/sh
case " $* " in
    *" --overlap "*) [ -e open ] || {{ echo "srun: error: no steps from here" >&2; exit 1; }} ;;
esac
exec {} "$@"
"""
"""An srun that starts the job's own step, and no other unless there is a file `open`."""


def refusing(login: Login) -> dict[str, str | None]:
    """A shell's variables with such an srun."""
    srun = login.write("bin/srun", REFUSES.format(shutil.which("srun")))
    srun.chmod(0o755)
    env = login.env()
    return {**env, "PATH": f"{srun.parent}:{env['PATH']}"}


def test_a_rank_on_another_node_has_the_keyboard_and_is_debugged(login: Login) -> None:
    login.write("asks.py", ASKS)
    with on_screen(login.cli, "slurm", "--nodes", "2", "--debug", "1", "asks.py", "1", env=login.env()) as screen:
        debug(screen, rank=1, host="n2")
        assert screen.end() == 1
        assert screen.modes == screen.before
    assert "rank 0 on n1: [False, False, False]" in screen.said
    assert "rank 1 stopped in the debugger: ValueError: Jo\u00e3o; leave it with q" in screen.said
    assert "the script failed: ValueError: Jo\u00e3o" in screen.said
    assert "warning" not in besides(screen.said)
    login.slurm.wait_idle()


def test_the_one_rank_that_is_shown_writes_to_a_terminal_that_follows_ours(login: Login) -> None:
    login.write("shown.py", SHOWN)
    words = ("slurm", "--nodes", "2", "shown.py")
    with on_screen(login.cli, *words, env=login.env({"TERM": "vt220"})) as screen:
        look_on(screen, host="n1")
    has_no_terminal(login.cli, *words, host="n1", env=login.env())
    login.slurm.wait_idle()


def test_in_an_allocation_a_rank_on_a_node_of_another_group_has_the_keyboard_too(login: Login) -> None:
    login.write("asks.py", ASKS)
    words = ("-m", "launcher", "slurm", "--debug", "1", "asks.py", "1")
    argv = ("salloc", "--quiet", "--nodes=1", ":", "--nodes=1", sys.executable, *words)
    with Screen(argv, env=login.cli.env(login.env()), cwd=login.cli.directory) as screen:
        debug(screen, rank=1, host="n2")
        assert screen.end() == 1
        assert screen.modes == screen.before
    assert "rank 1 stopped in the debugger: ValueError: Jo\u00e3o; leave it with q" in screen.said
    assert "warning" not in besides(screen.said)
    (run,) = login.cli.runs.glob("asks-*/run.json")
    assert '"step"' in run.read_text()
    login.slurm.wait_idle()


def test_a_shell_opens_beside_a_task_of_an_array(login: Login) -> None:
    login.write("waits.py", WAITS)
    run = login.detach("tasks", "--array", "5", "waits.py")
    run.wait_for_event("worker_started")
    with on_screen(login.cli, "shell", f"{run.id}/5", env=login.env()) as screen:
        screen.until("exit or Ctrl-D leaves it")
        screen.type("echo in-$SLURM_ARRAY_TASK_ID-$((40 + 2)); exit\n")
        screen.until("in-5-42")
        assert screen.end() == 0


def test_where_no_step_reaches_the_node_the_run_continues_and_that_is_reported_once(login: Login) -> None:
    login.write("waits.py", WAITS)
    with on_screen(login.cli, "slurm", "waits.py", env=refusing(login)) as screen:
        screen.until("[True, True, True]")
        screen.until(": rank 0: its terminal is not reached: srun: error: no steps from here")
        login.write("go", "")
        assert screen.end() == 0
    assert besides(screen.said).count("warning") == 1


def test_a_connection_that_breaks_is_made_again_and_where_it_cannot_be_the_run_continues(login: Login) -> None:
    login.write("chats.py", CHATS)
    opened = login.write("open", "")
    with on_screen(login.cli, "slurm", "--nodes", "2", "--interactive", "1", "chats.py", env=refusing(login)) as screen:

        def close() -> None:
            opened.unlink()
            kill_child(screen, "srun", "--attach")

        lose_connection(screen, lambda: kill_child(screen, "srun", "--attach"))
        lose_connection_for_good(screen, close, opened.touch, "srun: error: no steps from here")
    login.slurm.wait_idle()
