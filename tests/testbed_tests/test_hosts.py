"""Hosts: what they see of one another and of other networks, and what can happen to them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import TestbedError, WaitError, fixtures, wait_until
from testbed.running import Running
from tests.testbed_tests.talk import listen, say

if TYPE_CHECKING:
    from testbed import Testbed


def test_each_host_has_its_own_name_address_and_boot_id(bare: Testbed) -> None:
    hosts = bare.hosts

    assert [host.run(("hostname",)).stdout.strip() for host in hosts] == ["n1", "n2", "n3"]
    assert [host.run(("getent", "hosts", "n2")).stdout.split()[0] for host in hosts] == [hosts[1].address] * 3
    boots = {host.run(("cat", "/proc/sys/kernel/random/boot_id")).stdout for host in hosts}
    assert len(boots | {Path("/proc/sys/kernel/random/boot_id").read_text()}) == 4


def test_hosts_reach_one_another_and_nothing_else(bare: Testbed) -> None:
    one, two, _ = bare.hosts
    listen(two)
    with fixtures.make(1) as other:
        listen(other.hosts[0])

        assert say(one, "n2").stdout.strip() == "1000"
        assert say(bare.controller, two.address).returncode == 0
        for nowhere in ("192.0.2.1", "8.8.8.8", other.hosts[0].address, "2001:db8::1"):
            assert "Network is unreachable" in say(one, nowhere).stderr
        assert "Connection refused" in say(one, "submit").stderr  # the controller itself is there: users submit from it
        assert re.search("Name or service not known|name resolution", say(one, "example.org").stderr)


def test_a_host_can_be_cut_off_and_reconnected(bare: Testbed) -> None:
    one, two, _ = bare.hosts
    listen(two)
    two.cut_off()
    try:
        cut = say(one, "n2", patience_s=0.5)
    finally:
        two.reconnect()

    assert "timed out" in cut.stderr or "No route to host" in cut.stderr
    wait_until("n2 to answer again", lambda: say(one, "n2").returncode == 0, limit_s=30)


def test_killing_a_host_ends_its_own_daemons_only(bare: Testbed) -> None:
    _, two, three = bare.hosts
    theirs = three.popen(("sleep", "1000"))
    two.popen(("setsid", "--fork", "setsid", "--fork", "sleep", "1000"))
    two.popen((sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"))
    wait_until(
        "both to run",
        lambda: {"sleep", sys.executable} <= {p.command().partition(" ")[0] for p in two.processes()},
        limit_s=20,
    )

    two.kill()

    assert two.processes() == []
    assert theirs.poll() is None
    assert two.run(("hostname",)).stdout.strip() == "n2"
    three.kill()


def test_a_private_directory_is_not_shared_and_can_be_filled(bare: Testbed, tmp_path: Path) -> None:
    one, two, _ = bare.hosts
    (tmp_path / "shared").write_text("by all")
    one.private_directory(tmp_path, size_bytes=1 << 20)
    try:
        filler = one.fill(tmp_path)
        full = one.run(("cp", "/etc/passwd", str(tmp_path)))
        filler.unlink()
        free = one.run(("cp", "/etc/passwd", str(tmp_path)))
        seen = [host.run(("ls", str(tmp_path))).stdout.split() for host in (one, two)]
    finally:
        one.shared_directory(tmp_path)

    assert "No space left on device" in full.stderr
    assert free.returncode == 0
    assert seen == [["passwd"], ["shared"]]
    assert one.run(("ls", str(tmp_path))).stdout.split() == ["shared"]
    with pytest.raises(TestbedError, match="private_directory"):
        one.fill(tmp_path)


def test_a_slow_link_still_carries_data(bare: Testbed) -> None:
    one, two, _ = bare.hosts
    listen(two)
    two.slow_link(rate_kbit=256)
    try:
        reply = say(one, "n2", patience_s=20)
        shape = two.run(("tc", "qdisc", "show", "dev", "eth0")).stdout
    finally:
        two.full_speed()

    assert reply.stdout.strip() == "1000"
    assert "tbf" in shape
    assert "256Kbit" in shape
    assert "tbf" not in two.run(("tc", "qdisc", "show", "dev", "eth0")).stdout


def test_a_program_that_does_not_end_is_killed_and_reported(bare: Testbed) -> None:
    with pytest.raises(WaitError, match="sleep 1000` did not end within 0"):
        bare.hosts[0].run(("sleep", "1000"), timeout_s=0.2)


def test_a_wait_that_fails_says_for_what() -> None:
    with pytest.raises(WaitError, match=r"waited 0 s for pigs to fly; the last answer was ''"):
        wait_until("pigs to fly", str, limit_s=0)


def test_a_limit_starts_anew_with_each_step_and_the_error_says_how_far_it_came() -> None:
    steps = [1, 2, 3]

    with pytest.raises(WaitError, match="waited 0 s for all steps; the last answer was False; it has come to 0"):
        wait_until(
            "all steps", lambda: False, limit_s=0, every_s=0, progress=lambda: len(steps) and steps.pop() and len(steps)
        )

    assert steps == []


def test_waiting_for_output_reports_the_end_of_the_program() -> None:
    argv = ("sh", "-c", "echo one; echo two >&2; read line; echo $line; exit 3")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        running = Running(process)
        running.until("one")
        os.write(process.stdin.fileno(), b"three\n")
        with pytest.raises(WaitError) as error:
            running.until("one", count=2)

    assert "it ended with 3 before it said 2 times 'one': `sh -c echo one;" in str(error.value)
    assert str(error.value).endswith("stdout: one\nthree\n\nstderr: two\n")
    assert running.end() == 3
