"""Nothing is left: after `down`, after a start that fails, and after the owner was killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import NotAvailableError, SlurmOptions, Testbed, TestbedError, fixtures, processes, registry, wait_until
from testbed.running import Running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

    from testbed.processes import Process
    from testbed.registry import Record

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Census:
    """All that a testbed has on this host, by identity: the next testbed may get the same names."""

    record: Record
    directory: Path
    link: int
    processes: list[Process]
    networks: dict[int, str]

    @classmethod
    def of(cls, record: Record) -> Census:
        networks = {path.stat().st_ino: path.name for path in registry.NETNS.glob(record.netns("*"))}
        with processes.pinned(record.anchors()) as own:
            return cls(
                record, Path(record.directory), socket.if_nametoindex(record.link), processes.inside(own), networks
            )

    def left(self) -> list[str]:
        """What is still there."""
        left = [process.command() for process in self.processes if process.alive()]
        networks = {path.name for path in registry.NETNS.glob("dlt*") if path.stat().st_ino in self.networks}
        for record in registry.read():
            if record != self.record:  # the kernel reuses a number once it is free
                networks -= {path.name for path in registry.NETNS.glob(record.netns("*"))}
        left += [f"netns {name}" for name in sorted(networks)]
        left += [f"link {name}" for index, name in socket.if_nameindex() if index == self.link]
        left += [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self.directory) in line]
        return left


@pytest.mark.slurm
@pytest.mark.ssh
def test_nothing_is_left_after_down() -> None:
    with fixtures.make(2, slurm=SlurmOptions(), ssh=True) as testbed:
        script = f"#!/bin/sh\ntouch {testbed.directory}/ran\nexec setsid --fork setsid --fork sleep 1000\n"
        testbed.slurm.sbatch(script)
        wait_until("the job to have started its daemon", (testbed.directory / "ran").exists, limit_s=30)
        testbed.ssh.run(testbed.hosts[0], ("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"), check=True)
        testbed.hosts[1].private_directory(testbed.directory / "logs")
        before = Census.of(testbed.record)
        commands = " ".join(process.command() for process in before.processes)
        assert all(word in commands for word in ("slurmctld", "slurmd -D -N n2", "munged", "sshd", "sleep 1000"))
        assert before.left()

    assert before.left() == []
    assert not before.directory.exists()
    testbed.down()  # a second time does nothing


def test_nothing_is_left_when_a_start_fails(tmp_path: Path) -> None:
    with fixtures.make(1):  # skips this test where there are no testbeds
        testbed = Testbed(tmp_path / "bed")
        with pytest.raises(TestbedError, match="there are 2"):
            testbed.up(2, slurm=SlurmOptions(switches=(1, 2)))

    assert not [record for record in registry.read() if record.directory == str(tmp_path / "bed")]
    with pytest.raises(TestbedError, match="not empty"):
        testbed.up(2)


def test_nothing_is_left_when_there_is_no_network_to_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> NoReturn:
        raise TestbedError("`ip route` fails")

    with fixtures.make(1):  # skips this test where there are no testbeds
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(registry, "routed", none)
        with pytest.raises(TestbedError, match="`ip route` fails"):
            Testbed().up(1)

    assert list(tmp_path.iterdir()) == []


def test_no_testbed_is_started_on_a_disk_without_room(small_disk: Path) -> None:
    with fixtures.make(1):  # skips this test where there are no testbeds
        testbed = Testbed(small_disk / "bed")
        with pytest.raises(NotAvailableError, match=rf"needs 0.5 GB of disk, and 0.0 GB are free in {small_disk}"):
            testbed.up(1)


@dataclass
class Command:
    """`python -m testbed up`, as in a terminal."""

    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, log: Path, *options: str) -> Command:
        """Start it, and wait until it is up."""
        argv = (sys.executable, "-m", "testbed", "up", "--hosts", "2", *options)
        with log.open("wb") as file:
            process = subprocess.Popen(argv, cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
        started = cls(process, log)
        wait_until(
            "the command to be up",
            lambda: "Ctrl-C" in log.read_text() or process.poll() is not None,
            limit_s=60,
            progress=log.read_text,
        )
        assert process.poll() is None, log.read_text()
        return started

    def record(self) -> Record:
        """Its testbed."""
        (record,) = (record for record in registry.read() if record.pid == self.process.pid)
        return record

    def line(self, start: str) -> str:
        """The line of its output that begins with `start`."""
        return next(line.strip() for line in self.log.read_text().splitlines() if line.strip().startswith(start))


@pytest.fixture
def command(bare: Testbed, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start the command with options; it is ended with the test at the latest."""
    begun: list[Command] = []

    def start(*options: str) -> Command:
        begun.append(Command.start(tmp_path / f"{len(begun)}.log", *options))
        return begun[-1]

    yield start
    for started in begun:
        started.process.kill()
        started.process.wait(timeout=60)
    with registry.locked():
        registry.clean()


