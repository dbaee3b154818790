"""`distlaunch ansible` from this host to hosts with a real sshd."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from launcher.backends.ansible import ahead
from launcher.system import proc
from testbed import WaitError, processes
from testbed.running import Running
from tests.command import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from testbed import Host, SshHosts
    from testbed.processes import Process
    from tests.command import Cli

ENDING_S = 120.0
"""The end of a run takes no longer from one of its processes to the next."""

SUM = """
# Rank r brings r + 1; rank 0 adds them up at MASTER_ADDR, beside the port of the workers' store, and tells all.
import os, socket, time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
if rank == 0:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", place[1]))
        server.listen(world)
        peers = [server.accept()[0] for _ in range(world - 1)]
    total = 1 + sum(int(peer.makefile().readline()) for peer in peers)
    for peer in peers:
        peer.sendall(b"%d\\n" % total)
else:
    while True:
        try:
            peer = socket.create_connection(place, timeout=60)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)  # rank 0 does not listen yet, and nothing tells when it does
    peer.sendall(b"%d\\n" % (rank + 1))
    total = int(peer.makefile().readline())
print(f"rank {rank}/{world} on {os.uname().nodename}: sum {total}", flush=True)
"""
"""As reduce.py, for what is not about torch: that all ranks are there, and reach rank 0."""

WAITS = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", *sorted(name for name in os.environ if name == "TOKEN"), flush=True)
signal.sigwait([signal.SIGTERM])
left = float(open(os.environ["DISTLAUNCH_DEADLINE_FILE"]).read()) - time.time()
print("saving with", "time" if left > 1 else "no time", "left", flush=True)
raise SystemExit(143)
"""


def is_sshd(command: str) -> bool:
    """Whether that is the server, or one of its connections."""
    return re.match(r"sshd: |\S*/sshd(-session)? ", command) is not None


def results(*commands: Running) -> list[Result]:
    """What commands have done that run side by side, once all have ended."""
    return [Result(command.end(), command.stdout, command.stderr) for command in commands]


class Gate:
    """Where workers wait until the test lets them continue: `open(f"{argv}.{rank}", "rb", buffering=0).read(1)`."""

    def __init__(self, path: Path, ranks: Sequence[int]) -> None:
        self.path = path
        self._fds = {}
        for rank in ranks:
            os.mkfifo(f"{path}.{rank}")
            os.chmod(f"{path}.{rank}", 0o666)
            self._fds[rank] = os.open(f"{path}.{rank}", os.O_RDWR)  # with a reader it does not wait for one

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> None:
        """Let all ranks continue."""
        for fd in self._fds.values():
            os.write(fd, b"x")

    def close(self) -> None:
        """Ranks that still wait here read the end of the file."""
        for fd in self._fds.values():
            os.close(fd)


