"""Clusters of one slurmdbd: Slurm chooses which starts a run, and every command finds it there."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from launcher.backends.slurm.states import ending
from testbed import SlurmOptions, fixtures, wait_until
from testbed.multicluster import another, federate
from testbed.slurm_conf import CLUSTER
from tests.slurm.conftest import LIMIT_S, Login
from tests.terminal.asks import on_screen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.slurm import Slurm
    from tests.command import Cli

pytestmark = pytest.mark.slurm

SOUTH = "south"
SHOWS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
attempt = os.environ.get("DISTLAUNCH_ATTEMPT", "0")
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on", os.environ["SLURM_CLUSTER_NAME"],
      "attempt", attempt, flush=True)
time.sleep(float(sys.argv[1]) if attempt == "0" else 0)
"""


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Slurm, Slurm]]:
    """The cluster of the login node with two nodes, and `south` with one."""
    with fixtures.make(4, slurm=SlurmOptions(accounting=True, hosts=2)) as testbed:
        yield testbed.slurm, another(testbed.slurm, SOUTH, testbed.hosts[2:3], testbed.hosts[3])


@pytest.fixture
def site(both: tuple[Slurm, Slurm], distlaunch: Cli) -> Iterator[Login]:
    """The login node, whose settings name both; leaves them idle."""
    distlaunch.write("shows.py", SHOWS)
    names = f'clusters = "{CLUSTER},{SOUTH}"'
    text = f'[clusters.site]\nbackend = "slurm"\n{names}\ngres = "none"\n'
    for one in (CLUSTER, SOUTH):
        text += f'[clusters.only-{one}]\nbackend = "slurm"\nclusters = "{one}"\ngres = "none"\n'
    distlaunch.write("system.toml", text)
    made = Login(distlaunch, both[0])
    try:
        yield made
    finally:
        for slurm in both:
            slurm.cancel_all()
            slurm.wait_idle()


def fill(both: tuple[Slurm, Slurm], which: int) -> str:
    """Leave no room on one of them; the job that takes it."""
    slurm = both[which]
    number = slurm.sbatch(
        "#!/bin/sh\nsleep 600\n", "--exclusive", f"--nodes={len(slurm.hosts)}", f"--clusters={name(which)}"
    )
    wait_until(f"{name(which)} to be full", lambda: slurm.job(number).get("JobState") == "RUNNING", limit_s=LIMIT_S)
    return number


def name(which: int) -> str:
    return (CLUSTER, SOUTH)[which]


def whole_life(site: Login, where: str) -> None:
    """A run that is started where there is room: followed, listed, started again, adopted, cancelled."""
    done = site("run", "--on", "site", "shows.py", "0")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"rank 0 of 1 on {where} attempt 0\n"
    run = site("run", "--on", "site", "--detach", "shows.py", "600").stdout.strip()
    wait_until("its line", lambda: "rank 0" in site("logs", run).stdout, limit_s=LIMIT_S, every_s=0.5)
    state = site("status", run, "--output", "json").json["result"]
    assert (state["state"], state["detail"]) == ("running", "RUNNING")

    requeued = site("requeue", run)
    assert requeued.exit_code == 0, requeued.stderr
    assert site("wait", run).exit_code == 0
    assert "saved" in site("logs", run).stdout
    assert site("logs", run).stdout.splitlines()[-1] == f"[0:0] rank 0 of 1 on {where} attempt 1"
    again = site("requeue", run)
    assert again.exit_code == 0, again.stderr
    assert site("wait", run).exit_code == 0

    last = site("run", "--on", "site", "--detach", "shows.py", "600").stdout.strip()
    wait_until("its line", lambda: "rank 0" in site("logs", last).stdout, limit_s=LIMIT_S, every_s=0.5)
    found = {row["run"]: row for row in site("ls", "--on", "site", "--output", "json").json["result"]["runs"]}
    assert (found[run]["state"], found[last]["state"]) == ("success", "running")
    elsewhere: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(site.cli.directory / "elsewhere")}
    seen = site("status", last, "--on", "site", "--output", "json", env=elsewhere).json["result"]
    assert (seen["state"], seen["nodes"][0]["host"]) == ("running", found[last]["hosts"][0])
    with on_screen(site.cli, "shell", last, env=site.env()) as screen:
        screen.until("exit or Ctrl-D leaves it")
        screen.type("echo in-$SLURM_CLUSTER_NAME-$((40 + 2)); exit\n")
        screen.until(f"in-{where}-42")
        assert screen.end() == 0
    cancelled = site("cancel", last)
    assert cancelled.exit_code == 0, cancelled.stderr
    assert site("wait", last).exit_code == 130
    assert site("status", last, "--output", "json").json["result"]["state"] == "cancelled"
    assert "saved" in site("logs", last).stdout


@pytest.mark.parametrize("full", [0, 1])
def test_a_run_is_started_where_slurm_expects_it_first_and_lives_there(
    site: Login, both: tuple[Slurm, Slurm], full: int
) -> None:
    fill(both, full)
    whole_life(site, name(1 - full))


