"""`--unique`: a command that cron or CI runs any number of times starts one run of its name at a time."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from launcher.runs import lock, records
from testbed import wait_until
from testbed.running import Running
from tests.cli.following import end, until_stderr
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from tests.command import Cli

WAITS = """
import os, time
print("here", flush=True)
while not os.path.exists("over"):
    time.sleep(0.05)
raise SystemExit(3)
"""


def test_several_launches_at_the_same_moment_start_one_run_and_the_others_attach(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)

    def launch(_: int) -> str:
        return distlaunch("local", "-d", "--unique", "--name", "nightly", "waits.py").stdout.strip()

    with ThreadPoolExecutor(4) as pool:
        (run,) = set(pool.map(launch, range(4)))
    assert [path.name for path in distlaunch.runs.glob("nightly-*")] == [run]

    refused = distlaunch("local", "--if-running", "fail", "--name", "nightly", "waits.py")
    assert (refused.exit_code, f"{run} has not ended" in refused.stderr) == (2, True)
    more = distlaunch("local", "-d", "--unique", "--if-running", "new", "--name", "nightly", "waits.py").stdout.strip()
    other = distlaunch("local", "-d", "--unique", "--name", "other", "waits.py").stdout.strip()
    assert len({run, more, other}) == 3

    attached = Running(distlaunch.start("local", "--unique", "--name", "other", "waits.py"))
    attached.until("here")
    distlaunch.write("over", "")
    assert (attached.end(), attached.stdout) == (1, "here\n")
    assert f"{other} has not ended, so no other run of this name is started" in attached.stderr
    attached.close()
    assert distlaunch("wait", run, more).exit_code == 1
    assert distlaunch("local", "-d", "--unique", "--name", "nightly", "waits.py").stdout.strip() not in (run, more, "")


def test_who_attaches_sees_the_ranks_that_were_asked_for(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS.replace('"here"', '"here", os.environ["RANK"]'))
    unique = ("local", "--unique", "--name", "nightly")
    distlaunch(*unique, "-d", "--nproc-per-node", "3", "waits.py")

    attached = Running(distlaunch.start(*unique, "--nproc-per-node", "1", "--log-ranks", "all", "waits.py"))
    for rank in range(3):
        attached.until(f"here {rank}")
    distlaunch.write("over", "")
    assert attached.end() == 1
    attached.close()


@pytest.mark.parametrize(
    ("options", "code", "state"), [([], 5, "running"), (["--on-hangup", "cancel"], 130, "cancelled")]
)
def test_a_closed_terminal_leaves_the_run_of_another_unless_told(
    distlaunch: Cli, options: list[str], code: int, state: str
) -> None:
    distlaunch.write("waits.py", WAITS)
    run = distlaunch("local", "-d", "--unique", "--name", "nightly", "waits.py").stdout.strip()
    attached = Running(distlaunch.start("local", "--unique", "--name", "nightly", *options, "waits.py"))
    attached.until("here")
    attached.kill(signal.SIGHUP)
    ended = attached.end()
    attached.close()

    assert (ended, distlaunch("status", run, "--output", "json").json["result"]["state"]) == (code, state)
    distlaunch("cancel", "--force", run)


def test_who_waits_for_the_submission_of_another_launcher_leaves_its_run_alone(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    run = make(distlaunch.runs, "nightly-20250101-101010-abcd", result=None)
    with (
        lock.hold(run.path, "local", submits=True),
        distlaunch.start("local", "--unique", "--name", "nightly", "waits.py") as process,
    ):
        until_stderr(process, b"has not ended, so no other run of this name is started")
        process.send_signal(signal.SIGINT)
        code, stderr = end(process)

    assert code == 5
    assert f"{run.id} continues" in stderr
    assert "cancel --force" not in stderr
    assert not (run.path / "cancel.json").exists()


def test_a_run_of_which_nobody_knows_whether_it_runs_is_named(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    run = make(distlaunch.runs, "nightly-20250101-101010-abcd", created=1.0, result=None)

    refused = distlaunch("local", "-d", "--unique", "--name", "nightly", "waits.py")
    assert (refused.exit_code, f"{run.id} may still run" in refused.stderr) == (2, True)
    assert distlaunch("rm", "--force", run.id).exit_code == 0
    assert distlaunch("local", "-d", "--unique", "--name", "nightly", "waits.py").exit_code == 0
    distlaunch.write("over", "")


def test_only_ended_runs_are_removed_and_all_are_checked_first(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    ended = make(distlaunch.runs, "old-20250101-101010-abcd")
    damaged = distlaunch.runs / "bad-20250101-101010-abcd"
    damaged.mkdir()
    run = distlaunch("local", "-d", "waits.py").stdout.strip()

    for word in (run, damaged.name, "nope"):
        refused = distlaunch("rm", ended.id, word)
        assert (refused.exit_code, ended.path.exists()) == (2, True), refused.stderr
        assert word in refused.stderr
    distlaunch.write("over", "")
    distlaunch("wait", run)
    assert distlaunch("rm", ended.id, run, "--output", "json").json["result"] == {"runs": [ended.id, run]}
    assert distlaunch("rm", "--force", damaged.name).exit_code == 0
    assert [path for path in distlaunch.runs.iterdir() if path.name != ".names"] == []


@pytest.mark.parametrize("detached", [True, False])
def test_a_run_is_pruned_by_its_end_whoever_saw_that_and_when(distlaunch: Cli, detached: bool) -> None:
    how = ("--detach",) if detached else ()
    done = distlaunch("local", *how, "--output", "json", "--no-python", "true")
    run = done.json["result"]["run"]
    if not detached:
        os.utime(distlaunch.runs / run / "result.json", (4e9, 4e9))

    def pruned() -> list[str]:
        found: list[str] = distlaunch("prune", "--older-than", "0.1s", "--output", "json").json["result"]["runs"]
        return found

    assert wait_until("its end", pruned) == [run]
    assert not (distlaunch.runs / run).exists()


def test_old_runs_are_pruned_but_not_those_that_failed_or_run(distlaunch: Cli) -> None:
    names = {"success": "good", "failed": "bad", None: "unfinished"}
    runs = {
        name: make(distlaunch.runs, f"{name}-20250101-101010-abcd", created=1.0, result=state)
        for state, name in names.items()
    }
    records.finish(runs["good"], {})
    young = make(distlaunch.runs, "young-20250101-101010-abcd")
    for name in ("good", "bad"):
        path = runs[name].path / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "exit_code": int(name == "bad")}))
        os.utime(path, (1e9, 1e9))

    shown = distlaunch("prune", "--keep-failed", "--dry-run", "--output", "json").json["result"]
    assert shown == {"runs": [runs["good"].id], "kept": [], "removed": False}
    assert distlaunch("prune", "--keep-failed").exit_code == 0
    assert not runs["good"].path.exists()
    assert runs["bad"].path.exists()
    assert distlaunch("prune", "--older-than", "1d", "--output", "json").json["result"]["runs"] == [runs["bad"].id]
    assert {run.path.exists() for run in (young, runs["unfinished"])} == {True}
    assert distlaunch("prune", "--older-than", "30").exit_code == 2