@pytest.mark.slurm
def test_the_testbed_of_a_killed_owner_is_removed_and_that_of_a_running_one_is_not(
    bare: Testbed, command: Callable[..., Command]
) -> None:
    owner = command("--slurm")
    before = Census.of(owner.record())
    owner.process.kill()
    owner.process.wait(timeout=60)
    assert before.left()

    done = processes.run((sys.executable, "-m", "testbed", "clean"), timeout_s=120, cwd=str(ROOT), check=True)

    assert before.left() == []  # even if another process has removed it, which takes the lock
    assert not before.directory.exists()
    assert (
        f"testbed {bare.record.index} (10.77.{bare.record.index}.0/24) belongs to process {os.getpid()}" in done.stdout
    )
    assert bare.hosts[0].run(("hostname",)).stdout.strip() == "n1"


PYTEST = """
import signal
from testbed import fixtures, wait_until

def test_that_takes_long():
    with fixtures.make(2, ssh=True) as testbed:
        host = testbed.hosts[0]
        host.popen(("setsid", "--fork", "sleep", "1000"))
        wait_until("its daemon", lambda: "sleep 1000" in [process.command() for process in host.processes()])
        print("it is up", flush=True)
        signal.pause()
"""


@pytest.mark.ssh
def test_the_next_testbed_removes_what_a_killed_pytest_has_left(bare: Testbed, tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(PYTEST)
    argv = (sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", str(tmp_path / "test_long.py"))
    options = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "start_new_session": True,
    }
    process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **options)  # type: ignore[call-overload]
    killed = Running(process)
    try:
        killed.until("it is up")
        (record,) = (record for record in registry.read() if record.pid == process.pid)
        before = Census.of(record)
        assert "sleep 1000" in " ".join(before.left())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        killed.close()

    with fixtures.make(1):
        assert before.left() == []
        assert not before.directory.exists()
        assert record not in registry.read()
        assert bare.hosts[0].run(("hostname",)).stdout.strip() == "n1"


def test_what_a_removal_or_a_write_that_was_killed_has_left_is_removed_too(bare: Testbed) -> None:
    """Both are directories that no testbed would use again."""
    torn, unfinished = registry.STATE / "99", registry.STATE / "98.new"
    with registry.locked():
        for directory in (torn / "anchors", unfinished):
            directory.mkdir(parents=True, exist_ok=True)

        removed = registry.clean()

    assert not torn.exists()
    assert not unfinished.exists()
    assert bare.record not in removed
    assert bare.hosts[0].run(("hostname",)).stdout.strip() == "n1"


@pytest.mark.slurm
@pytest.mark.ssh
def test_the_command_prints_how_to_use_it_and_ends_on_ctrl_c(command: Callable[..., Command]) -> None:
    owner = command("--gpus", "8", "--ssh")
    before = Census.of(owner.record())
    conf = owner.line("export SLURM_CONF=").partition("=")[2]
    names = processes.run(owner.line("srun").split(), timeout_s=60, env={**os.environ, "SLURM_CONF": conf}).stdout
    name = processes.run(owner.line("ssh").split(), timeout_s=60).stdout

    os.killpg(owner.process.pid, signal.SIGINT)

    assert owner.process.wait(timeout=60) == 0
    assert sorted(names.split()) == ["n1", "n2"]
    assert name.strip() == "n1"
    assert owner.log.read_text().splitlines()[-1] == "taken down"
    assert before.left() == []