@dataclass
class Rack:
    """Hosts that share only what this host has, and a shell here, in a directory with scripts."""

    cli: Cli
    ssh: SshHosts
    remote: Path
    _private: list[Host] = field(default_factory=list)
    _running: list[Running] = field(default_factory=list)
    _gates: list[Gate] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """Where commands run."""
        return self.cli.directory / "work"

    def argv(
        self, *args: str, inventory: Path | str | None = None, python: str | None = sys.executable
    ) -> tuple[str, ...]:
        """The command line; `args` after it win."""
        where = ("--inventory", str(inventory or self.ssh.inventory), "--remote-dir", str(self.remote))
        return ("ansible", *where, *(("--python", python) if python else ()), *args)

    def __call__(
        self,
        *args: str,
        inventory: Path | str | None = None,
        python: str | None = sys.executable,
        env: dict[str, str | None] | None = None,
    ) -> Result:
        """Run `distlaunch ansible` to its end. Without `python`, each host's own is that of the inventory."""
        return self.shell(*self.argv(*args, inventory=inventory, python=python), env=env)

    def shell(self, *args: str, env: dict[str, str | None] | None = None) -> Result:
        """Run another command to its end."""
        return self.cli(*args, env=env, cwd=self.directory, timeout_s=240)

    def start(self, *args: str, inventory: Path | None = None, **more: Any) -> Running:
        """Start `distlaunch ansible` and leave it running."""
        return self.open(*self.argv(*args, inventory=inventory), **more)

    def open(self, *args: str, **more: Any) -> Running:
        """Start another command and leave it running; it ends with the test."""
        self._running.append(Running(self.cli.start(*args, **{"cwd": self.directory, **more})))
        return self._running[-1]

    def detached(self, *args: str) -> str:
        """Submit a detached run; its id."""
        done = self("--detach", *args)
        assert done.exit_code == 0, done.stderr
        return done.stdout.strip()

    def id_of(self, name: str) -> str:
        """The run of that name."""
        (path,) = self.cli.runs.glob(f"{name}-2*")
        return path.name

    def state(self, run: str) -> dict[str, Any]:
        """What `distlaunch status` reports."""
        found: dict[str, Any] = self.shell("status", run, "--output", "json").json["result"]
        return found

    def logs(self, run: str) -> Running:
        """`distlaunch logs -f`."""
        return self.open("logs", "-f", run)

    def gate(self, path: Path | str, *ranks: int) -> Gate:
        """A gate for these ranks; a name is in a directory that all hosts see."""
        self._gates.append(Gate(self.cli.directory / path, ranks))
        return self._gates[-1]

    def private_disks(self, *hosts: Host, size_bytes: int | None = None) -> None:
        """Give hosts a disk of their own where the runs are."""
        for host in hosts:
            host.private_directory(self.remote, size_bytes=size_bytes)
            self._private.append(host)

    def left(self, *hosts: Host) -> list[Process]:
        """The processes of any run on these hosts, or on all."""
        return [
            process
            for host in hosts or self.ssh.hosts
            for process in host.processes()
            if not is_sshd(process.command())
        ]

    def write(self, name: str, text: str) -> Path:
        """A file in the working directory."""
        return self.cli.write(f"work/{name}", text)

    def inventory(self, text: str) -> Path:
        """An inventory of its own, with how the testbed's hosts are reached."""
        common = f"[all:vars]\nansible_user=root\nansible_ssh_common_args=-F {self.ssh.config}\n"
        return self.cli.write("inventory.ini", f"{text}\n{common}")

    def wait_nothing_left(self, but: Collection[Process] = ()) -> None:
        """Wait for the end of all processes that runs have started; those that do not end are named."""
        limit, number = 0.0, 0
        while left := [process for process in self.left() if process not in but]:
            if len(left) != number:
                number, limit = len(left), time.monotonic() + ENDING_S
            if time.monotonic() > limit:
                raise WaitError(
                    f"waited {ENDING_S:g} s for the end of " + "; ".join(process.command() for process in left)
                )
            processes.wait_ended(left[:1], limit_s=ENDING_S)

    def close(self) -> None:
        """End the commands that still run."""
        for running in self._running:
            running.close()
        for gate in self._gates:
            gate.close()

    def clean(self, *, wait: bool = True) -> None:
        """Nothing is left, and disks are shared again."""
        self.close()
        try:
            if wait:
                self.wait_nothing_left()
        finally:
            for process in self.left():
                process.send(signal.SIGKILL)
            for host in self._private:
                host.shared_directory(self.remote)


def make(cli: Cli, ssh: SshHosts) -> Rack:
    """A rack whose commands run in a directory that holds the scripts alone."""
    rack = Rack(cli, ssh, cli.directory / "remote")
    rack.directory.mkdir()
    rack.remote.mkdir()
    return rack


@pytest.fixture
def racks() -> Callable[[Cli, SshHosts], Rack]:
    """Makes a rack."""
    return make


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember for the fixtures that a test has failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def rack(request: pytest.FixtureRequest, ssh_hosts: SshHosts, distlaunch: Cli) -> Iterator[Rack]:
    """Four hosts; a process that is left there at the end is a failure, unless there was one before."""
    made = make(distlaunch, ssh_hosts)
    yield made
    made.clean(wait=not request.node.stash.get(FAILED, False))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of a user who has no settings of Ansible elsewhere."""
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def ansible_asked_once() -> Iterator[None]:
    """Each question to ansible-inventory is asked only once."""
    answers: dict[tuple[str, ...], Any] = {}
    ask = proc.run

    def run(argv: list[str], **more: Any) -> Any:
        key = tuple(argv)
        if not key[0].endswith("ansible-inventory"):
            return ask(argv, **more)
        if key not in answers:
            answers[key] = ask(argv, **more)
        return answers[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proc, "run", run)
        yield
    ahead.end()
