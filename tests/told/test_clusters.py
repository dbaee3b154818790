"""`--notify` and trackers' ids where the nodes are other hosts."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.ansible.conftest import rack, racks  # noqa: F401 - fixtures
from tests.command import Cli
from tests.receivers import TOKEN, receiver
from tests.slurm.conftest import Login, idle_afterwards

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.slurm import Slurm
    from tests.ansible.conftest import Rack

AGAIN = """
import json, os, signal
names = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RUN_GROUP", "MLFLOW_RUN_CONTEXT")
print("ids", os.environ["RANK"], json.dumps([os.environ[name] for name in names]), flush=True)
while "DISTLAUNCH_ATTEMPT" not in os.environ:
    signal.pause()
"""


@pytest.mark.slurm
def test_a_requeued_job_keeps_the_ids_of_its_trackers_and_is_told_once(slurm: Slurm, tmp_path: Path) -> None:
    with idle_afterwards(Login(Cli(tmp_path), slurm)) as login, receiver() as there:
        login.write("again.py", AGAIN)
        where = ("--partition", "low", "--exclude", "n4", "--nodes", "2", "--nproc-per-node", "1")
        run = login.follow("told", *where, "--notify", there.url, "again.py")
        run.wait_for("ids", times=2)
        first = slurm.sbatch("#!/bin/sh\nsleep 600\n", "--partition=high", "--nodelist=n[1-3]", "--exclusive")
        wait_until("the preemption to be told while it is queued again", lambda: len(there.got) == 2, limit_s=120)
        assert slurm.job(first)["JobState"] == "RUNNING"
        slurm.run(("scancel", first))
        ended = run.end()

    assert ended.exit_code == 0, ended.stderr
    lines = [line.partition("ids ")[2] for line in run.text().splitlines() if "] ids " in line]
    ids = {(rank, *json.loads(rest)[:3]) for rank, _, rest in (line.partition(" ") for line in lines)}
    assert len(lines) == 4
    assert ids == {("0", run.id, "allow", run.id), ("1", f"{run.id}-rank1", "allow", run.id)}
    tags = [json.loads(json.loads(line.partition(" ")[2])[3]) for line in lines]
    assert {tag["distlaunch.run"] for tag in tags} == {run.id}
    assert {tag["distlaunch.attempt"] for tag in tags} == {"0", "1"}
    told = [(each.body["type"], each.body["data"]["attempt"], each.body["data"].get("state")) for each in there.got]
    assert told == [
        ("run.start", 0, None), ("run.end", 0, "preempted"), ("run.start", 1, None), ("run.end", 1, "success"),
    ]  # fmt: skip


@pytest.mark.slurm
def test_what_ends_in_the_queue_is_in_the_metrics_whenever_it_was_submitted(slurm: Slurm, tmp_path: Path) -> None:
    with idle_afterwards(Login(Cli(tmp_path), slurm)) as login:
        login.write("again.py", AGAIN)
        waiting = ("--gres", "none", "--sbatch", "hold", "again.py")
        runs = [login.detach("one", *waiting).id, login.detach("array", "--array", "0-1", *waiting).id]
        for run in runs:
            record = login.cli.runs / run / "run.json"
            record.write_text(json.dumps({**json.loads(record.read_text()), "created": time.time() - 7200}))
            assert login("cancel", run).exit_code == 0

        text = login("metrics").stdout

    ended = re.findall(r'(?m)^distlaunch_run_state\{run="(.*?)",state="cancelled"\} 1\.0$', text)
    assert ended == runs, text


@pytest.mark.ssh
def test_over_ssh_a_launcher_takes_on_what_node_0_offers(rack: Rack) -> None:  # noqa: F811
    rack.write("fails.py", "import sys; sys.exit('no data')")
    with receiver() as there:
        done = rack("--nodes", "2", "--notify", there.url, "fails.py")

    assert done.exit_code == 1
    assert there.types == ["run.start", "run.failure", "run.end"]
    assert there.got[2].body["data"]["cause"]["class"] == "user_code"
    assert "not told" not in done.stderr
    (directory,) = rack.cli.runs.iterdir()
    kept = [path for path in directory.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert {path.name for path in kept} <= {"notify", "run.json"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
