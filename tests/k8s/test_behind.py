"""The life of a run on a cluster whose API server only a bastion reaches: its name is unknown here."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.terminal.screen import Screen

if TYPE_CHECKING:
    from pathlib import Path

    from tests.k8s.behind import Far

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]

NOT_LOGGED_IN = "error[not_logged_in]: not logged in to far: distlaunch login far"
LINES = """
import os, sys, time
with open("out.txt", "w") as file:
    file.write(os.environ["RANK"])
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    time.sleep(0.25)
"""


def test_a_run_is_followed_fetched_listed_and_removed_through_the_bastion(far: Far) -> None:
    far.user.write("lines.py", LINES)
    without = far("k8s", "--kubeconfig", str(far.kubeconfig()), "lines.py", "1")

    done = far.run("--fetch", "out.txt", "--fetch-to", str(far.home / "got"), "lines.py", "2")
    run = far.state("last")["run"]
    listed = far("ls", "--on", "far", "--output", "json").json["result"]["runs"]
    hosts = far("hosts", "--on", "far", "--output", "json").json["result"]["hosts"]
    seen = far("clusters", "--output", "json").json["result"]["clusters"][0]
    removed = far("rm", run)

    assert without.exit_code == 3
    assert "Failed to resolve 'api.inside'" in without.stderr
    assert (done.exit_code, done.stdout) == (0, "line 0\nline 1\n"), done.stderr
    assert (far.home / "got/out.txt").read_text() == "0"
    assert [row["run"] for row in listed] == [run]
    assert [row["state"] for row in hosts] == ["ready"] * 3
    assert (seen["problem"], seen["nodes"]) == (None, 3)
    assert removed.exit_code == 0, removed.stderr
    far.user.wait_nothing_left(run)
    assert far.sockets == [], "each command has closed its own"


def test_another_home_adopts_a_run_and_opens_a_shell_in_its_pod(far: Far, tmp_path: Path) -> None:
    far.user.write("lines.py", LINES)
    run = far.run("--detach", "lines.py", "400").stdout.strip()
    far.user.wait_printed(run, "line 1", 1)
    other: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(tmp_path / "other")}

    adopted = far("adopt", run, "--on", "far", env=other)
    argv, env = (sys.executable, "-m", "launcher", "shell", run), far.user.cli.env(far.user.env(far.env(other)))
    with Screen(argv, env=env, cwd=far.user.cli.directory) as screen:
        screen.until("# ")
        screen.type("echo on $(hostname)\n")
        screen.until(f"on {run}-0")
        screen.type("exit\n")
        ended = screen.end()
    cancelled = far("cancel", run, env=other)

    assert (adopted.exit_code, ended, cancelled.exit_code) == (0, 0, 0), (adopted.stderr, cancelled.stderr)
    assert far.state(run)["state"] == "cancelled"


def test_without_a_connection_each_command_says_so_and_followers_continue_later(far: Far) -> None:
    far.user.write("lines.py", LINES)
    launched = far.follow("run", "--on", "far", "lines.py", "120")
    run = launched.run
    launched.until("line 2\n")
    follower = far.follow("logs", "-f", run)
    follower.until("line 2\n")
    far.bastion.refuse_keys()
    far.bastion.cut()

    refused = [
        far(*words)
        for words in (
            ("run", "--on", "far", "lines.py", "1"), ("hosts", "--on", "far"), ("ls", "--on", "far"), ("cancel", run),
            ("fetch", run, "out.txt"), ("requeue", run), ("adopt", run, "--on", "far"), ("login", "far"),
        )
    ]  # fmt: skip

    for done in refused:
        assert (done.exit_code, NOT_LOGGED_IN in done.stderr) == (3, True), done.stderr
    far.bastion.take_keys()
    assert far("login", "far").exit_code == 0
    assert launched.end() == 0, launched.stderr
    assert follower.end() == 0, follower.stderr
    for each in (launched, follower):
        assert [line.rpartition("] ")[2] for line in each.stdout.splitlines()] == [f"line {n}" for n in range(120)]


def test_a_command_closes_its_own_way_and_that_of_a_killed_one_but_none_that_is_used(far: Far) -> None:
    far.user.write("lines.py", LINES)
    killed = far.follow("run", "--on", "far", "--name", "killed", "lines.py", "60")
    used = far.follow("run", "--on", "far", "--name", "used", "lines.py", "60")
    for each in (killed, used):
        each.until("line 2\n")
    both = far.sockets
    killed.kill(signal.SIGKILL)
    killed.end()

    seen = far("hosts", "--on", "far")
    left = far.sockets
    ended = used.end()

    assert (len(both), len(left), far.sockets) == (4, 2, []), "a socket and its target for each"
    assert (seen.exit_code, ended) == (0, 0), used.stderr
    assert "line 59\n" in used.stdout
    assert far("cancel", killed.run).exit_code == 0


def test_the_certificate_is_checked_against_the_name_in_the_kubeconfig(far: Far) -> None:
    far.user.write("lines.py", LINES)
    other = far.kubeconfig(**{"tls-server-name": None})
    by_address = far.run("--kubeconfig", str(far.user.kubeconfig), "lines.py", "1")
    wrong = far.run("--kubeconfig", str(other), "lines.py", "1")
    assert by_address.exit_code == 0, by_address.stderr
    assert wrong.exit_code == 3
    assert "certificate is not valid for 'api.inside'" in wrong.stderr


def test_what_the_bastion_does_not_let_through_is_named(far: Far) -> None:
    far.user.write("lines.py", LINES)
    closed = far.run("--kubeconfig", str(far.kubeconfig(server="https://api.inside:1")), "lines.py", "1")
    unknown = far.run("--login", "nowhere.invalid", "lines.py", "1")
    far.bastion.change(AllowTcpForwarding="no")
    try:
        refused = far.run("lines.py", "1")
    finally:
        far.bastion.change("AllowTcpForwarding")
    assert [done.exit_code for done in (closed, unknown, refused)] == [3, 3, 3]
    assert "far does not let a connection through to api.inside:1, the API server" in closed.stderr
    assert "far is not reached: ssh: Could not resolve hostname nowhere.invalid" in unknown.stderr
    assert "far does not let a connection through to api.inside:6443, the API server" in refused.stderr
    assert "AllowTcpForwarding" in refused.stderr
