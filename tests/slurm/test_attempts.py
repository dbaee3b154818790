"""Runs that are submitted again after an attempt that left something behind."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.protocol import encode_event
from launcher.agent.stream.sizes import RESERVED_BYTES
from launcher.backends.slurm import behind_login
from testbed import wait_until
from tests.slurm.conftest import end
from tests.slurm.laptop import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.conftest import Login
    from tests.slurm.laptop import Laptop

pytestmark = pytest.mark.slurm

RAN = "import os; print('ran in attempt', os.environ.get('DISTLAUNCH_ATTEMPT', 0), flush=True)\n"
THRICE = f"""
{RAN}
import signal
if os.environ.get("DISTLAUNCH_ATTEMPT", "0") == "0":
    signal.pause()
print("a byte that is no text: \\0", flush=True)
raise SystemExit(os.environ["DISTLAUNCH_ATTEMPT"] == "1")
"""
NOT_ON_ONE = '#!/bin/sh\n[ "$SLURM_PROCID" != 1 ] || exec /env/bin/python\nexec {} "$@"\n'


def test_a_run_that_is_submitted_again_waits_whatever_kept_a_node_from_starting_before(login: Login) -> None:
    login.write("ran.py", RAN)
    python = login.write("python", NOT_ON_ONE.format(sys.executable))
    python.chmod(0o755)
    began = login.cli.directory / "began"
    setup = f"until [ -e {began} ]; do sleep 0.1; done"
    began.touch()
    run = login.follow("anew", "--nodes", "2", "--python", str(python), "--setup", setup, "ran.py")
    failed = run.end()
    began.unlink()
    python.unlink()
    python.symlink_to(sys.executable)
    for host in login.slurm.hosts:
        login.slurm.drain(host)
    try:
        again = login("requeue", run.id)
        waits = run.status()
        follower = login.start("attach", run.id)
        while_it_waits = login("wait", "--timeout", "8s", run.id)
    finally:
        for host in login.slurm.hosts:
            login.slurm.run(("scontrol", "update", f"NodeName={host.name}", "State=RESUME"))
    run.wait_state("RUNNING")
    while_setup = login("wait", "--timeout", "8s", run.id)
    began.touch()
    followed = end(follower)

    assert failed.exit_code == 1, failed.stderr
    assert "a node failed: the agent could not start on n2: " in failed.stderr
    assert again.exit_code == 0, again.stderr
    assert waits["state"] == "pending"
    assert (while_it_waits.exit_code, while_setup.exit_code) == (5, 5)
    assert followed.exit_code == 0, followed.stderr
    assert run.status()["attempt"] == 1


def failing(laptop: Laptop) -> tuple[str, Path]:
    """A run whose interpreter is missing, which has ended, and where the interpreter should be."""
    laptop.cli.write("ran.py", RAN)
    python = laptop.home / "python"
    run = laptop.detached("--gres", "none", "--python", str(python), "ran.py")
    assert laptop.wait_end(run)["state"] == "failed"
    return run, python


def test_behind_a_login_node_it_waits_as_well(laptop: Laptop) -> None:
    run, python = failing(laptop)
    python.symlink_to(sys.executable)
    slurm = laptop.node.slurm
    for host in slurm.hosts:
        slurm.drain(host)
    try:
        again = laptop("requeue", run)
        waits = laptop.status(run)
    finally:
        for host in slurm.hosts:
            slurm.run(("scontrol", "update", f"NodeName={host.name}", "State=RESUME"))

    assert again.exit_code == 0, again.stderr
    assert waits["state"] == "pending"
    ended = laptop.wait_end(run)
    assert (ended["state"], ended["attempt"]) == ("success", 1)


def test_behind_a_login_node_it_does_not_wait_for_output_that_takes_long_to_bring(laptop: Laptop) -> None:
    """Of which only the last part tells how often Slurm itself has started the run again."""
    laptop.cli.write("thrice.py", THRICE)
    run = laptop.detached("--gres", "none", "thrice.py")
    stream = laptop.top / "runs" / run / "nodes/0/stream"
    wait_until("attempt 0", lambda: stream.exists() and b"ran in attempt 0" in stream.read_bytes(), limit_s=LIMIT_S)
    slurm = laptop.node.slurm
    job = json.loads((laptop.cli.runs / run / "run.json").read_text())["handle"]["job_id"]
    slurm.run(("scontrol", "requeue", job))
    wait_until("the end of attempt 1", lambda: b'"attempt":1,"result":"failed"' in stream.read_bytes(), limit_s=LIMIT_S)
    slurm.wait_job(job, "FAILED")
    laptop.node.stand_in("tail", 'case $2 in +*) while printf x; do sleep 0.5; done; esac; exec "$real" "$@"')
    try:
        again = laptop("requeue", run)
    finally:
        laptop.node.stand_in("tail")

    assert again.stdout == f"{run}: attempt 2\n", again.stderr
    ended = laptop.wait_end(run)
    assert (ended["state"], ended["attempt"]) == ("success", 2)


@pytest.mark.parametrize("end", ["in the middle of much output", "on a full disk"])
def test_behind_a_login_node_attempts_without_an_event_at_the_streams_end_are_counted(tmp_path: Path, end: str) -> None:
    here: Any = SimpleNamespace(name="here", words=lambda: ["sh", "-c"])
    handle: Any = {"run_dir": str(tmp_path), "remote": str(tmp_path), "nodes": 2}
    for node in range(2):
        events = [encode_event("done", node), encode_event("agent_started", node, attempt=1)]
        place = tmp_path / "nodes" / str(node)
        place.mkdir(parents=True)
        if end == "on a full disk":
            (place / "stream").write_bytes(events[0])
            (place / "last_words").write_bytes(events[1].ljust(RESERVED_BYTES - 1) + b"\n")
        else:
            (place / "stream").write_bytes(b"".join([*events, b"[0:0] output\n" * 100_000]))

    assert behind_login.last_attempt(here, handle) == 1


def test_behind_a_login_node_what_sbatch_has_refused_once_may_be_tried_again(laptop: Laptop) -> None:
    laptop.cli.write("ran.py", RAN)
    run = laptop.detached("--gres", "none", "ran.py")
    laptop.wait_end(run)
    full = "Batch job submission failed: Job violates accounting/QOS policy"
    laptop.node.new_sbatch(f"echo 'sbatch: error: {full}' >&2; exit 1")
    try:
        refused = laptop("requeue", run)
    finally:
        laptop.node.new_sbatch('exec "$sbatch" "$@"')
    as_it_was = laptop.status(run)
    again = laptop("requeue", run)

    assert refused.exit_code == 2, refused.stderr
    assert full in refused.stderr
    assert (as_it_was["state"], as_it_was["attempt"]) == ("success", 0)
    assert again.stdout == f"{run}: attempt 1\n", again.stderr
    ended = laptop.wait_end(run)
    assert (ended["state"], ended["attempt"]) == ("success", 1)
