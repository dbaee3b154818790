"""Ports behind a firewall and packets lost on the way: seen by doctor's job on real hosts, named by its comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.doctor import examine
from testbed import packages
from tests.fabric.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.doctor.findings import Finding
    from tests.fabric.conftest import Nodes

DOCTOR = f"""
import sys
sys.path.insert(0, {str(ROOT / "train")!r})
import doctor
sys.argv = ["doctor.py", "--seconds", "0.1"]
sys.exit(doctor.main())
"""


def examined(nodes: Nodes) -> dict[tuple[int, str], Finding]:
    """Faults that doctor's job finds on these hosts, by node and check."""
    nodes.run(DOCTOR, env={"PYTHONDONTWRITEBYTECODE": "1"})
    return compared(nodes)


def reports_in(nodes: Nodes) -> list[dict[str, Any]]:
    """What the last job's ranks have printed."""
    return [json.loads(line.partition("doctor: ")[2]) for line in nodes.output]


def compared(nodes: Nodes) -> dict[tuple[int, str], Finding]:
    """Faults in the reports of the last job's ranks, without speed: other tests use the same cores."""
    reports: dict[int, dict[str, Any]] = {}
    for told in reports_in(nodes):
        reports.setdefault(told["rank"], {}).update(told)
    found = examine.examine([reports[rank] for rank in sorted(reports)], {})
    return {(finding.node, finding.check): finding for finding in found if finding.check not in ("speed", "links")}


def test_with_ipv6_only_a_firewall_and_a_path_that_loses_large_packets_are_named(nodes: Nodes) -> None:
    nodes.only_ipv6()
    _, behind, narrow = nodes.hosts
    closed = f"10000-{int(Path('/proc/sys/net/ipv4/ip_local_port_range').read_text().split()[0]) - 1}"
    drop_answers = ("ip", "-6", "rule", "add", "ipproto", "tcp", "sport", closed, "blackhole")
    behind.run(drop_answers, check=True)
    narrow.run(("ip", "-netns", narrow.switch, "link", "set", narrow.name, "mtu", "1400"), check=True)

    found = examined(nodes)

    assert {key: finding.status for key, finding in found.items()} == {(1, "ports"): "fail", (2, "mtu"): "fail"}
    assert found[1, "ports"].reason == f"TCP ports {closed} do not open from n1, n3 (no answer: a firewall drops them)"
    lost = "packets over 1400 bytes are lost, though interfaces take 1500, between it and n1, n2; TCP stalls"
    assert found[2, "mtu"].reason == lost


@pytest.fixture
def rejecting(nodes: Nodes) -> Callable[[int, str], None]:
    """Makes a host's firewall reject TCP connections to some ports, as firewalld does."""
    packages.require({"iptables": "iptables"})

    def reject(number: int, ports: str) -> None:
        rule = ("-p", "tcp", "--syn", "--dport", ports, "-j", "REJECT", "--reject-with", "tcp-reset")
        nodes.hosts[number].run(("iptables", "-A", "INPUT", *rule), check=True)

    return reject


def test_a_firewall_that_rejects_is_named(nodes: Nodes, rejecting: Callable[[int, str], None]) -> None:
    last = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]) - 1
    rejecting(1, f"10000:{last}")

    found = examined(nodes)

    assert {key: finding.status for key, finding in found.items()} == {(1, "ports"): "fail"}
    why = "refused, though it listens: a firewall rejects them"
    assert found[1, "ports"].reason == f"TCP ports 10000-{last} do not open from n1, n3 ({why})"


def test_workers_that_cannot_reach_the_master_port_report_it(
    nodes: Nodes, rejecting: Callable[[int, str], None]
) -> None:
    rejecting(0, "12345")
    quick = "import datetime\ndoctor._MEET = datetime.timedelta(seconds=4)\nsys.argv"

    with pytest.raises(AssertionError):  # the run fails; the reports of its ranks are kept
        nodes.run(DOCTOR.replace("sys.argv", quick), master_port=12345, env={"PYTHONDONTWRITEBYTECODE": "1"})

    found = compared(nodes)
    assert (0, "ports") in found
    assert "12345 (MASTER_PORT)" in found[0, "ports"].reason


def take_ports(nodes: Nodes, *ranges: str) -> None:
    """Sets each host's range of ephemeral ports, as is usual for many connections."""
    for host, ports in zip(nodes.hosts, ranges, strict=True):
        host.run(("sh", "-c", f"echo {ports} > /proc/sys/net/ipv4/ip_local_port_range"), check=True)


def test_hosts_whose_ephemeral_ports_begin_low_are_examined(nodes: Nodes) -> None:
    take_ports(nodes, "1024 65535", "9000 65500", "10001 65535")

    assert examined(nodes) == {}

    measured = [told["rank"] for told in reports_in(nodes) if "gbytes_per_s" in told]
    assert sorted(measured) == [0, 1, 2]


def test_shut_ephemeral_ports_are_named_also_where_each_host_has_others(
    nodes: Nodes, rejecting: Callable[[int, str], None]
) -> None:
    take_ports(nodes, "15000 60000", "20000 60000", "32768 60999")
    rejecting(2, "32768:60999")

    found = examined(nodes)

    assert {key: finding.status for key, finding in found.items()} == {(2, "ports"): "fail"}
    assert found[2, "ports"].reason.startswith("TCP ports 32768-60999 do not open from n1, n2 (refused")


MANY = f"""
import resource, sys
sys.path.insert(0, {str(ROOT / "train")!r})
from comm import paths
from comm.answerer import Answerer

resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
paths.allow_files()
answers = Answerer("127.0.0.1")
peers = [paths.Peer(node, "127.0.0.1", 1500, answers.ports, answers.udp, "") for node in range(1, 60)]
peers.append(peers[0]._replace(node=60, ports={{"1-1": 1}}))
print(paths.blocked(peers), paths.narrow(peers, 1500))
answers.close()
"""


@pytest.mark.parametrize("hard", [64, 4096])
def test_more_nodes_than_this_process_may_open_files_are_tried(hard: int) -> None:
    argv = [sys.executable, "-c", MANY, str(hard)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)

    assert done.stdout == "[(60, '1-1', 'refused')] []\n", done.stderr
