"""The hosts' network: a bridge in its own network namespace, to which each host and this machine have one link."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import processes
from testbed.errors import TestbedError
from testbed.hosts import LINK, Host
from testbed.processes import Process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testbed.registry import Record

SWITCH = "switch"
MACHINE = "submit"
"""The hosts' name for this machine, where users are."""

CONTROLLER = "ctl"
SHARED_MEMORY = "/dev/shm"
"""Each host has its own."""

_NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default")
_NEIGHBOURS_PER_TESTBED = 16384
"""The kernel has one neighbour table for all namespaces, by default of 1024: 32 hosts that all know one another."""


def address(record: Record, number: int) -> str:
    """The address of host `number`, from 1; 253 is this machine, 254 the controller."""
    return str(record.network[number])


def build(record: Record, names: Sequence[str], directory: Path, made: dict[str, Host]) -> None:
    """Create the hosts and the controller, also a host, with links and names; `made` collects those started."""
    make_room(len(names))
    numbers = {name: number for number, name in enumerate(names, 1)} | {CONTROLLER: 254}
    switch = record.netns(SWITCH)
    ip("".join(f"netns add {record.netns(name)}\n" for name in (SWITCH, *numbers)))
    # The bridge is not in this machine's namespace, where a firewall (Docker's) might filter its traffic.
    ip(links(record, tuple(numbers)), "-netns", switch)
    ip(f"link set {record.link} addrgenmode none up\naddress add {address(record, 253)}/24 dev {record.link}\n")
    write_names(directory, {address(record, number): name for name, number in numbers.items()}, address(record, 253))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: host(record, name, address(record, numbers[name]), directory, made), numbers))


def make_room(hosts: int) -> None:
    """Raise the kernel's limit of neighbours, permanently, if there are more hosts than a test usually has."""
    for name, least in (("gc_thresh3", _NEIGHBOURS_PER_TESTBED), ("gc_thresh2", _NEIGHBOURS_PER_TESTBED // 2)):
        file = _NEIGHBOURS / name
        if hosts > 8 and file.exists() and int(file.read_text()) < least:
            file.write_text(str(least))


def links(record: Record, names: Sequence[str]) -> str:
    """The bridge and its links, as a batch for `ip` in the switch's namespace."""
    lines = [
        "link set lo up",
        "link add br0 type bridge stp_state 0 forward_delay 0",
        "link set br0 addrgenmode none up",
    ]
    ends = {name: f"peer name {LINK} netns {record.netns(name)}" for name in names}
    ends["machine"] = f"peer name {record.link} netns {os.getpid()}"
    for name, peer in ends.items():
        lines += [f"link add {name} type veth {peer}", f"link set {name} addrgenmode none master br0 up"]
    return "\n".join(lines) + "\n"


def write_names(directory: Path, names: dict[str, str], machine: str) -> None:
    """Write the hosts' own /etc/hosts, and a resolv.conf without a name server, because none can be reached."""
    known = {
        "127.0.0.1": "localhost",
        "::1": "localhost ip6-localhost",
        **names,
        machine: f"{socket.gethostname()} {MACHINE}",
    }
    (directory / "etc").mkdir(exist_ok=True)
    (directory / "etc/hosts").write_text("".join(f"{address}\t{name}\n" for address, name in known.items()))
    (directory / "etc/resolv.conf").write_text("# no name server: nothing leaves the testbed\n")


def host(record: Record, name: str, own_address: str, directory: Path, begun: dict[str, Host]) -> None:
    """Start the process that holds a host's namespaces, and set them up."""
    argv = (
        "nsenter", f"--net=/run/netns/{record.netns(name)}",
        "unshare", "--uts", "--mount", "--propagation", "slave", "sh", "-c", "echo; exec sleep infinity >/dev/null",
    )  # fmt: skip
    null = subprocess.DEVNULL
    popen = subprocess.Popen(argv, cwd="/", stdin=null, stdout=subprocess.PIPE, start_new_session=True)
    anchor = Process.of(popen.pid)
    assert popen.stdout
    with popen.stdout:
        if anchor:
            begun[name] = made = Host(name, own_address, record.netns(name), record.netns(SWITCH), anchor, popen)
            (record.state / "anchors" / name).write_text(f"{anchor.pid} {anchor.start_ticks}")
        if not anchor or not popen.stdout.readline():  # it prints a line once it is in its namespaces
            raise TestbedError(f"{name}: `{' '.join(argv)}` ended with {popen.wait()}")
    ip(
        f"link set lo up\nlink set {LINK} addrgenmode none up\naddress add {own_address}/24 dev {LINK}\n",
        "-netns", record.netns(name),
    )  # fmt: skip
    made.run(("hostname", name), check=True, cwd="/")
    made.run(("mount", "--all", "--fstab", str(mounts(directory, name))), check=True, cwd="/")


def mounts(directory: Path, name: str) -> Path:
    """Write the fstab of a host's private mounts; return its path."""
    boot_id = directory / "etc" / f"{name}.boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    fstab = directory / "etc" / f"{name}.fstab"
    fstab.write_text(
        f"{escape(directory)}/etc/hosts /etc/hosts none bind 0 0\n"
        f"{escape(directory)}/etc/resolv.conf {escape(Path('/etc/resolv.conf').resolve())} none bind 0 0\n"
        f"{escape(boot_id)} /proc/sys/kernel/random/boot_id none bind 0 0\n"  # NCCL and others identify a host by it
        f"{name} {SHARED_MEMORY} tmpfs mode=1777 0 0\n"  # not `tmpfs`: `mount --all` would take this machine's for it
    )
    return fstab


def escape(path: Path) -> str:
    """A path, escaped for fstab."""
    return str(path).replace("\\", r"\134").replace(" ", r"\040").replace("\t", r"\011").replace("\n", r"\012")


def ip(batch: str, *options: str) -> None:
    """Run a batch of `ip` commands."""
    processes.run(("ip", *options, "-batch", "-"), stdin=batch, timeout_s=120, check=True)
