"""Links that are degraded are among the findings of a report, from the files of /sys to the words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.protocol import Event
from launcher.agent.samples import host as host_samples
from launcher.agent.samples.links import Links
from launcher.runs import samples
from launcher.service import link_findings
from tests.fabric.builder import Host
from tests.reports.conftest import content, page_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

PORT = "/sys/class/infiniband/mlx5_0/ports/1"
NAMES = ("link_downed", "link_error_recovery", "port_rcv_errors")


def host(directory: Path, rate: str = "400 Gb/sec (4X NDR)") -> Host:
    """A host with an InfiniBand port and an Ethernet device, which had their troubles before the run."""
    made = Host(directory)
    made.hca("mlx5_0", "pci0000:16/0000:16:01.0", rate=rate)
    made.nic("eth0", "physical", ["10.0.0.1/24"], place="pci0000:17/0000:17:01.0", driver="mlx5_core", speed=25000)
    for name in NAMES:
        made.file(f"{PORT}/counters/{name}", "7")
    made.file("/sys/class/net/eth0/carrier_down_count", "1")
    made.file("/sys/class/net/eth0/statistics/rx_crc_errors", "0")
    return made


def links(made: Host) -> Links:
    return Links(str(made.root))


def test_counters_begin_with_the_agent_and_speeds_are_as_they_are_now(tmp_path: Path) -> None:
    made = host(tmp_path / "host")
    read = links(made)
    assert read.now() == {
        "links": ["mlx5_0:1", "eth0"], "link_gbps": [400.0, 25.0], "link_downs": [0, 0], "link_errors": [0, 0]
    }  # fmt: skip

    made.file(f"{PORT}/rate", "100 Gb/sec (1X NDR)")
    made.file(f"{PORT}/counters/link_downed", "9")
    made.file(f"{PORT}/counters/port_rcv_errors", "12")
    made.file("/sys/class/net/eth0/speed", "-1")
    made.file("/sys/class/net/eth0/statistics/rx_crc_errors", "3")
    assert read.now() == {
        "links": ["mlx5_0:1", "eth0"], "link_gbps": [100.0, None], "link_downs": [2, 0], "link_errors": [5, 3]
    }  # fmt: skip

    made.file(f"{PORT}/counters/link_downed", "1")  # somebody has reset it
    assert read.now()["link_downs"] == [1, 0]


def test_a_host_without_devices_has_no_fields(tmp_path: Path) -> None:
    assert links(Host(tmp_path / "host")).now() == {}


@pytest.mark.parametrize(
    ("received", "sent", "unit"),
    [("counters/port_rcv_data", "counters/port_xmit_data", 4), ("hw_counters/rx_bytes", "hw_counters/tx_bytes", 1)],
    ids=["InfiniBand", "EFA"],
)
def test_traffic_of_rdma_ports_is_in_samples(tmp_path: Path, received: str, sent: str, unit: int) -> None:
    made = Host(tmp_path / "host")
    ports = [f"/sys/class/infiniband/rdmap{at}/ports/1" for at in range(2)]

    def count(into: int, out: int) -> None:
        for port in ports:
            made.file(f"{port}/{received}", str(into // unit))
            made.file(f"{port}/{sent}", str(out // unit))

    count(0, 0)
    read = host_samples.Host(str(made.root))
    read.use()
    count(8 << 40, 2 << 40)
    use = read.use()

    assert use["rdma_received"] is not None
    assert use["rdma_sent"]
    assert use["rdma_received"] / use["rdma_sent"] == pytest.approx(4.0)


def test_degraded_links_are_findings_and_sound_ones_are_not(distlaunch: Cli, tmp_path: Path) -> None:
    distlaunch.write("work.py", "print('done')")
    assert distlaunch("local", "--nodes", "4", "--nproc-per-node", "1", "--samples", "0", "work.py").exit_code == 0
    hosts = [host(tmp_path / f"host{node}") for node in range(3)]
    hosts.append(host(tmp_path / "host3", "200 Gb/sec (2X NDR)"))
    read = list(map(links, hosts))
    before = [each.now() for each in read]
    hosts[1].file(f"{PORT}/counters/link_downed", "9")
    hosts[1].file(f"{PORT}/rate", "100 Gb/sec (1X NDR)")
    hosts[2].file("/sys/class/net/eth0/statistics/rx_crc_errors", "1204")
    (run,) = distlaunch.runs.iterdir()
    for node, (first, link) in enumerate(zip(before, read, strict=True)):
        add(run / f"nodes/{node}/stream", node, first, link.now())

    found = {
        each["title"]: (each["level"], each["nodes"], each["detail"])
        for each in content(distlaunch, "last")["observations"]
    }
    page = page_of(distlaunch, "last").read_text()

    name = content(distlaunch, "last")["nodes"][0]["host"]
    assert found == {
        "A link went down": ("problem", [1], f"mlx5_0:1 of {name} (node 1): 2 times"),
        "A link is slower than it was": ("problem", [1], f"mlx5_0:1 of {name} (node 1): 100 Gb/s, after 400"),
        "A link is slower than the others": (
            "problem", [3], f"mlx5_0:1 of {name} (node 3): 200 Gb/s, most others have 400"
        ),
        "A link has errors": ("notice", [2], f"eth0 of {name} (node 2): 1,204"),
        "Network": ("notice", [2], f"{name} (node 2): there are RDMA devices but no /dev/infiniband"),
    }  # fmt: skip
    assert "mlx5_0:1 of" in page


def test_half_of_the_links_being_slower_are_compared_with_a_speed_that_exists() -> None:
    measured = {}
    for node, gbps in enumerate((25.0, 25.0, 100.0, 100.0)):
        series = samples.Recent(1)
        series.add(Event("sample", {"time": 1.0, "sample": 0, "whole": True, "links": ["eth0"], "link_gbps": [gbps]}))
        measured[node] = series.samples

    (found,) = link_findings.observed(measured, ["a", "b", "c", "d"])

    assert found["nodes"] == [0, 1]
    assert found["detail"].count("25 Gb/s, most others have 100") == 2


def add(stream: Path, node: int, *sent: dict[str, Any]) -> None:
    """Let the node have sent these samples and, as node 2, a note on its network."""
    lines = stream.read_bytes().splitlines(keepends=True)
    when = json.loads(lines[-1])["time"] - 1.0
    events: list[dict[str, Any]] = [
        {"event": "sample", "time": when + number / 10, "node": node, "sample": number, "whole": True, **fields}
        for number, fields in enumerate(sent)
    ]
    if node == 2:
        notes = ["there are RDMA devices but no /dev/infiniband"]
        events.append(
            {"event": "fabric", "time": when, "node": node, "interfaces": [], "variables": [], "notes": notes}
        )
    stream.write_bytes(
        b"".join(
            [*lines[:-1], *(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in events), lines[-1]]
        )
    )
