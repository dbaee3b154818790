"""What workers find on the nodes, and what users are told about nodes that cannot run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import SlurmOptions, fixtures, wait_until
from tests.command import ROOT, Cli, Result
from tests.slurm.conftest import LIMIT_S, Login, end, idle_afterwards
from tests.slurm.scripts import HOLDS, SHOW, found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.slurm import Slurm
    from tests.slurm.conftest import Run

pytestmark = pytest.mark.slurm

UNSEEN = {"not-everywhere", "nowhere", "no-script", "alone"}
"""The runs that continue beside the tests here."""

RUNNING = "--states=PD,R,CG"


@pytest.fixture(scope="module", autouse=True)
def unseen(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Runs whose directories some nodes do not see, started before other tests: one hangs, and is given up later."""
    with idle_afterwards(Login(Cli(tmp_path_factory.mktemp("unseen")), slurm)) as login:
        work, directory = login.cli.directory / "work", login.cli.directory / "unseen"
        for path in (work, directory):
            path.mkdir()
        (work / "show.py").write_text(SHOW)
        login.write("show.py", SHOW)
        n1, _, n3, n4 = slurm.hosts
        n1.private_directory(work)
        n3.private_directory(directory)
        n4.private_directory(directory)
        there: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(directory)}
        argv = ("--nodes", "2", "--nodelist")
        found = {
            "not-everywhere": login.follow("not-everywhere", *argv, "n[2-3]", "show.py", env=there),
            "nowhere": login.follow("nowhere", *argv, "n[3-4]", "show.py", env=there),
            "no-script": login.follow("no-script", *argv, "n[1-2]", "show.py", cwd=work),
            "alone": login.detach("alone", *argv, "n[1-2]", "show.py", cwd=work),
        }
        try:
            yield found
        finally:
            for run in found.values():
                run.kill()
            n1.shared_directory(work)
            n3.shared_directory(directory)
            n4.shared_directory(directory)


@pytest.fixture
def login(slurm: Slurm, distlaunch: Cli) -> Login:
    """Other runs continue meanwhile: the cluster is idle again after the last test here."""
    return Login(distlaunch, slurm)


@pytest.fixture
def site(login: Login) -> Iterator[Login]:
    """The switches do not follow the order of the hosts' names."""
    login.write("show.py", SHOW)
    login.slurm.wire(("n1", "n3"), ("n2", "n4"))
    yield login
    login.slurm.wire(("n1", "n2"), ("n3", "n4"))


def test_gpus_cpus_and_ranks_are_those_of_the_job(site: Login) -> None:
    show = ("--log-ranks", "all", "show.py")
    gpus = site.follow("gpus", "--nodes", "2", "--gpus-per-node", "2", "--cpus-per-task", "4", *show)
    unequal = site.follow("unequal", "--nodes", "2", "--sbatch", "gpus=3", *show)
    order = site.follow("order", "--nodes", "4", "--cpus-per-task", "2", "--env", "OMP_NUM_THREADS=7", *show)

    two = found(gpus.end())
    nodes = [row[3] for row in two]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert [row[:3] for row in two] == [[str(rank), str(rank % 2), "4"] for rank in range(4)]
    assert [row[4:] for row in two] == [["0,1", "4", "1"]] * 4
    three = found(unequal.end())
    assert [row[:3] for row in three] in (
        [["0", "0", "3"], ["1", "1", "3"], ["2", "0", "3"]],
        [["0", "0", "3"], ["1", "0", "3"], ["2", "1", "3"]],
    )
    assert len({row[3] for row in three}) == 2
    four = found(order.end())
    assert [row[:3] for row in four] == [[str(rank), "0", "4"] for rank in range(4)]
    assert [row[3] for row in four] == ["n1", "n3", "n2", "n4"]
    assert [row[5:] for row in four] == [["2", "7"]] * 4


def test_an_elastic_run_takes_as_many_nodes_as_there_are(login: Login) -> None:
    login.write("show.py", SHOW)
    wait_until(
        "the jobs of other tests to leave the nodes", lambda: set(login.queue("%j", RUNNING)) <= UNSEEN, limit_s=LIMIT_S
    )
    elastic = ("--nodes", "2:4", "--log-ranks", "all", "show.py")
    four = login.follow("four", *elastic)
    four.wait_for("found", times=4)
    login.slurm.drain(login.slurm.hosts[1])
    try:
        three = found(login("slurm", *elastic))
    finally:
        login.slurm.resume(login.slurm.hosts[1])

    assert {row[2] for row in found(four.end())} == {"4"}
    assert sorted(row[3] for row in found(four.end())) == ["n1", "n2", "n3", "n4"]
    assert {row[2] for row in three} == {"3"}
    assert sorted(row[3] for row in three) == ["n1", "n3", "n4"]


