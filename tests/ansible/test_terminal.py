"""A terminal over SSH: the launcher's here, the worker's on its host."""

from __future__ import annotations

import os
import shutil
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

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh

REFUSES = """#!/bin/sh
case " $* " in
    *" attach "*) [ -e open ] || {{ echo "ssh: connect to host n2 port 22: Connection refused" >&2; exit 255; }} ;;
esac
exec {} "$@"
"""
"""An ssh that reaches no terminal, unless there is a file `open`."""


def test_a_rank_on_another_host_has_the_keyboard_and_is_debugged(rack: Rack) -> None:
    rack.write("asks.py", ASKS)
    words = rack.argv("--nodes", "2", "--debug", "1", "asks.py", "1")
    with on_screen(rack.cli, *words, env={}, cwd=rack.directory) as screen:
        debug(screen, rank=1, host="n2")
        assert screen.end() == 1
    assert "rank 1 stopped in the debugger: ValueError: Jo\u00e3o; leave it with q" in screen.said
    assert "warning" not in screen.said


def test_the_one_rank_that_is_shown_writes_to_a_terminal_that_follows_ours(rack: Rack) -> None:
    rack.write("shown.py", SHOWN)
    words = rack.argv("--nodes", "2", "shown.py")
    with on_screen(rack.cli, *words, env={"TERM": "vt220"}, cwd=rack.directory) as screen:
        look_on(screen, host="n1")
    has_no_terminal(rack.cli, *words, host="n1", env={}, cwd=rack.directory)


def test_a_connection_that_breaks_is_made_again_and_where_it_cannot_be_the_run_continues(rack: Rack) -> None:
    rack.write("chats.py", CHATS)
    opened = rack.write("open", "")
    ssh = rack.cli.write("bin/ssh", REFUSES.format(shutil.which("ssh")))
    ssh.chmod(0o755)
    env: dict[str, str | None] = {"PATH": f"{ssh.parent}:{os.environ['PATH']}"}
    words = rack.argv("--nodes", "2", "--interactive", "1", "chats.py")
    with on_screen(rack.cli, *words, env=env, cwd=rack.directory) as screen:

        def close() -> None:
            opened.unlink()
            kill_child(screen, "ssh", " attach ")

        lose_connection(screen, lambda: kill_child(screen, "ssh", " attach "))
        lose_connection_for_good(screen, close, opened.touch, "Connection refused")
