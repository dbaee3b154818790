"""A terminal on Kubernetes: the launcher's here, the worker's in its pod."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.k8s.conftest import may_make_accounts
from tests.k8s.proxy import Relay
from tests.k8s.role import role_rules
from tests.terminal.asks import ASKS, CHATS, SHOWN, debug, has_no_terminal, look_on, lose_connection, on_screen
from tests.unused_gpus import besides

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]


def without_exec() -> list[dict[str, Any]]:
    """The documented Role, without the right that a terminal takes."""
    return [rule for rule in role_rules() if rule["resources"] != ["pods/exec"]]


def test_a_rank_in_another_pod_has_the_keyboard_and_is_debugged(pods: User) -> None:
    pods.write("asks.py", ASKS)
    lesser = pods.with_rights("documented", role_rules()) if may_make_accounts(pods) else pods
    words = ("k8s", "--name", "asks", "--nodes", "2", "--debug", "1", "asks.py", "1")
    with on_screen(pods.cli, *words, env=lesser.env()) as screen:
        debug(screen, rank=1, host="asks-")
        assert screen.end() == 1
    assert "rank 1 stopped in the debugger: ValueError: Jo\u00e3o; leave it with q" in screen.said
    assert "warning" not in besides(screen.said)


def test_the_one_rank_that_is_shown_writes_to_a_terminal_that_follows_ours(pods: User) -> None:
    pods.write("shown.py", SHOWN)
    words = ("k8s", "--name", "shown", "--nodes", "2", "shown.py")
    with on_screen(pods.cli, *words, env=pods.env({"TERM": "vt220"})) as screen:
        look_on(screen, host="shown-")
    has_no_terminal(pods.cli, *words, host="shown-", env=pods.env())


def test_a_connection_that_breaks_is_made_again(pods: User) -> None:
    pods.write("chats.py", CHATS)
    with Relay(pods.kubeconfig) as relay:
        kubeconfig = pods.write("relayed.kubeconfig", relay.kubeconfig())
        words = ("k8s", "--name", "chats", "--nodes", "2", "--interactive", "1", "chats.py")
        with on_screen(pods.cli, *words, env=pods.env({"KUBECONFIG": str(kubeconfig)})) as screen:
            lose_connection(screen, relay.cut)
            screen.type("over\n")
            assert screen.end() == 0
            assert screen.modes == screen.before


TICKS = """
import os, time
print([os.isatty(fd) for fd in (0, 1, 2)], flush=True)
while True:
    print("tick", flush=True)
    time.sleep(0.2)
"""


def test_without_the_right_to_exec_a_worker_still_runs_and_that_is_reported_once(pods: User) -> None:
    if not may_make_accounts(pods):
        pytest.skip("takes an account with other rights")
    pods.write("ticks.py", TICKS)
    lesser = pods.with_rights("no-exec", without_exec())
    with on_screen(pods.cli, "k8s", "ticks.py", env=lesser.env()) as screen:
        screen.until("[True, True, True]")
        screen.until(": rank 0: its terminal is not reached: ")
        assert "may not create pods/exec in namespace" in screen.until("; the run continues without it")
        screen.until("tick\r\n")
        assert screen.modes == screen.before
        screen.type("\x03")
        assert screen.end() == 130
    assert besides(screen.said).count("warning") == 1


def test_without_the_right_to_exec_a_keyboard_is_refused_before_anything_is_created(user: User) -> None:
    lesser = user.with_rights("no-exec", without_exec())
    done = lesser("k8s", "--interactive", "0", "x.py", stdin=subprocess.PIPE)
    assert done.exit_code == 3, done.stderr
    assert "may not create pods/exec, get pods/exec in namespace" in done.stderr
    assert "nothing was created" in done.stderr
    user.wait_nothing_left()
