"""A run that is queued on two Slurm clusters and that no terminal follows, as it was detached, left or cancelled."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.slurm.laptop import LIMIT_S
from tests.slurm.test_races import MARKS, marks
from tests.terminal import leaves

if TYPE_CHECKING:
    from tests.slurm.racing import Racing

pytestmark = pytest.mark.slurm

WAITS = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.1)\n"
DETACHED = ("run", "--on", "juno,lab", "--start", "first", "--detach", "--claim")


@pytest.fixture(autouse=True)
def script(racing: Racing) -> None:
    racing.cli.write("marks.py", MARKS)


def test_a_detached_run_is_claimed_at_a_shared_place_or_refused(racing: Racing) -> None:
    refused = racing(*DETACHED[:-1], "marks.py", "/dev/null", "0")
    claims, marked = racing.home / "claims", str(racing.home / "marks")

    started = racing(*DETACHED, str(claims), "marks.py", marked, "0")
    state = racing.wait_end()

    assert refused.exit_code == 2
    assert "nothing decides which" in refused.stderr
    assert started.exit_code == 0, started.stderr
    assert state["state"] == "success"
    wait_until("no job to be left", lambda: racing.queued() == [], limit_s=LIMIT_S)
    (ran,) = marks(racing)
    assert (claims / started.stdout.strip()).read_text() == ran


def test_a_detached_run_that_no_cluster_takes_has_failed(racing: Racing) -> None:
    for node in racing.nodes:
        node.new_sbatch("echo Invalid account >&2; exit 1")

    done = racing(*DETACHED, str(racing.home / "claims"), "marks.py", "/dev/null", "0")

    assert (done.exit_code, done.stdout) == (4, ""), done.stderr
    assert "no cluster is left: juno: " in done.stderr
    assert racing.status()["state"] == "failed"


def test_a_detached_run_is_not_followed_if_one_cluster_has_it_before_the_other_was_asked(racing: Racing) -> None:
    over, cancelled = racing.home / "over", racing.cli.runs / "*/tries/*/cancel.json"
    racing.nodes[1].new_sbatch(f'until ls {cancelled} 2>/dev/null; do sleep 0.1; done; exec "$sbatch" "$@"')
    racing.cli.write("waits.py", WAITS)

    started = racing(*DETACHED, str(racing.home / "claims"), "waits.py", str(over))

    assert started.exit_code == 0, started.stderr
    state = racing.status()
    assert (state["run"], state["state"], state["cluster"]) == (started.stdout.strip(), "running", "juno")
    over.touch()
    assert racing.wait_end()["state"] == "success"
    wait_until("no job to be left", lambda: racing.queued() == [], limit_s=LIMIT_S)


def test_a_terminal_that_is_closed_meanwhile_cuts_no_submission_off(racing: Racing) -> None:
    racing.hold()
    racing.nodes[1].new_sbatch('sleep 5; exec "$sbatch" --hold "$@"')
    launcher = racing.race("marks.py", "/dev/null", "0")
    wait_until("juno to have it", lambda: racing.submitted() == 1, limit_s=LIMIT_S)

    launcher.send_signal(signal.SIGHUP)
    _, stderr = launcher.communicate(timeout=LIMIT_S)

    assert launcher.returncode == 5, stderr.decode()
    assert racing.submitted() == 2
    assert len(racing.queued()) == 2
    assert racing("cancel", "last").exit_code == 0


def left_by_a_killed_launcher(racing: Racing) -> None:
    """A run that both clusters have in their queues."""
    racing.hold()
    launcher = racing.race("marks.py", "/dev/null", "0")
    wait_until("it to be recorded", lambda: racing.submitted() == 2, limit_s=LIMIT_S)
    launcher.kill()
    launcher.communicate()


def test_ctrl_c_asks_who_attaches_to_a_run_that_no_cluster_has_yet(racing: Racing) -> None:
    left_by_a_killed_launcher(racing)

    with leaves.Desk(racing.cli, racing.env()).type("attach", "last") as screen:
        screen.until("d detaches, Ctrl-C asks")
        screen.type("\x03")
        screen.until("cancel, detach or go on?")
        screen.type("d")
        screen.until("to come back: distlaunch attach marks-")
        assert screen.end() == leaves.CONTINUES

    assert len(racing.queued()) == 2
    assert racing("cancel", "last").exit_code == 0


def test_a_cluster_that_does_not_cancel_keeps_no_other_from_it(racing: Racing) -> None:
    left_by_a_killed_launcher(racing)
    refuses = next(node for node in racing.nodes if node.name == racing.status()["race"]["tries"][0]["cluster"])
    refuses.stand_in("scancel", "echo scancel: error: Unable to contact slurm controller >&2; exit 1")

    refused = racing("cancel", "last")
    left = racing.queued()
    refuses.stand_in("scancel")
    cancelled = racing("cancel", "last")

    assert len(left) == 1
    assert refused.exit_code == 3
    assert f"{refuses.name}: " in refused.stderr
    assert cancelled.exit_code == 0, cancelled.stderr
    assert racing.queued() == []
    assert racing.status()["state"] == "cancelled"
