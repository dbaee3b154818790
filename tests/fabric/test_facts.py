"""What the agent reads of a node's fabric, on recorded hosts and on this one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from launcher.agent.fabric import discovery, nvidia, pci_tree
from launcher.agent.fabric import nic as fabric_nics
from launcher.agent.fabric.sources import Tree
from tests.fabric import hosts
from tests.fabric.hosts import DGX_COMPUTE

if TYPE_CHECKING:
    from pathlib import Path


def test_dgx_h100(tmp_path: Path) -> None:
    found = discovery.read(hosts.dgx_h100(tmp_path).tree(), full=True)

    assert [gpu.model for gpu in found.gpus] == [hosts.H100] * 8
    assert {gpu.memory_bytes for gpu in found.gpus} == {81559 * 2**20}
    assert {(gpu.driver, gpu.mig, gpu.ecc, gpu.ecc_uncorrected) for gpu in found.gpus} == {
        ("535.161.08", None, True, 0)
    }
    assert found.gpus[0].links == {str(other): "NV18" for other in range(1, 8)}
    assert (found.nvswitches, found.gpudirect) == (4, "nvidia_peermem")
    assert [hca.name for hca in found.hcas if hca.kind == "InfiniBand"] == [f"mlx5_{number}" for number in DGX_COMPUTE]
    assert {hca.rate_gbps for hca in found.hcas if hca.kind == "InfiniBand"} == {400.0}
    for gpu, hca in enumerate(DGX_COMPUTE):
        nearest = list(found.nearest[gpu].items())
        assert nearest[0] == (f"mlx5_{hca}", "PIX")
        assert nearest[1][1] in ("NODE", "SYS")
    assert found.nearest[0]["mlx5_11"] == "SYS"
    assert found.nearest[0]["mlx5_3"] == "NODE"


def test_without_tools_the_drivers_files_describe_the_same_gpus(tmp_path: Path) -> None:
    tree = hosts.dgx_h100(tmp_path).tree()
    quick, full = discovery.read(tree), discovery.read(tree, full=True)

    for few, all_ in zip(quick.gpus, full.gpus, strict=True):
        assert (few.index, few.model, few.pci, few.numa, few.uuid, few.driver) == (
            all_.index, all_.model, all_.pci, all_.numa, all_.uuid, all_.driver,
        )  # fmt: skip
    assert quick.gpus[0].memory_bytes is None
    assert quick.nearest == full.nearest


def test_a100_roce_tells_v2_from_v1_and_the_bond_from_its_ports(tmp_path: Path) -> None:
    found = discovery.read(hosts.a100_roce(tmp_path).tree(), full=True)

    rail = next(hca for hca in found.hcas if hca.name == "mlx5_3")
    assert (rail.kind, rail.rate_gbps, rail.netdev, rail.active) == ("RoCE", 200.0, "ens4np0", True)
    assert [(gid.index, gid.version, gid.ipv4) for gid in rail.gids] == [
        (0, 1, None),
        (1, 2, None),
        (2, 1, "10.1.3.21"),
        (3, 2, "10.1.3.21"),
    ]
    kinds = {nic.name: nic.kind for nic in found.nics}
    assert (kinds["bond0"], kinds["eno1"], kinds["docker0"], kinds["ens1np0"]) == (
        "bond",
        "physical",
        "container",
        "physical",
    )
    assert next(nic for nic in found.nics if nic.name == "eno2").master == "bond0"
    assert {found.nearest[gpu][f"mlx5_{gpu}"] for gpu in range(8)} == {"PIX"}
    assert found.gateways == ["bond0"]
    assert {gpu.mig for gpu in found.gpus} == {False}


def test_pcie_box_with_a_sick_gpu(tmp_path: Path) -> None:
    found = discovery.read(hosts.pcie_box(tmp_path).tree(), full=True)

    assert [gpu.ecc_uncorrected for gpu in found.gpus] == [0, 0, 3, 0]
    assert [gpu.xid for gpu in found.gpus] == [[], [], [], [79]]
    assert found.gpus[3].pcie == "gen 4 of 4, x8 of 16"
    assert [found.nearest[gpu]["mlx5_0"] for gpu in range(4)] == ["NODE", "PHB", "SYS", "SYS"]
    assert (found.nvswitches, found.gpudirect) == (0, "dmabuf")
    assert (found.limits.memlock_bytes, found.limits.shm_bytes, found.limits.container) == (65536, 64 << 20, "docker")


def test_aws_p5(tmp_path: Path) -> None:
    found = discovery.read(hosts.aws_p5(tmp_path).tree())

    assert (len(found.gpus), len(found.hcas)) == (8, 32)
    assert {(hca.kind, hca.driver, hca.active) for hca in found.hcas} == {("EFA", "efa", True)}
    assert (found.limits.virtual, found.limits.machine) == (True, "Amazon EC2 p5.48xlarge")
    assert list(found.nearest[0].values())[:5] == ["PHB"] * 4 + ["NODE"]


def test_laptop(tmp_path: Path) -> None:
    found = discovery.read(hosts.laptop(tmp_path).tree(), full=True)

    kinds = {nic.name: nic.kind for nic in found.nics}
    assert kinds == {
        "lo": "loopback", "enp0s31f6": "physical", "wlp0s20f3": "wireless", "docker0": "container",
        "br-3f2a9c1d4e5b": "container", "vethd1c3a2b": "veth", "tun0": "vpn", "wg0": "vpn",
    }  # fmt: skip
    wireless = next(nic for nic in found.nics if nic.name == "wlp0s20f3")
    assert wireless.addresses == ["192.168.178.34/24", "2003:e7::5/64"]
    assert [nic.name for nic in found.nics if nic.carries] == ["wlp0s20f3", "docker0", "br-3f2a9c1d4e5b", "tun0", "wg0"]
    assert (found.gpus, found.hcas, found.gpudirect) == ([], [], "")


def test_cpu_node_in_a_cgroup(tmp_path: Path) -> None:
    found = discovery.read(hosts.cpu_node(tmp_path).tree())

    assert [(hca.kind, hca.state, hca.numa) for hca in found.hcas] == [("InfiniBand", "ACTIVE", 1)]
    assert next(nic for nic in found.nics if nic.name == "ib0").kind == "ipoib"
    assert (found.limits.memory_bytes, found.limits.cpus) == (64 << 30, 16.0)


def test_amd_gpus_have_the_same_form(tmp_path: Path) -> None:
    tree = hosts.mi300x(tmp_path).tree()
    quick, full = discovery.read(tree), discovery.read(tree, full=True)

    assert [gpu.model for gpu in quick.gpus] == ["gfx942"] * 8
    assert [gpu.model for gpu in full.gpus] == ["AMD Instinct MI300X"] * 8
    assert {gpu.memory_bytes for gpu in full.gpus} == {206141652992}
    assert quick.gpus[0].links == full.gpus[0].links == {str(other): "XGMI" for other in range(1, 8)}
    assert [gpu.pci for gpu in full.gpus][:2] == ["0000:05:00.0", "0000:26:00.0"]
    assert (full.gpus[0].driver, full.gpudirect) == ("6.8.5", "amdgpu")


def test_mig_devices_are_listed_below_their_gpu(tmp_path: Path) -> None:
    host = hosts.pcie_box(tmp_path)
    host.command(
        "nvidia-smi -L",
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)\n  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4)\n"
        "  MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8-9bed)\nGPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa)\n",
    )

    found = discovery.read(host.tree(), full=True)

    assert found.gpus[0].mig_devices == ["3g.20gb MIG-c6d4f1ef-42e4", "1g.5gb MIG-cba663e8-9bed"]
    assert found.gpus[1].mig_devices == []


def test_a_tool_that_prints_nonsense_leaves_what_the_kernel_says(tmp_path: Path) -> None:
    host = hosts.dgx_h100(tmp_path)
    host.command("nvidia-smi topo -m", "Failed to initialize NVML: Driver/library version mismatch\n")
    host.command("nvidia-smi -L", "")

    found = discovery.read(host.tree(), full=True)

    assert found.gpus[0].links == {}
    assert found.gpus[0].memory_bytes == 81559 * 2**20


A = "pci0000:00/0000:00:01.0/0000:01:00.0"
B = "pci0000:40/0000:40:02.0/0000:41:00.0"


@pytest.mark.parametrize(
    ("one", "other", "numa", "expected"),
    [
        (f"{A}/0000:02:00.0/0000:03:00.0", f"{A}/0000:02:01.0/0000:04:00.0", (0, 0), "PIX"),
        (f"{A}/0000:02:00.0/0000:03:00.0", f"{A}/0000:02:01.0/0000:04:00.0/0000:05:00.0/0000:06:00.0", (0, 0), "PXB"),
        (A, "pci0000:00/0000:00:02.0/0000:02:00.0", (0, 0), "PHB"),
        (A, B, (1, 1), "NODE"),
        (A, B, (0, 1), "SYS"),
        ("", B, (None, None), "SYS"),
        ("vmbus/one", "vmbus/other", (None, None), "SYS"),
    ],
)
def test_distance_in_the_pci_tree(one: str, other: str, numa: tuple[int | None, int | None], expected: str) -> None:
    one, other = f"/sys/devices/{one}", f"/sys/devices/{other}"
    assert pci_tree.distance(one, other, *numa) == expected
    assert pci_tree.distance(other, one, *reversed(numa)) == expected


def test_this_machine_is_read(tmp_path: Path) -> None:
    found = discovery.read(Tree(), full=True)

    others = ("dlt", "veth")  # other tests' links come and go
    assert [nic.name for nic in found.nics if not nic.name.startswith(others)] == [
        name for _, name in sorted(socket.if_nameindex()) if not name.startswith(others)
    ]
    assert found.limits.kernel == os.uname().release
    shm = os.statvfs("/dev/shm")
    assert found.limits.shm_bytes == shm.f_blocks * shm.f_frsize
    assert json.loads(json.dumps(found.to_json()))["nics"][0]["name"] == "lo"


def test_addresses_of_this_machine_are_those_of_ip() -> None:
    try:
        said = subprocess.run(["ip", "-json", "address"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no ip command here can be made here to compare with")
    wanted = {
        link["ifname"]: [
            f"{info['local']}/{info['prefixlen']}"
            for info in link["addr_info"]
            if info["scope"] not in ("link", "host")
        ]
        for link in json.loads(said)
    }
    # Other tests' links come and go meanwhile; this machine's own stay.
    own = {name: has for name, has in wanted.items() if not name.startswith(("dlt", "veth"))}
    found = fabric_nics.addresses(Tree())
    assert {name: found.get(name, []) for name in own} == own


def test_of_a_host_that_cannot_be_read_nothing_is_reported(tmp_path: Path) -> None:
    found = discovery.read(Tree(str(tmp_path), str(tmp_path)), full=True)

    assert (found.gpus, found.hcas, found.nics) == ([], [], [])
    assert set(found.limits) == {None, 0, ""}


def test_a_program_that_hangs_fails_or_is_missing_has_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.agent.fabric import sources

    monkeypatch.setattr(sources, "_RUN_S", 0.2)
    assert Tree().run("sleep", "60") is None
    assert Tree().run("no-such-program-here") is None
    assert Tree().run("false") is None


def test_a_log_that_cannot_be_read_has_no_xid_errors(tmp_path: Path) -> None:
    assert nvidia.xid_errors(Tree(str(tmp_path))) == {}
