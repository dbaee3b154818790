"""What workers find on the nodes, and what users are told of nodes that cannot run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.command import ROOT, Cli, Result
from tests.slurm.conftest import Login
from tests.testbed import SlurmOptions, fixtures, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.testbed.slurm import Slurm

pytestmark = pytest.mark.slurm

SHOW = """
import os
names = "RANK LOCAL_RANK WORLD_SIZE SLURMD_NODENAME CUDA_VISIBLE_DEVICES SLURM_CPUS_PER_TASK OMP_NUM_THREADS"
print("found", *(os.environ.get(name, "-") for name in names.split()), flush=True)
"""


@pytest.fixture(scope="module")
def wired() -> Iterator[Slurm]:
    """Four hosts with GPUs and several processors, on two switches that do not follow the order of their names."""
    with fixtures.make(slurm=SlurmOptions(gpus_per_host=2, cpus_per_host=4, switches=(2, 2))) as testbed:
        slurm = testbed.slurm
        leaves = "SwitchName=s1 Nodes=n1,n3\nSwitchName=s2 Nodes=n2,n4\nSwitchName=root Switches=s1,s2\n"
        (slurm.folder / "topology.conf").write_text(leaves)
        slurm.run(("scontrol", "reconfigure"))
        wait_until("the topology", lambda: "Nodes=n1,n3" in slurm.run(("scontrol", "show", "topology")).stdout)
        yield slurm


@pytest.fixture
def site(wired: Slurm, distlaunch: Cli) -> Iterator[Login]:
    """Leaves the cluster idle."""
    login = Login(distlaunch, wired)
    login.write("show.py", SHOW)
    yield login
    wired.cancel_all()
    wired.wait_idle()


def end(terminal: subprocess.Popen[bytes]) -> Result:
    stdout, stderr = terminal.communicate(timeout=150)
    return Result(terminal.returncode, stdout.decode(), stderr.decode())


def found(done: Result) -> list[list[str]]:
    """What each worker has printed, in rank order."""
    assert done.exit_code == 0, done.stderr
    return sorted((line.split()[2:] for line in done.stdout.splitlines() if "found" in line), key=lambda words: int(words[0]))


def test_gpus_processors_and_ranks_are_those_of_the_job(site: Login) -> None:
    show = ("--log-ranks", "all", "show.py")
    gpus = site.start("slurm", "--nodes", "2", "--gpus-per-node", "2", "--cpus-per-task", "4", *show)
    unequal = site.start("slurm", "--nodes", "2", "--sbatch", "gpus=3", *show)
    order = site.start("slurm", "--nodes", "4", "--cpus-per-task", "2", "--env", "OMP_NUM_THREADS=7", *show)

    names = ["n1", "n2", "n3", "n4"]
    two = found(end(gpus))
    nodes = [row[3] for row in two]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert [row[:3] for row in two] == [[str(rank), str(rank % 2), "4"] for rank in range(4)]
    assert [row[4:] for row in two] == [["0,1", "4", "2"]] * 4
    three = found(end(unequal))
    assert [row[:3] for row in three] in (
        [["0", "0", "3"], ["1", "1", "3"], ["2", "0", "3"]],
        [["0", "0", "3"], ["1", "0", "3"], ["2", "1", "3"]],
    )
    assert len({row[3] for row in three}) == 2
    four = found(end(order))
    assert [row[3] for row in four] == ["n1", "n3", "n2", "n4"] != names
    assert [row[5:] for row in four] == [["2", "7"]] * 4


def test_an_elastic_run_takes_as_many_nodes_as_there_are(site: Login) -> None:
    all_four = found(site("slurm", "--nodes", "2:4", "--log-ranks", "all", "show.py"))
    site.slurm.drain(site.slurm.hosts[1])
    try:
        three = found(site("slurm", "--nodes", "2:4", "--log-ranks", "all", "show.py"))
    finally:
        site.slurm.resume(site.slurm.hosts[1])

    assert {row[2] for row in all_four} == {"4"}
    assert sorted(row[3] for row in all_four) == ["n1", "n2", "n3", "n4"]
    assert {row[2] for row in three} == {"3"}
    assert sorted(row[3] for row in three) == ["n1", "n3", "n4"]


def test_folders_that_nodes_do_not_see_are_one_clear_cause(site: Login) -> None:
    work, folder = site.cli.folder / "work", site.cli.folder / "unseen"
    for path in (work, folder):
        path.mkdir()
    (work / "show.py").write_text(SHOW)
    n1, _, n3, n4 = site.slurm.hosts
    n1.private_folder(work)
    n3.private_folder(folder)
    n4.private_folder(folder)
    env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(folder)}
    try:
        argv = ("slurm", "--nodes", "2", "--nodelist")
        no_script = site.cli.start(*argv, "n[1-2]", "show.py", env=site.env(), cwd=work)
        nowhere = site.start(*argv, "n[3-4]", "show.py", env=env)
        told = {"no_script": end(no_script), "nowhere": end(nowhere)}
        told["not_everywhere"] = site(*argv, "n[2-3]", "show.py", env=env)
        alone = site.cli(*argv, "n[1-2]", "--detach", "show.py", env=site.env(), cwd=work).stdout.strip()
        # Nobody follows it: the node without the script tells the other one, which waits for it.
        wait_until("the end", lambda: site("status", alone, "--output", "json").json["result"]["exit_code"] == 1, limit_s=90)
    finally:
        n1.shared_folder(work)
        n3.shared_folder(folder)
        n4.shared_folder(folder)

    assert {done.exit_code for done in told.values()} == {1}
    assert (
        f"the script failed: FileNotFoundError: [Errno 2] No such file or directory: '{work}/show.py'" in told["no_script"].stderr
    )
    assert re.search(r"first failure: .*host n1", told["no_script"].stderr)
    assert "the run folder must be on a file system that all nodes see" in told["nowhere"].stderr
    assert re.search(r"a node failed: the agent could not start on n3: .*agent\.pyz.*No such file", told["not_everywhere"].stderr)
    assert re.search(r"first failure: host n3", told["not_everywhere"].stderr)


def test_a_user_who_is_not_root_runs_jobs(wired: Slurm) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "show.py").write_text(SHOW)
        paths = (str(ROOT), *(path for path in sys.path if path.endswith("site-packages")))
        env = {**wired.env(), "HOME": name, "PYTHONPATH": ":".join(paths), "DISTLAUNCH_RUNS_DIR": f"{name}/runs"}
        user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", 'exec "$0" "$@"')
        own = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"  # where ours is in root's home

        def usable(python: str) -> bool:
            tried = subprocess.run([*user, python, "-c", "import torch, launcher"], cwd=name, env=env, capture_output=True)
            return tried.returncode == 0

        python = next(filter(usable, (os.path.realpath(sys.executable), own)), None)
        if python is None:
            pytest.skip("no Python with torch that other users can run")
        launcher = [*user, python, "-m", "launcher", "slurm", "--nodes", "2", "--log-ranks", "all", "show.py"]
        done = subprocess.run(launcher, cwd=name, env=env, capture_output=True, text=True, timeout=120)

        rows = found(Result(done.returncode, done.stdout, done.stderr))
        assert [row[:3] for row in rows] == [["0", "0", "2"], ["1", "0", "2"]]
        run = next(folder.glob("runs/show-*"))
        assert {path.stat().st_uid for path in (run, run / "job.out", run / "nodes/1/stream")} == {65534}
        assert run.stat().st_mode & 0o077 == 0


def test_two_runs_that_ask_for_the_same_port_do_not_meet(site: Login) -> None:
    site.write("holds.py", "import os, time\nprint('ready', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.1)\n")
    argv = ("slurm", "--nodes", "2", "--nodelist", "n[1-2]", "--master-port", "23456")
    first = site.start(*argv, "--name", "first", "holds.py")
    run = wait_until("the first run", lambda: next((path.name for path in site.cli.runs.glob("first-*")), ""), limit_s=60)
    logs = site.start("logs", "-f", run)
    wait_until("it to hold its port", lambda: "ready" in site("logs", run).stdout, limit_s=90, every_s=0.5)

    second = site(*argv, "--name", "second", "show.py")
    watcher = site.start("logs", "-f", run)
    site.write("go", "")

    assert second.exit_code == 1
    assert "port 23456" in second.stderr
    assert "Traceback" not in second.stderr
    assert end(first).exit_code == 0
    for seen in (end(logs), end(watcher)):  # from before it began, and from its middle
        assert seen.exit_code == 0, seen.stderr
        assert seen.stdout.count("ready") == 2


TEXTS = (
    "account", "qos", "partition", "constraint", "reservation", "gres", "gpus-per-node", "mem", "nodelist", "exclude",
    "dependency", "licenses", "switches", "nice", "mail-type", "mail-user", "wckey",
)  # fmt: skip
"""Options of the backend that take a text; some Slurm takes as they are, without accounting."""


@pytest.mark.parametrize("option", TEXTS)
def test_no_text_in_an_option_is_a_command(site: Login, option: str) -> None:
    evil = "x\"; touch $(pwd)/owned; `touch owned`; 'y' # & | > owned"

    shown = site("slurm", "--dry-run", f"--{option}", evil, "reduce.py")
    done = site("slurm", "--detach", f"--{option}", evil, "--sbatch", "hold", "reduce.py")

    assert shown.exit_code == 0, shown.stderr
    assert "Traceback" not in done.stderr
    assert done.exit_code in (0, 2), done.stderr
    assert done.exit_code == 0 or done.stderr.count("error[bad_spec]: sbatch: ") == 1, done.stderr
    assert not list(site.cli.folder.rglob("owned"))


def test_no_text_for_the_job_file_itself_is_a_command(site: Login) -> None:
    evil = "$(touch owned) `touch owned`; \"'"
    folder = site.cli.folder / f"a folder {evil.replace('/', '')}"
    folder.mkdir()
    (folder / "it's.py").write_text(SHOW)

    done = site.cli("slurm", "--name", evil, "--env", f"V={evil}", "it's.py", evil, env=site.env(), cwd=folder)

    assert found(done)[0][0] == "0"
    assert not list(site.cli.folder.rglob("owned"))
