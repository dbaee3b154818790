"""Launchers that are interrupted or killed while hosts start their agents."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.ansible.conftest import WAITS
from tests.ansible.test_reboot import SHORTER, reboot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.running import Running
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh


def test_ctrl_c_while_a_host_does_not_answer_starts_nothing_and_leaves_no_ansible(rack: Rack) -> None:
    """At once, however long the host may take."""
    slow = rack.cli.write("slow-python", "#!/bin/sh\nexec cat 3>&1 >/dev/null\n")
    slow.chmod(0o755)
    rack.write("waits.py", WAITS)
    launcher = rack.start("--nodes", "1", "--host-timeout", "3600", "--python", str(slow), "waits.py")
    wait_until("n1 to be asked", lambda: "cat" in [process.command() for process in rack.left()], limit_s=90)

    launcher.kill(signal.SIGINT)

    assert launcher.end() == 130, launcher
    assert "stopping; once more to leave at once" in launcher.stderr
    run = rack.id_of("waits")
    assert rack.state(run)["state"] == "cancelled"
    wait_until("Ansible to exit", lambda: not [command for command in commands_here() if run in command], limit_s=60)
    assert not list(rack.remote.rglob("started.json"))
    rack.wait_nothing_left()


STANDS_STILL = """
import fcntl, os, sys
def hook(event, args):
    if event == "os.fork":
        open({reached!r}, "w").close()
        fcntl.flock(open({gate!r}), fcntl.LOCK_SH)
sys.addaudithook(hook)
"""
"""Python on a host that is about to start its agent, and waits before it does."""


def inventory(rack: Rack) -> Path:
    """An inventory of n1, and of n2 with such a Python."""
    gate, reached = rack.cli.write("gate", ""), rack.cli.directory / "reached"
    rack.cli.write("site/sitecustomize.py", STANDS_STILL.format(reached=str(reached), gate=str(gate)))
    slow = rack.cli.write(
        "slow-python", f'#!/bin/sh\nPYTHONPATH={rack.cli.directory}/site exec {sys.executable} "$@"\n'
    )
    slow.chmod(0o755)
    return rack.inventory(f"n1 distlaunch_python={sys.executable}\nn2 distlaunch_python={slow}\n")


@contextlib.contextmanager
def half_started(rack: Rack, *command: str) -> Iterator[Running]:
    """A launcher that has started n1's agent, while n2 is about to start its own: n2 continues at the end."""
    reached = rack.cli.directory / "reached"
    reached.unlink(missing_ok=True)
    with open(rack.cli.directory / "gate") as held:  # once it is closed, who waits there continues, as do later ones
        fcntl.flock(held, fcntl.LOCK_EX)
        launcher = rack.open(*command)
        wait_until("n2 to be about to start its agent", reached.exists, limit_s=90)
        yield launcher


def waits(rack: Rack) -> tuple[str, ...]:
    """The command that starts a run on both hosts."""
    rack.write("waits.py", WAITS)
    return rack.argv("--nodes", "2", "waits.py", inventory=inventory(rack), python=None)


def test_cancel_ends_what_a_killed_launcher_has_started_and_what_was_about_to_start_does_not_start(
    rack: Rack,
) -> None:
    with half_started(rack, *waits(rack)) as launcher:
        launcher.kill()
        assert launcher.end() == -signal.SIGKILL
        run = rack.id_of("waits")
        state = rack.state(run)
        cancelled = rack.shell("cancel", "--force", run)

    assert state["exit_code"] is None
    assert state["detail"].startswith("its launcher ended while it submitted the run"), state
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{run}: cancelled\n"), cancelled.stderr
    rack.wait_nothing_left()


def test_cancel_ends_the_run_of_a_launcher_that_was_stopped_while_a_host_was_cut_off(rack: Rack) -> None:
    host = rack.ssh.hosts[0]
    with half_started(rack, *waits(rack)) as launcher:
        host.cut_off()
        try:
            launcher.kill(signal.SIGINT)
            code = launcher.end()
        finally:
            host.reconnect()
        run = rack.id_of("waits")
        result = rack.cli.runs / run / "result.json"
        ended, state = result.exists(), rack.state(run)
        cancelled = rack.shell("cancel", "--force", run)

    assert code == 130, launcher
    assert "parts of the run may still be running: n1: " in launcher.stderr, launcher
    assert not ended
    assert state["exit_code"] is None
    assert state["detail"].startswith("its submission failed, and what exists may lack nodes: n1: "), state
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{run}: cancelled\n"), cancelled.stderr
    rack.wait_nothing_left()


def test_output_arrives_of_what_a_killed_launcher_has_started_again_on_a_host_that_had_lost_the_run(
    rack: Rack,
) -> None:
    rack.private_disks(*rack.ssh.hosts[:2])
    rack.write("shorter.py", SHORTER)
    first = rack.open(*rack.argv("--nodes", "2", "--in-place", "shorter.py", inventory=inventory(rack), python=None))
    first.until(" full")
    reboot(rack, rack.ssh.hosts[0])
    assert first.end() == 1, first
    run = rack.id_of("shorter")

    with half_started(rack, "requeue", run) as launcher:
        launcher.kill()
        launcher.end()
        cancelled = rack.shell("cancel", run)

    assert cancelled.exit_code == 0, cancelled.stderr
    state = rack.state(run)
    assert (state["state"], state["attempt"]) == ("cancelled", 1)
    stream = (rack.cli.runs / run / "nodes/0/stream").read_text()
    assert '"attempt":1,"result":"cancelled"' in stream, stream[-2000:]
    rack.wait_nothing_left()


def commands_here() -> list[str]:
    """The command lines of all processes on this host."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_text(errors="replace"))
    return found
