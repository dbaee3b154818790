"""A run that is queued on two Slurm clusters, each with its own controller and login node: exactly one runs it."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.slurm.laptop import LIMIT_S

if TYPE_CHECKING:
    from tests.slurm.racing import Racing

pytestmark = pytest.mark.slurm

MARKS = """
import os, sys, time
if os.environ["RANK"] == "0":
    with open(sys.argv[1], "a") as file:
        file.write(os.environ["DISTLAUNCH_RUN_ID"] + "\\n")
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
time.sleep(float(sys.argv[2]))
"""
"""Each run of the script appends a line to a file that both clusters see."""


@pytest.fixture(autouse=True)
def script(racing: Racing) -> None:
    racing.cli.write("marks.py", MARKS)


def marks(racing: Racing) -> list[str]:
    path = racing.home / "marks"
    return path.read_text().splitlines() if path.exists() else []


def test_the_first_that_starts_gets_the_run_and_it_is_one_run_for_every_command(racing: Racing) -> None:
    racing.nodes[0].new_sbatch('exec "$sbatch" --begin=now+600 "$@"')
    marked = str(racing.home / "marks")

    done = racing("run", "--on", "juno,lab", "--start", "first", "marks.py", marked, "0")

    assert done.exit_code == 0, done.stderr
    assert done.stdout == "rank 0 of 1\n"
    assert "lab starts first and gets the run; cancelling it on juno" in done.stderr
    assert racing.queued() == []
    state = racing.status()
    tries = {each["cluster"]: each for each in state["race"]["tries"]}
    assert (state["state"], state["cluster"]) == ("success", "lab")
    assert tries["lab"]["granted_at"] >= tries["lab"]["tried_at"]
    assert tries["juno"]["cancelled_at"] is not None
    assert marks(racing) == [tries["lab"]["run"]]
    run = state["run"]
    rows = racing("ls", "--output", "json").json["result"]["runs"]
    assert [(row["run"], row["cluster"]) for row in rows] == [(run, "lab")]
    assert racing("logs", run).stdout.endswith("rank 0 of 1\n")
    shown = racing("status", "-v", run).stdout
    assert f"got the run at {time.strftime('%H:%M:%S', time.localtime(tries['lab']['granted_at']))}" in shown
    requeued = racing("requeue", run)
    assert requeued.exit_code == 0, requeued.stderr
    assert racing.wait_end(run)["attempt"] == 1
    assert marks(racing) == [tries["lab"]["run"]] * 2, "it has the claim for good"
    removed = racing("rm", run)
    assert removed.exit_code == 0, removed.stderr
    assert list(racing.cli.runs.glob("[!.]*")) == []


def test_one_that_can_start_now_gets_it_at_once_and_no_other_is_asked_to(racing: Racing) -> None:
    busy = [racing("run", "--on", "juno", "--detach", "--nodes", "4", "--exclusive", "marks.py", "/dev/null", "600")]
    wait_until("juno to be full", lambda: "RUNNING" in " ".join(racing.queued()), limit_s=LIMIT_S)

    done = racing("run", "--on", "juno,lab", "marks.py", str(racing.home / "marks"), "0")

    assert busy[0].exit_code == 0, busy[0].stderr
    assert done.exit_code == 0, done.stderr
    assert "lab can start it now" in done.stderr
    assert "race" not in racing.status()
    assert len(marks(racing)) == 1
    assert racing("cancel", busy[0].stdout.strip()).exit_code == 0


def test_the_same_number_of_workers_is_asked_of_clusters_with_other_nodes(racing: Racing) -> None:
    racing.clusters(juno={"nproc_per_node": "2"}, lab={"nproc_per_node": "4"})
    other = racing("run", "--on", "juno,lab", "--start", "first", "marks.py", "/dev/null", "0")
    unfit = racing("run", "--on", "juno,lab", "--start", "first", "--workers", "6", "marks.py", "/dev/null", "0")

    done = racing(
        "run", "--on", "juno,lab", "--start", "first", "--workers", "4", "marks.py", str(racing.home / "marks"), "0"
    )

    assert other.exit_code == 2
    assert "another world size on each cluster: juno: 2, lab: 4" in other.stderr
    assert "hint: --workers N" in other.stderr
    assert "lab cannot take the job: --workers 6: nodes with 4 workers each have not this many" in unfit.stderr
    assert unfit.exit_code == 0, unfit.stderr
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "rank 0 of 4\n"
    assert len(marks(racing)) == 1


def test_a_cluster_that_fails_once_another_has_the_run_is_not_shown(racing: Racing) -> None:
    cancelled = racing.cli.runs / "*/tries/*/cancel.json"
    racing.nodes[1].new_sbatch(f"until ls {cancelled} 2>/dev/null; do sleep 0.1; done; sleep 3; exit 1")

    done = racing("run", "--on", "juno,lab", "--start", "first", "marks.py", str(racing.home / "marks"), "5")

    assert (done.exit_code, done.stdout) == (0, "rank 0 of 1\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert len(marks(racing)) == 1
    (lost,) = [each for each in racing.status()["race"]["tries"] if each["cluster"] == "lab"]
    assert lost["ended_at"] is not None


def test_a_launcher_that_was_killed_leaves_a_run_that_another_goes_on_with(racing: Racing) -> None:
    racing.hold()
    marked = str(racing.home / "marks")
    launcher = racing.race("marks.py", marked, "1")
    wait_until("both to have it", lambda: len(racing.queued()) == 2, limit_s=LIMIT_S)
    wait_until("it to be recorded", lambda: racing.submitted() == 2, limit_s=LIMIT_S)
    launcher.kill()
    launcher.communicate()

    waits = racing("status", "last")
    racing.let_go()
    done = racing("attach", "last")

    assert "no launcher: distlaunch attach" in waits.stdout
    assert done.exit_code == 0, done.stderr
    assert len(marks(racing)) == 1
    wait_until("no job to be left", lambda: racing.queued() == [], limit_s=60)


def test_without_a_launcher_no_try_runs_the_script(racing: Racing) -> None:
    racing.hold()
    launcher = racing.race("--claim-wait", "3s", "marks.py", str(racing.home / "marks"), "0")
    wait_until("both to have it", lambda: len(racing.queued()) == 2, limit_s=LIMIT_S)
    wait_until("it to be recorded", lambda: racing.submitted() == 2, limit_s=LIMIT_S)
    launcher.kill()
    launcher.communicate()

    racing.let_go()
    wait_until("both to give up", lambda: racing.queued() == [], limit_s=LIMIT_S)

    assert marks(racing) == []
    state = racing.status()
    assert (state["state"], state["exit_code"]) == ("failed", 4)
    assert "no launcher granted the run's claim within 3 s" in state["cause"]["message"]


def test_a_cancelled_run_leaves_nothing_on_any_cluster(racing: Racing) -> None:
    racing.hold()
    launcher = racing.race("marks.py", str(racing.home / "marks"), "0")
    wait_until("both to have it", lambda: len(racing.queued()) == 2, limit_s=LIMIT_S)

    cancelled = racing("cancel", "last")
    launcher.communicate(timeout=LIMIT_S)

    assert cancelled.exit_code == 0, cancelled.stderr
    assert launcher.returncode == 130
    assert racing.queued() == []
    assert racing.status()["state"] == "cancelled"
    assert marks(racing) == []


@pytest.mark.parametrize(
    ("on", "told"),
    [
        ("juno,lad", "unknown cluster 'lad'"),
        ("juno,empty", "no backend"),
        ("gone", "unknown cluster 'gone'"),
    ],
)
def test_wrong_lists_of_clusters_are_one_error(racing: Racing, on: str, told: str) -> None:
    path = racing.cli.directory / "system.toml"
    path.write_text(path.read_text() + "[clusters.empty]\nnodes = 1\n")
    done = racing("run", "--on", on, "marks.py", "/dev/null", "0")
    assert done.exit_code == 2
    assert told in done.stderr
    assert racing.queued() == []


def test_one_of_many_races_is_run_by_one_cluster_at_most_whatever_is_killed(racing: Racing) -> None:
    """With random start times; a third of the launchers are killed at a random moment, and come back."""
    for node in racing.nodes:
        node.new_sbatch('sleep "$(($$ % 3)).$(($$ % 10))"; exec "$sbatch" "$@"')
    seed = random.randrange(10**6)
    choose = random.Random(seed)
    kills = [choose.uniform(0.2, 6.0) if number % 3 == 0 else None for number in range(RACES)]
    found: dict[int, tuple[str, bool]] = {}

    for first in range(0, RACES, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, RACES))
        begun = time.monotonic()
        launchers = {
            number: racing.race("--name", f"race-{number}", "marks.py", str(racing.home / f"marks-{number}"), "0.2")
            for number in numbers
        }
        for number in sorted(numbers, key=lambda number: kills[number] or 99.0):
            if (at := kills[number]) is not None:
                time.sleep(max(0.0, begun + at - time.monotonic()))
                launchers[number].kill()
            _, stderr = launchers[number].communicate(timeout=2 * LIMIT_S)
            found[number] = stderr.decode(), launchers[number].returncode == -signal.SIGKILL
        for number in numbers:
            if found[number][1]:
                with suppress(IndexError):
                    racing("attach", f"race-{number}-")
    wait_until("no job to be left", lambda: racing.queued() == [], limit_s=60)

    for number in range(RACES):
        path = racing.home / f"marks-{number}"
        count = len(path.read_text().splitlines()) if path.exists() else 0
        text, killed = found[number]
        assert count <= 1, f"seed {seed}, race {number}: {count} tries ran: {text}"
        assert killed or count == 1, f"seed {seed}, race {number}: none ran: {text}"
    assert any(killed for _, killed in found.values())


RACES, AT_ONCE = int(os.environ.get("DISTLAUNCH_TEST_RACES", "24")), 6