def test_one_that_waits_is_cancelled_and_what_no_cluster_takes_is_one_error(
    site: Login, both: tuple[Slurm, Slurm]
) -> None:
    for which in (0, 1):
        fill(both, which)
    run = site("run", "--on", "site", "--detach", "shows.py", "0").stdout.strip()
    assert site("status", run, "--output", "json").json["result"]["state"] == "pending"
    assert site("cancel", run).exit_code == 0
    assert site("wait", run).exit_code == 130

    none = site("slurm", "--clusters", "nope,neither", "shows.py", "0")
    text = site("slurm", "--clusters", "a b", "shows.py", "0")
    assert (none.exit_code, text.exit_code) == (2, 2)
    assert "No cluster 'nope' known by database" in none.stderr
    assert "clusters 'a b' is no list of names" in text.stderr
    rows = site("clusters", "site", "--output", "json").json["result"]["clusters"]
    assert rows[0]["nodes"] == 3
    assert rows[0]["nodes_free"] == 0


def test_inside_a_job_a_run_is_a_step_of_it_whatever_the_settings_name(site: Login, both: tuple[Slurm, Slurm]) -> None:
    """It stays on the cluster of the job, where a shell opens beside it."""
    site.write("allocation.sh", f"exec {sys.executable} -m launcher run --on site shows.py 600\n")
    argv = ["salloc", "--quiet", f"--clusters={SOUTH}", "--nodes=1", "bash", "allocation.sh"]
    pipe, cli = subprocess.PIPE, site.cli
    with subprocess.Popen(argv, env=cli.env(site.env()), cwd=cli.directory, stdout=pipe, stderr=pipe) as process:
        wait_until("its line", lambda: "rank 0" in site("logs", "last").stdout, limit_s=LIMIT_S, every_s=0.5)
        assert f"on {SOUTH} attempt 0" in site("logs", "last").stdout
        assert site("status", "last", "--output", "json").json["result"]["state"] == "running"
        with on_screen(cli, "shell", "last", env=site.env()) as screen:
            screen.until("exit or Ctrl-D leaves it")
            screen.type("echo in-$SLURM_CLUSTER_NAME-$((40 + 2)); exit\n")
            screen.until(f"in-{SOUTH}-42")
            assert screen.end() == 0
        assert site("cancel", "last").exit_code == 0
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, said.decode()
    assert "whose own these are: clusters" in said.decode()


def test_a_race_between_clusters_of_one_slurmdbd_says_that_slurm_can_choose(
    site: Login, both: tuple[Slurm, Slurm]
) -> None:
    """Each by its own name, from one login node: it is queued on both by us, and the first that starts it has it."""
    fill(both, 0)
    filler = fill(both, 1)
    process = site.start("run", "--on", f"only-{CLUSTER},only-{SOUTH}", "shows.py", "0")
    wait_until("both to have it", lambda: all(len(queued(slurm)) == 2 for slurm in both), limit_s=LIMIT_S)
    both[1].run(("scancel", filler))
    out, said = process.communicate(timeout=2 * LIMIT_S)

    assert process.returncode == 0, said.decode()
    assert out.decode() == "rank 0 of 1 on south attempt 0\n"
    note = (
        f"only-{CLUSTER} and only-{SOUTH} belong to one slurmdbd ({both[0].controller.address}:6819): with clusters = "
    )
    assert f"{note}'{CLUSTER},{SOUTH}' in one of them, Slurm itself chooses" in said.decode()
    wait_until("the other one to be cancelled", lambda: len(queued(both[0])) == 1, limit_s=LIMIT_S)


def queued(slurm: Slurm) -> list[str]:
    return slurm.run(("squeue", "--noheader", "--format=%i")).stdout.split()


def test_in_a_federation_the_first_that_starts_a_run_has_it(site: Login, both: tuple[Slurm, Slurm]) -> None:
    """It waits on both, and starts on the one where a job ends."""
    federate(both[0], SOUTH)
    fill(both, 0)
    filler = fill(both, 1)
    run = site("run", "--on", "site", "--detach", "shows.py", "600").stdout.strip()
    assert site("status", run, "--output", "json").json["result"]["state"] == "pending"

    both[1].run(("scancel", filler))

    wait_until("its line", lambda: "rank 0" in site("logs", run).stdout, limit_s=LIMIT_S, every_s=0.5)
    assert "on south attempt 0" in site("logs", run).stdout
    assert site("status", run, "--output", "json").json["result"]["state"] == "running"
    assert site("requeue", run).exit_code == 0
    assert site("wait", run).exit_code == 0
    assert "on south attempt 1" in site("logs", run).stdout
    whole_life(site, SOUTH)


def test_a_job_that_started_on_another_cluster_of_a_federation_is_told_with_the_way_out() -> None:
    cause = ending("7", "REVOKED", "None")
    assert cause is not None
    assert "another cluster of the federation has started it; --clusters A,B" in cause["message"]
