"""Hosts with several networks."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent import protocol
from testbed import fixtures, wait_until
from testbed.network import ip

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from testbed.hosts import Host
    from testbed.testbed import Testbed

ROOT = Path(__file__).parents[2]


@dataclass
class Nodes:
    """Hosts without a scheduler: agents started by hand, as a backend would."""

    testbed: Testbed
    directory: Path

    @property
    def hosts(self) -> tuple[Host, ...]:
        """n1, n2, ..."""
        return self.testbed.hosts

    def ip(self, host: Host, *lines: str) -> None:
        """`ip` commands in a host."""
        ip("".join(line + "\n" for line in lines), "-netns", host.netns)

    def bridge(self, host: Host, name: str, address: str) -> None:
        """A bridge as docker makes one, with a link in it, so that it is up."""
        self.ip(
            host, f"link add {name} type bridge", f"address add {address} dev {name}",
            f"link add {name}p type veth peer name {name}q", f"link set {name}p master {name} up",
            f"link set {name}q up", f"link set {name} up",
        )  # fmt: skip
        self.wait_up(host, name)

    def wait_up(self, host: Host, name: str) -> None:
        """The kernel reports it up to a second late."""
        argv = ("ip", "-netns", host.netns, "link", "show", name)
        wait_until(f"{name} of {host.name} to be up", lambda: "state UP" in self.testbed.controller.run(argv).stdout)

    def second_link(self, host: Host, name: str, address: str, *, bridge: str) -> None:
        """Another link of a host, to a bridge that is made if it is missing; hosts on one bridge reach one another."""
        have = self.testbed.controller.run(("ip", "-netns", host.switch, "link", "show", bridge)).returncode == 0
        end = f"{host.name}{name}"
        if not have:
            ip(
                f"link add {bridge} type bridge stp_state 0 forward_delay 0\nlink set {bridge} up\n",
                "-netns",
                host.switch,
            )
        ip(
            f"link add {end} type veth peer name {name} netns {host.netns}\nlink set {end} master {bridge} up\n",
            "-netns",
            host.switch,
        )
        self.ip(host, f"link set {name} up", f"address add {address} dev {name}" + " nodad" * (":" in address))
        self.wait_up(host, name)

    def only_ipv6(self) -> None:
        """Only IPv6 addresses, and host names that mean loopback, as on Debian."""
        for number, host in enumerate(self.hosts):
            self.ip(
                host,
                f"address delete {host.address}/24 dev eth0",
                f"address add fd00:77::{number + 1}/64 dev eth0 nodad",
            )
            host.run(("mount", "--bind", str(self.hosts_file(host.name)), "/etc/hosts"), check=True, cwd="/")

    def only_on_lo(self) -> None:
        """Each host's address is one of `lo`, and is reached over a link without any."""
        for host in self.hosts:
            peers = [f"route add {each.address}/32 dev eth0 src {host.address}" for each in self.hosts if each != host]
            moved = (f"address delete {host.address}/24 dev eth0", f"address add {host.address}/32 dev lo")
            self.ip(host, *moved, *peers)

    def hosts_file(self, name: str) -> Path:
        """As Debian writes it: the host's own name is 127.0.1.1."""
        path = self.directory / f"hosts-{name}"
        path.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        return path

    def run(self, script: str, name: str = "run", **job: Any) -> list[dict[str, Any]]:
        """An agent per host with a script; returns the events of all, those of node 0 first."""
        from launcher.payload import agent_archive

        directory = self.directory / name
        directory.mkdir()
        (directory / "script.py").write_text(script)
        (directory / "agent.pyz").write_bytes(agent_archive.packed())
        spec = {
            "run": name, "command": [str(directory / "script.py")], "kind": "script", "cwd": str(directory),
            "env": {}, "directory": str(directory), "rendezvous": {"file": str(directory / "rendezvous.json")},
            "min_nodes": len(self.hosts), "max_nodes": len(self.hosts),
            "workers": 1, "rdzv_timeout_s": 60, **job,
        }  # fmt: skip
        (directory / "spec.json").write_text(json.dumps(spec))
        (directory / "key").write_text("k" * 64)
        agents = []
        for rank, host in enumerate(self.hosts):
            argv = (
                sys.executable,
                str(directory / "agent.pyz"),
                "--spec",
                str(directory / "spec.json"),
                "--node-rank",
                str(rank),
            )
            with (directory / f"stream{rank}").open("wb") as stream, (directory / f"stderr{rank}").open("wb") as errors:
                agents.append(host.popen(argv, stdout=stream, stderr=errors))
        codes = [agent.wait(timeout=120) for agent in agents]
        streams = [
            list(protocol.Decoder().feed((directory / f"stream{rank}").read_bytes())) for rank in range(len(agents))
        ]
        self.output = [line for each in streams for line in written(each).splitlines()]
        self.errors = "".join((directory / f"stderr{rank}").read_text() for rank in range(len(agents)))
        assert codes == [0] * len(codes), (codes, self.output, self.errors)
        events = [record for each in streams for record in each if isinstance(record, protocol.Event)]
        return [{"event": event.name, **event.fields} for event in events]

    def torchrun(
        self, script: str, options: Sequence[str], order: Sequence[int], *, name: str = "torchrun"
    ) -> list[str]:
        """`distlaunch torchrun` on all hosts, started in that order; returns what each prints. `{rank}`: its number."""
        directory = self.directory / name
        directory.mkdir()
        (directory / "script.py").write_text(script)
        begun = {}
        for rank in order:
            words = [option.format(rank=rank) for option in options]
            argv = (sys.executable, "-m", "launcher", "torchrun", *words, str(directory / "script.py"))
            with (directory / f"out{rank}").open("wb") as out:
                begun[rank] = self.hosts[rank].popen(
                    argv, stdout=out, stderr=out, cwd=str(ROOT), env={"TMPDIR": str(directory)}
                )
        codes = [begun[rank].wait(timeout=120) for rank in sorted(order)]
        said = [(directory / f"out{rank}").read_text() for rank in sorted(order)]
        assert codes == [0] * len(codes), said
        assert sorted(path.name for path in directory.iterdir() if path.is_dir()) == []
        return said


def written(records: Sequence[protocol.Record]) -> str:
    """What a node's worker has written to its stdout, a line that came in pieces as one."""
    said = [record for record in records if isinstance(record, protocol.Output) and not record.stderr]
    return b"".join(record.data + b"\n" * record.ends_line for record in said).decode()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Three hosts, new for each test, which may break their networks."""
    with fixtures.make(3) as testbed:
        yield Nodes(testbed, tmp_path)