def test_a_user_who_is_not_root_runs_jobs(login: Login) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        os.chown(directory, 65534, 65534)
        (directory / "show.py").write_text(SHOW)
        paths = (str(ROOT), *(path for path in sys.path if path.endswith("site-packages")))
        env = {**login.slurm.env(), "HOME": name, "PYTHONPATH": ":".join(paths), "DISTLAUNCH_RUNS_DIR": f"{name}/runs"}
        user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", 'exec "$0" "$@"')
        own = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"  # where ours is in root's home

        def usable(python: str) -> bool:
            tried = subprocess.run(
                [*user, python, "-c", "import launcher.cli.app"], cwd=name, env=env, capture_output=True
            )
            return tried.returncode == 0

        python = next(filter(usable, (os.path.realpath(sys.executable), own)), None)
        if python is None:
            pytest.skip("no Python that other users can run")
        launcher = [*user, python, "-m", "launcher", "slurm", "--nodes", "2", "--log-ranks", "all", "show.py"]
        null = subprocess.DEVNULL
        done = subprocess.run(
            launcher, cwd=name, env=env, stdin=null, capture_output=True, text=True, timeout=2 * LIMIT_S
        )

        rows = found(Result(done.returncode, done.stdout, done.stderr))
        assert [row[:3] for row in rows] == [["0", "0", "2"], ["1", "0", "2"]]
        run = next(directory.glob("runs/show-*"))
        assert {path.stat().st_uid for path in (run, run / "job.out", run / "nodes/1/stream")} == {65534}
        assert run.stat().st_mode & 0o077 == 0


def test_two_runs_that_ask_for_the_same_port_do_not_meet_and_logs_can_be_followed_from_any_moment(login: Login) -> None:
    login.write("show.py", SHOW)
    login.write("holds.py", HOLDS)
    argv = ("--nodes", "2", "--nodelist", "n[1-2]", "--master-port", "23456")
    first = login.follow("first", *argv, "holds.py")
    early = login.start("logs", "-f", first.id)
    first.wait_for("ready", times=2)

    second = login("slurm", *argv, "--name", "second", "show.py")
    shown = login.cli.directory / "late"
    with open(shown, "wb") as out:
        late = login.start("logs", "-f", first.id, stdout=out)
    wait_until("a line from the run's middle", shown.read_text, limit_s=LIMIT_S)
    still = first.status()
    login.slurm.run(("scancel", "--signal=USR1", first.job))

    assert second.exit_code == 1, second.stderr
    assert re.search(r"port 23456 is in use\n  first failure: host n1, node 0\n", second.stderr), second.stderr
    assert "Traceback" not in second.stderr
    assert still["state"] == "running"
    assert first.end().exit_code == 0, first.end().stderr
    for seen in (end(early), end(late)):  # from before it began, and from its middle
        assert seen.exit_code == 0, seen.stderr
        assert sorted((seen.stdout or shown.read_text()).splitlines()) == ["[0:0] ready", "[1:1] ready"]


def test_directories_that_nodes_do_not_see_are_one_clear_cause(unseen: dict[str, Run]) -> None:
    alone = unseen.pop("alone")
    told = {name: run.end() for name, run in unseen.items()}
    alone.wait_for_event(
        "done", times=2
    )  # it is not followed: the node without the script informs the other one, which waits for it

    assert {name: done.exit_code for name, done in told.items()} == dict.fromkeys(told, 1)
    work = alone.login.cli.directory / "work"
    missing = f"the script failed: FileNotFoundError: [Errno 2] No such file or directory: '{work}/show.py'"
    assert missing in told["no-script"].stderr
    assert re.search(r"first failure: .*host n1", told["no-script"].stderr)
    assert "the run directory must be on a file system that all nodes see" in told["nowhere"].stderr
    partly = told["not-everywhere"].stderr
    assert re.search(r"a node failed: the agent could not start on n3: .*agent\.pyz.*No such file", partly), partly
    assert re.search(r"first failure: host n3", partly), partly
    status = alone.status()
    assert (status["state"], status["exit_code"], status["cause"]["host"]) == ("failed", 1, "n1")


def test_a_run_that_leaves_gpus_unused_is_warned_of_before_it_waits(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "print('ran', flush=True)\n")
    with fixtures.make(1, slurm=SlurmOptions(gpus_per_host=2)) as testbed:
        login = Login(distlaunch, testbed.slurm)
        ran = login.each(
            {
                "none": ("slurm", "-q", "x.py"),
                "no need": ("slurm", "-q", "--gres", "none", "x.py"),
                "asked": ("slurm", "-q", "--gpus-per-node", "1", "x.py"),
                "by name": ("slurm", "-q", "--sbatch", "gpus=1", "x.py"),
            }
        )

    assert {name: done.exit_code for name, done in ran.items()} == dict.fromkeys(ran, 0), ran
    warning = "nodes of partition main have gpu:2, and the run asks for no GPU: --gpus-per-node N asks for some"
    assert {name: warning in done.stderr for name, done in ran.items()} == {**dict.fromkeys(ran, False), "none": True}
