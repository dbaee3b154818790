"""What `rm` removes behind a login node: what only that run has used, and nothing that a run has written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.slurm.laptop import LIMIT_S
from tests.slurm.test_through_login import WAITS, packs

if TYPE_CHECKING:
    from tests.slurm.laptop import Laptop

pytestmark = pytest.mark.slurm

WRITES = "open('result.txt', 'w').write('result')\n"


def projects(laptop: Laptop) -> list[str]:
    return sorted(path.name.rpartition("-")[0] for path in (laptop.top / "projects").iterdir())


def ran(laptop: Laptop, cluster: str, *words: str) -> str:
    done = laptop("run", "--on", cluster, "--gres", "none", "--detach", *words)
    assert done.exit_code == 0, done.stderr
    run = done.stdout.strip()
    laptop.wait_end(run)
    return run


def test_what_two_clusters_share_stays_while_a_run_uses_it_and_then_goes(laptop: Laptop) -> None:
    one = laptop.cli.directory / "system.toml"
    laptop.settings()
    one.write_text(one.read_text() + one.read_text().replace("juno", "juno2").replace('"juno2"', '"juno"'))
    laptop.cli.write("waits.py", WAITS)
    first, second = ran(laptop, "juno", "waits.py", "1", "0"), ran(laptop, "juno2", "waits.py", "2", "0")
    sent = packs(laptop)

    removed = laptop("rm", first)
    between, used = packs(laptop), projects(laptop)
    last = laptop("rm", second)

    assert len(sent) == 1, "sent once"
    assert (removed.exit_code, last.exit_code) == (0, 0), removed.stderr
    assert between == sent
    assert len(used) == 1
    assert (packs(laptop), projects(laptop), list((laptop.top / "runs").iterdir())) == (set(), [], [])
    again = ran(laptop, "juno", "waits.py", "1", "0")
    assert laptop.status(again)["state"] == "success", "all is sent again"


def test_a_directory_in_which_a_run_has_written_stays_and_is_named(laptop: Laptop) -> None:
    laptop.cli.write("writes.py", WRITES)
    run = ran(laptop, "juno", "writes.py")
    (project,) = (laptop.top / "projects").iterdir()

    pruned = laptop("prune", "--older-than", "0.01s")

    assert pruned.exit_code == 0, pruned.stderr
    assert f"juno: {project} stays: runs have written files there" in pruned.stderr
    assert (project / "work/result.txt").read_text() == "result"
    assert not (laptop.top / "runs" / run).exists()
    assert packs(laptop) == set()


def test_files_stay_that_a_run_uses_however_many_others_there_are_and_if_that_cannot_be_read(laptop: Laptop) -> None:
    """Linux takes at least 128 KiB of arguments; here, the names of all runs are longer."""
    laptop.cli.write("waits.py", WAITS)
    first, second, third = (ran(laptop, "juno", "waits.py", "1", "0") for _ in range(3))
    sent = packs(laptop)
    many = [laptop.top / "runs" / f"{number:0200}" for number in range(1000)]
    for directory in many:
        directory.mkdir()
        (directory / "uses").touch()
    shell = laptop.cli.write("shell", '#!/bin/sh\nulimit -s 256\neval "$SSH_ORIGINAL_COMMAND"\n')
    shell.chmod(0o755)
    laptop.node.configure(ForceCommand=str(shell))
    try:
        removed = laptop("rm", first)
    finally:
        laptop.node.configure(ForceCommand="")
    left = packs(laptop)
    laptop.node.stand_in("cat", "echo cat: Stale file handle >&2; exit 1")
    try:
        unread = laptop("rm", second)
    finally:
        laptop.node.stand_in("cat")
    kept = packs(laptop)
    last = laptop("rm", third)

    assert (removed.exit_code, unread.exit_code, last.exit_code) == (0, 0, 0), unread.stderr
    assert left == kept == sent != set()
    assert f"juno: what no run uses stays in {laptop.top} for now: cat: Stale file handle" in unread.stderr
    assert packs(laptop) == set()


def test_files_of_a_launch_that_is_being_sent_stay(laptop: Laptop) -> None:
    """The launch has been told that its files are there, and its job is not sent yet."""
    laptop.cli.write("waits.py", WAITS)
    first = ran(laptop, "juno", "waits.py", "1", "0")
    gate, begun = laptop.home / "gate", laptop.home / "begun"
    laptop.node.stand_in("tar", f': >{begun}; while [ ! -e {gate} ]; do sleep 0.1; done; exec "$real" "$@"')
    try:
        launcher = laptop.follow("--gres", "none", "waits.py", "1", "0")
        wait_until("the launch", begun.exists, limit_s=LIMIT_S)
        removed = laptop("rm", first)
        gate.touch()
        code, said = launcher.end()
    finally:
        gate.touch()
        laptop.node.stand_in("tar")

    assert removed.exit_code == 0, removed.stderr
    assert code == 0, said
    assert launcher.lines == ["line 0"]
    assert not list((laptop.top / "claims").iterdir())


def test_a_file_that_changes_while_it_is_sent_is_named_and_nothing_is_submitted(laptop: Laptop) -> None:
    """The login node reads no more until the file has changed: not all of it fits into what is on the way."""
    laptop.cli.write("waits.py", WAITS)
    large = laptop.cli.write("large.bin", "x" * 30_000_000)
    gate, begun = laptop.home / "gate", laptop.home / "begun"
    laptop.node.stand_in("tar", f': >{begun}; while [ ! -e {gate} ]; do sleep 0.1; done; exec "$real" "$@"')
    try:
        launcher = laptop.follow("--gres", "none", "waits.py", "1", "0")
        wait_until("the launch", begun.exists, limit_s=LIMIT_S)
        with large.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"y")
        gate.touch()
        code, said = launcher.end()
    finally:
        gate.touch()
        laptop.node.stand_in("tar")

    assert code == 2, said
    assert "large.bin changed while it was read" in said
    assert "start again" in said
    wait_until("an empty directory", lambda: not list(laptop.top.glob("incoming.*")), limit_s=LIMIT_S)
    assert packs(laptop) == set()
    assert not laptop.node.slurm.run(("squeue", "--noheader")).stdout
    again = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
    assert again.exit_code == 0, again.stderr
    assert len(packs(laptop)) == 1
