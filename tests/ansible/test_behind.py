"""The life of a run on hosts that only a bastion reaches, which has the limits that sshd has by default."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.ansible.behind import wait_end
from tests.ansible.conftest import SUM
from tests.terminal.screen import Screen

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.behind import Lab

pytestmark = pytest.mark.ssh

NOT_LOGGED_IN = "error[not_logged_in]: not logged in to lab: distlaunch login lab"
LINES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
with open("out.txt", "w") as file:
    file.write(os.environ["RANK"])
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    time.sleep(0.25)
"""


def test_a_run_is_followed_fetched_started_again_and_removed_through_the_bastion(lab: Lab) -> None:
    lab.rack.write("sum.py", SUM)
    lab.rack.write("lines.py", LINES)

    done = lab.run("--log-ranks", "all", "sum.py")
    fetched = lab.run("--nodes", "1", "--fetch", "out.txt", "--fetch-to", str(lab.home / "got"), "lines.py", "1")
    run = lab.status()["run"]
    requeued = lab("requeue", run)
    again = wait_end(lab, run)
    listed = lab("hosts", "--on", "lab", "--output", "json").json["result"]["hosts"]
    seen = lab("clusters", "--output", "json").json["result"]["clusters"][0]

    assert done.exit_code == 0, done.stderr
    assert sorted(line.partition(": sum")[2] for line in done.stdout.splitlines()) == [" 6"] * 3
    assert "all 2 others reach it" in done.stderr
    assert (fetched.exit_code, fetched.stdout) == (0, "line 0\n"), fetched.stderr
    assert (lab.home / "got/out.txt").read_text() == "0"
    assert (requeued.exit_code, again["attempt"], again["state"]) == (0, 1, "success"), requeued.stderr
    assert [(row["host"], row["state"]) for row in listed] == [("n1", "up"), ("n2", "up"), ("n3", "up")]
    assert (seen["problem"], seen["nodes"]) == (None, 3)
    assert lab("rm", run).exit_code == 0
    assert not list(lab.rack.remote.glob(f"runs/{run}*"))


def test_another_home_adopts_a_run_and_opens_a_shell_beside_it(lab: Lab, tmp_path: Path) -> None:
    lab.rack.write("lines.py", LINES)
    run = lab.run("--detach", "lines.py", "400").stdout.strip()
    other: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(tmp_path / "other")}

    adopted = lab("adopt", run, "--on", "lab", env=other)
    argv, env = (sys.executable, "-m", "launcher", "shell", run), lab.rack.cli.env(lab.env(other))
    with Screen(argv, env=env, cwd=lab.rack.directory) as screen:
        screen.until("# ")
        screen.type("echo on $(hostname)\n")
        screen.until("on n1")
        screen.type("exit\n")
        ended = screen.end()
    cancelled = lab("cancel", run, env=other)

    assert (adopted.exit_code, ended, cancelled.exit_code) == (0, 0, 0), (adopted.stderr, cancelled.stderr)
    assert lab.status(run)["state"] == "cancelled"


def test_without_a_connection_each_command_says_so_and_a_follower_continues_later(lab: Lab) -> None:
    lab.rack.write("lines.py", LINES)
    run = lab.run("--detach", "--nodes", "1", "lines.py", "120").stdout.strip()
    follower = lab.rack.open("logs", "-f", run, env=lab.env())
    follower.until("line 2\n")
    lab.bastion.refuse_keys()
    lab.bastion.cut()

    refused = [
        lab(*words)
        for words in (
            ("run", "--on", "lab", "lines.py", "1"), ("hosts", "--on", "lab"), ("ls", "--on", "lab"), ("cancel", run),
            ("fetch", run, "out.txt"), ("requeue", run), ("adopt", run, "--on", "lab"), ("doctor", "--on", "lab"),
            ("logs", "-f", run), ("login", "lab"),
        )
    ]  # fmt: skip
    seen = lab("status", run)
    printed = lab("logs", run)

    for done in refused:
        assert (done.exit_code, NOT_LOGGED_IN in done.stderr) == (3, True), done.stderr
    assert (seen.exit_code, printed.exit_code) == (0, 0)
    assert "line 2\n" in printed.stdout
    assert "not logged in to lab: distlaunch login lab; this is what came before" in printed.stderr
    lab.bastion.take_keys()
    assert lab("login", "lab").exit_code == 0
    assert follower.end() == 0, follower.stderr
    assert follower.stdout.splitlines() == [f"[0:0] line {number}" for number in range(120)]
    assert lab.status(run)["state"] == "success"


def test_forwardings_are_no_sessions_for_sshd(lab: Lab) -> None:
    """More hosts than sessions are let through, also if all start at once."""
    lab.rack.write("sum.py", SUM)
    lab.bastion.change(MaxSessions="1", MaxStartups="1:100:1")
    try:
        done = lab.run("sum.py")
    finally:
        lab.bastion.change("MaxSessions", "MaxStartups")
    assert done.exit_code == 0, done.stderr


def test_a_proxy_that_the_inventory_or_ssh_names_is_used_in_place_of_the_login_node(lab: Lab) -> None:
    """`none` names a direct connection, of which nothing is heard here; a proxy in ssh's settings reaches the host."""
    lab.rack.write("sum.py", SUM)
    n1, n2, _ = lab.rack.ssh.hosts
    config = lab.rack.cli.write(
        "own", f"Host n2\n    ProxyCommand ssh -W {n2.address}:22 gate\nInclude {lab.rack.ssh.config}\n"
    )
    ssh = f"ansible_ssh_common_args='-F {config} -o ConnectTimeout=2 {{}}' ansible_user=root"
    lines = f"n1 ansible_host={n1.address} {ssh.format('-o ProxyCommand=none')}\nn2 {ssh.format('')}\n"
    inventory = lab.rack.cli.write("own.ini", lines)

    direct = lab.run("--inventory", str(inventory), "--limit", "n1", "sum.py")
    proxied = lab.run("--inventory", str(inventory), "--limit", "n2", "sum.py")

    assert direct.exit_code == 3
    assert "timed out" in direct.stderr
    assert proxied.exit_code == 0, proxied.stderr


def test_a_bastion_that_forwards_nothing_is_named(lab: Lab) -> None:
    lab.rack.write("sum.py", SUM)
    lab.bastion.change(AllowTcpForwarding="no")
    try:
        done = lab.run("sum.py")
        listed = lab("hosts", "--on", "lab", "--output", "json").json["result"]["hosts"]
    finally:
        lab.bastion.change("AllowTcpForwarding")
    assert done.exit_code == 3
    assert "n1, n2, n3: Stdio forwarding request failed: Session open refused by peer" in done.stderr
    assert "the sshd of the login node forwards nothing (AllowTcpForwarding)" in done.stderr
    assert {row["problem"] for row in listed} == {"Stdio forwarding request failed: Session open refused by peer"}


def test_what_cannot_be_a_login_node_is_refused(lab: Lab) -> None:
    lab.rack.write("sum.py", SUM)
    unknown = lab.run("--login", "nowhere.invalid", "sum.py")
    option = lab.run("--login", "-oProxyCommand=x", "sum.py")
    assert unknown.exit_code == 3
    assert "lab is not reached: ssh: Could not resolve hostname nowhere.invalid" in unknown.stderr
    assert option.exit_code == 2
    assert "login '-oProxyCommand=x' is not a host" in option.stderr
