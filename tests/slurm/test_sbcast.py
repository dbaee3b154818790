"""With many nodes, the agent reaches their own disks through sbcast; here a few nodes are many."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.slurm.roles import PAIR
from tests.slurm.scripts import WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.slurm.conftest import Login

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

AGENT = """
import os, sys
from pathlib import Path
pid, found = os.getpid(), None
while pid > 1 and not found:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(bytes(1))
    found = next((os.fsdecode(word) for word in words if word.endswith(b"/agent.pyz")), None)
    pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
top = Path(found).parent
print("agent in", top, oct(top.stat().st_mode & 0o777), sorted(path.name for path in top.iterdir()), flush=True)
"""
"""Where the agent's archive is, which the worker's own process was started with, and what else is there."""

FALLS_BACK = "all nodes read the agent from the shared disk, as sbcast to"


@contextmanager
def own_disks(login: Login, *, size_bytes: int | None = None) -> Iterator[Path]:
    """A directory that is on a disk of its own on each node."""
    directory = login.cli.directory / "own disk"
    directory.mkdir()
    for host in login.slurm.hosts:
        host.private_directory(directory, size_bytes=size_bytes)
    try:
        yield directory
        assert [*left(login, directory)] == [], "nothing is left"
    finally:
        for host in login.slurm.hosts:
            host.shared_directory(directory)


def left(login: Login, directory: Path) -> Iterator[Path]:
    """What is in the directory on any node."""
    for host in login.slurm.hosts:
        yield from host.path(directory).iterdir()


def many(directory: Path) -> tuple[str, ...]:
    """Options with which two nodes are many."""
    return ("--sbcast-above", "1", "--node-dir", str(directory))


def test_the_agent_runs_from_each_nodes_own_disk_and_is_removed_at_the_end(login: Login) -> None:
    login.write("agent.py", AGENT)
    with own_disks(login) as disk:
        done = login("slurm", "--nodes", "2", "--log-ranks", "all", *many(disk), "agent.py")
        few = login("slurm", "--nodes", "1", "--log-ranks", "all", *many(disk), "agent.py")
        login.slurm.wait_idle()

    assert done.exit_code == few.exit_code == 0, done.stderr + few.stderr
    assert done.stdout.count(f"agent in {disk}/distlaunch-") == 2
    assert done.stdout.count(" 0o700 ['agent.pyz', 'key', 'spec.json']\n") == 2
    assert f"agent in {login.cli.runs}/" in few.stdout


def test_tasks_of_an_array_and_roles_have_it_from_there_too(login: Login) -> None:
    login.write("agent.py", AGENT)
    login.write("pair.toml", PAIR.replace("talks.py", "agent.py"))
    with own_disks(login) as disk:
        array = login("slurm", "--name", "array", "--array", "0-1", "--nodes", "2", *many(disk), "agent.py")
        roles = login("slurm", "--log-ranks", "all", *many(disk), "--roles", "pair.toml")
        login.slurm.wait_idle()

    assert array.exit_code == roles.exit_code == 0, array.stderr + roles.stderr
    assert FALLS_BACK not in array.stderr + roles.stderr
    told = [login("logs", run, "--rank", "all").stdout for run in _runs(login, "array")]
    assert "".join(told).count(f"agent in {disk}/distlaunch-") == 4
    assert roles.stdout.count(f"agent in {disk}/distlaunch-") == 6, roles.stdout


def _runs(login: Login, name: str) -> list[str]:
    (path,) = login.cli.runs.glob(f"{name}-*")
    return [f"{path.name}/{task}" for task in (0, 1)]


def test_without_room_or_a_directory_the_shared_disk_serves_and_that_is_reported(login: Login) -> None:
    login.write("agent.py", AGENT)
    with own_disks(login, size_bytes=1 << 16) as disk:
        full = login("slurm", "--nodes", "2", "--log-ranks", "all", *many(disk), "agent.py")
        none = login("slurm", "--nodes", "2", "--log-ranks", "all", *many(disk / "none"), "agent.py")
        login.slurm.wait_idle()

    for done in (full, none):
        assert done.exit_code == 0, done.stderr
        assert done.stdout.count(f"agent in {login.cli.runs}/") == 2
        assert done.stderr.count(FALLS_BACK) == 1
    assert "REQUEST_FILE_BCAST" in full.stderr, "sbcast says no more of a disk that is full"
    assert f"{disk}/none/distlaunch-" in none.stderr


def test_a_cancelled_run_leaves_nothing_and_one_rendered_by_hand_may_have_moved(login: Login) -> None:
    login.write("waits.py", WAITS)
    login.write("agent.py", AGENT)
    with own_disks(login) as disk:
        run = login.follow("waits", "--nodes", "2", *many(disk), "waits.py")
        run.wait_for("ready", times=2)
        assert len([*left(login, disk)]) == 2
        run.interrupt()
        assert run.end().exit_code == 130, run.shown("stderr")
        login("slurm", "--render-to", "rendered", "--nodes", "2", *many(disk), "agent.py")
        moved = (login.cli.directory / "rendered").rename(login.cli.directory / "moved here")
        login.slurm.run(("sbatch", "--wait", "job.sbatch"), cwd=str(moved))
        login.slurm.wait_idle()

    for node in (0, 1):
        told = (moved / "nodes" / str(node) / "stream").read_text()
        assert f"agent in {disk}/distlaunch-" in told
        assert "0o700 ['agent.pyz']" in told, "its directory is where its spec is"
