"""A run moves from one Slurm cluster to another that shares nothing with it: its checkpoints come along."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.moving import STEPS, went_on
from tests.slurm.laptop import LIMIT_S
from tests.train.held import losses

if TYPE_CHECKING:
    from tests.slurm.racing import Racing

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

STEPS_IN_ALL = 100


@pytest.fixture
def run(racing: Racing) -> str:
    """A run on `juno` that has made some steps."""
    racing.cli.write("steps.py", STEPS)
    run = racing.detached("steps.py", str(STEPS_IN_ALL))
    wait_until("steps", lambda: "step 3\n" in racing("logs", run).stdout, limit_s=LIMIT_S)
    return run


def test_it_goes_on_from_the_checkpoint_that_was_brought(racing: Racing, run: str) -> None:
    moved = racing("move", run, "--to", "lab", "--carry", "out/**")

    assert moved.stdout == f"{run}: attempt 1 on lab\n", moved.stderr
    assert racing.nodes[0].slurm.run(("squeue", "--noheader")).stdout == ""
    assert racing.wait_end(run)["state"] == "success"
    went_on(racing("logs", run).stdout, STEPS_IN_ALL, 2)
    back = racing("fetch", run, "out/**", "--to", "back")
    assert back.exit_code == 0, back.stderr
    assert racing("rm", run).exit_code == 0


def test_a_move_that_is_killed_leaves_the_run_where_it_was(racing: Racing, run: str) -> None:
    racing.hold()
    moving = racing.cli.start("move", run, "--to", "lab", "--carry", "out/**", env=racing.env())
    wait_until("its job on lab", lambda: "lab" in _queued(racing), limit_s=LIMIT_S)
    moving.kill()
    moving.communicate()

    state = racing.status(run)
    assert (state["state"], state["cluster"]) == ("cancelled", "juno")
    assert racing.queued() == []
    again = racing("requeue", run)
    assert again.exit_code == 0, again.stderr
    racing.let_go()
    assert racing.wait_end(run)["state"] == "success"
    went_on(racing("logs", run).stdout, STEPS_IN_ALL, 2)


@pytest.mark.parametrize("how", ["ctrl-c", "cancel"])
def test_a_move_that_is_stopped_takes_its_job_back(racing: Racing, run: str, how: str) -> None:
    racing.hold()
    moving = racing.cli.start("move", run, "--to", "lab", env=racing.env())
    wait_until("its job on lab", lambda: "lab" in _queued(racing), limit_s=LIMIT_S)
    if how == "cancel":
        assert racing("cancel", run).exit_code == 0
    else:
        moving.send_signal(signal.SIGINT)
    stderr = moving.communicate(timeout=LIMIT_S)[1].decode()

    assert moving.returncode == (130 if how == "ctrl-c" else 4), stderr
    assert f"{run} is stopped, and was not started on lab; distlaunch requeue {run}" in stderr
    assert racing.queued() == []
    assert racing.status(run)["state"] == "cancelled"


def test_after_a_cluster_has_refused_the_job_the_run_can_be_started_again(racing: Racing, run: str) -> None:
    racing.nodes[1].new_sbatch("echo 'sbatch: error: no such partition' >&2; exit 1")
    refused = racing("move", run, "--to", "lab")

    assert refused.exit_code != 0
    assert "no such partition" in refused.stderr
    assert f"distlaunch requeue {run}" in refused.stderr
    assert racing("requeue", run).exit_code == 0
    assert racing.wait_end(run)["state"] == "success"


def test_a_run_that_won_a_race_moves_to_the_cluster_that_lost(racing: Racing) -> None:
    racing.cli.write("steps.py", STEPS)
    racing.nodes[1].new_sbatch('exec "$sbatch" --begin=now+600 "$@"')
    follower = racing.race("steps.py", str(STEPS_IN_ALL))
    wait_until("steps", lambda: "step 3\n" in racing("logs", "last").stdout, limit_s=LIMIT_S)
    racing.nodes[1].new_sbatch('exec "$sbatch" "$@"')

    moved = racing("move", "last", "--to", "lab", "--carry", "out/**")

    assert moved.exit_code == 0, moved.stderr
    assert follower.wait(LIMIT_S) == 130
    follower.communicate()
    assert racing.wait_end()["state"] == "success"
    went_on(racing("logs", "last").stdout, STEPS_IN_ALL, 2)
    tries = racing.status()["race"]["tries"]
    assert [(each["cluster"], each["granted_at"] is not None) for each in tries] == [
        ("juno", True),
        ("lab", False),
        ("lab", True),
    ]


@pytest.mark.torch
def test_the_trainers_losses_go_on_exactly_where_they_were(racing: Racing) -> None:
    """As those of a run that nobody has moved."""
    flags = (
        "--nproc-per-node", "2", "train.py", "--epochs", "6", "--log-every", "1", "--checkpoint-steps", "5",
        "--report", "none", "--out", "out",
    )  # fmt: skip
    run = racing.detached(*flags)
    wait_until(
        "steps", lambda: racing("fetch", run, "out/checkpoint-*", "--to", "seen").exit_code == 0, limit_s=LIMIT_S
    )
    moved = racing("move", run, "--to", "lab", "--carry", "out/**")
    assert moved.exit_code == 0, moved.stderr
    whole = racing.detached("--name", "whole", *flags)

    for each in (run, whole):
        assert racing.wait_end(each)["state"] == "success"
    found = []
    for each in (run, whole):
        fetched = racing("fetch", each, "out/metrics.jsonl", "--to", each)
        assert fetched.exit_code == 0, fetched.stderr
        found.append(losses(racing.cli.directory / each / "out"))
    assert found[0] == found[1]
    assert len(found[0]) > 20
    assert "resumed from" in racing("logs", run).stdout


def _queued(racing: Racing) -> list[str]:
    """The clusters that have jobs."""
    return [node.name for node in racing.nodes if node.slurm.run(("squeue", "--noheader")).stdout]
