"""This machine's testbeds: each has an index, from which its names and addresses are made, and an owner process."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import kube_cgroups, processes
from testbed.errors import NotAvailableError
from testbed.processes import Process

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE = Path("/run/distlaunch-testbed")
NETNS = Path("/run/netns")
LIMIT = 100


@dataclass(frozen=True, slots=True)
class Record:
    """One testbed, recorded for the process that cleans up after its owner."""

    index: int
    pid: int
    start_ticks: int
    directory: str
    own_directory: bool
    """Whether the directory was created for it, and is removed with it."""

    @property
    def owner(self) -> Process:
        """The process that brought it up."""
        return Process(self.pid, self.start_ticks)

    @property
    def state(self) -> Path:
        """The directory of its sockets; its path is always short."""
        return STATE / str(self.index)

    @property
    def network(self) -> ipaddress.IPv4Network:
        """Its network."""
        return network(self.index)

    @property
    def link(self) -> str:
        """This machine's link into it."""
        return f"dlt{self.index}"

    def anchors(self) -> list[Process]:
        """The processes that hold its hosts' namespaces."""
        found = []
        for path in (self.state / "anchors").glob("*"):
            with contextlib.suppress(OSError, ValueError):
                pid, ticks = path.read_text().split()
                found.append(Process(int(pid), int(ticks)))
        return found

    def cgroup(self, host: str) -> str:
        """The name of the control groups of a host's containers."""
        return f"distlaunch-testbed-{self.index}-{host}"

    def netns(self, host: str) -> str:
        """The name of a host's network namespace, as `ip netns` shows it."""
        return f"dlt{self.index}-{host}"


def network(index: int) -> ipaddress.IPv4Network:
    """The private range of one testbed."""
    return ipaddress.IPv4Network(f"10.77.{index}.0/24")


def claim(directory: Path, *, own_directory: bool) -> Record:
    """Claim a free index for this process, after removing what dead owners left behind."""
    me = Process.of(os.getpid())
    assert me
    with locked():
        clean()
        taken = routed()
        for index in range(LIMIT):
            record = Record(index, me.pid, me.start_ticks, str(directory), own_directory)
            if not record.state.exists() and not any(network(index).overlaps(other) for other in taken):
                write(record)
                return record
    raise NotAvailableError(f"the testbed found no free network in 10.77.0.0/16: {LIMIT} tried")


def write(record: Record) -> None:
    """Write a record, atomically."""
    new = STATE / f"{record.index}.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o755)
    (new / "anchors").mkdir()
    (new / "record.json").write_text(json.dumps(asdict(record)))
    new.rename(record.state)


def read() -> list[Record]:
    """All testbeds of this machine."""
    found = []
    for path in sorted(STATE.glob("*/record.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            if path.parent.name.isdigit():  # else it is being written
                found.append(Record(**json.loads(path.read_text())))
    return found


def left_over() -> list[Record]:
    """Testbeds whose owner is dead."""
    return [record for record in read() if not record.owner.alive()]


def clean() -> list[Record]:
    """Remove what testbeds of dead owners left behind; the lock must be held."""
    dead = left_over()
    known = {record.index for record in read()}
    for path in STATE.iterdir():
        if path.suffix == ".new":  # its owner was killed while writing it
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.isdigit() and int(path.name) not in known and not may_live(path):  # its remover was killed
            remove(Record(int(path.name), 0, 0, "", own_directory=False))
    for record in dead:
        remove(record)
    return dead


def may_live(state: Path) -> bool:
    """Whether a testbed that `read` cannot read may have an owner that lives, as one of another version of this."""
    try:
        told = json.loads((state / "record.json").read_text())
        return Process(told["pid"], told["start_ticks"]).alive()
    except FileNotFoundError:
        return False
    except (OSError, ValueError, TypeError, KeyError):
        return True


def remove(record: Record) -> None:
    """Kill all processes of a testbed and remove its namespaces, links and mounts; a second call does nothing."""
    names = sorted(NETNS.glob(record.netns("*")))
    with processes.pinned(record.anchors(), names) as own:
        processes.end(own)
    kube_cgroups.remove(record.cgroup("*"))  # containers are in namespaces of their own
    processes.run(("ip", "link", "delete", record.link), timeout_s=120)
    batch = "".join(f"netns delete {path.name}\n" for path in names)
    processes.run(("ip", "-batch", "-"), stdin=batch, timeout_s=120, check=True)
    if record.own_directory:
        shutil.rmtree(record.directory, ignore_errors=True)
    shutil.rmtree(record.state, ignore_errors=True)


def routed() -> list[ipaddress.IPv4Network]:
    """The networks to which this machine has a route, other than the default."""
    answer = processes.run(("ip", "-json", "-4", "route"), timeout_s=120, check=True)
    return [
        ipaddress.IPv4Network(route["dst"]) for route in json.loads(answer.stdout or "[]") if route["dst"] != "default"
    ]


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Lock this machine's list of testbeds."""
    STATE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (STATE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
