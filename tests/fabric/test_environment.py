"""The variables that each kind of host gets: those whose default is wrong there, and no others."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from launcher.agent.fabric import discovery, library_defaults, network_variables, placement
from launcher.agent.network import routes
from tests.fabric import hosts
from tests.fabric.builder import Host

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.agent.fabric.network_variables import Choice


@pytest.fixture(autouse=True)
def _unnamed_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "resolve", lambda _: [])


def choose(
    host: Host,
    env: Mapping[str, str] | None = None,
    nccl: tuple[int, ...] | None = (2, 27, 3),
    gpus: int | None = None,
) -> Choice:
    tree = host.tree()
    found = discovery.read(tree)
    return network_variables.choose(
        found, env or {}, tree=tree, gpus=len(found.gpus) if gpus is None else gpus, nccl=nccl
    )


def values(choice: Choice) -> dict[str, str]:
    return {variable.name: variable.value for variable in choice.variables}


def test_dgx_h100_leaves_the_storage_ports_out(tmp_path: Path) -> None:
    choice = choose(hosts.dgx_h100(tmp_path))

    compute = ",".join(f"mlx5_{number}:1" for number in hosts.DGX_COMPUTE)
    assert values(choice) == {"NCCL_IB_HCA": f"={compute}", "UCX_NET_DEVICES": compute}
    assert "mlx5_1 (RoCE, 100 Gb/s)" in choice.variables[0].reason
    assert choice.notes == []


def test_one_fabric_alone_needs_nothing(tmp_path: Path) -> None:
    choice = choose(hosts.cpu_node(tmp_path), gpus=2)

    assert values(choice) == {}
    assert choice.nccl_default == ["ib0"]


def test_a_degraded_rail_is_kept_and_reported(tmp_path: Path) -> None:
    host = hosts.dgx_h100(tmp_path)
    host.file("/sys/class/infiniband/mlx5_4/ports/1/rate", "200 Gb/sec (4X HDR)")

    choice = choose(host)

    assert "mlx5_4:1" in values(choice)["NCCL_IB_HCA"].split(",")
    assert choice.notes == ["mlx5_4: 200 Gb/s, where the other ports of this fabric have 400"]


def test_a_port_that_is_down_is_ignored(tmp_path: Path) -> None:
    host = hosts.a100_roce(tmp_path)
    host.file("/sys/class/infiniband/mlx5_bond_0/ports/1/state", "1: DOWN")

    assert "NCCL_IB_HCA" not in values(choose(host))


@pytest.mark.parametrize(("nccl", "pinned"), [((2, 20, 5), "3"), (None, "3"), ((2, 21, 5), None), ((2, 27, 3), None)])
def test_roce_pins_the_gid_only_for_an_nccl_that_takes_index_0(
    tmp_path: Path, nccl: tuple[int, ...] | None, pinned: str | None
) -> None:
    found = values(choose(hosts.a100_roce(tmp_path), nccl=nccl))

    assert found.get("NCCL_IB_GID_INDEX") == pinned
    assert found["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{number}:1" for number in range(8))
    assert found["NCCL_CROSS_NIC"] == "0"


def test_gid_tables_that_differ_are_reported_not_pinned(tmp_path: Path) -> None:
    host = hosts.a100_roce(tmp_path)
    at = "/sys/class/infiniband/mlx5_5/ports/1"
    for index, kind in ((2, "RoCE v2"), (3, "IB/RoCE v1")):
        host.file(f"{at}/gid_attrs/types/{index}", kind)

    choice = choose(host, nccl=(2, 18, 1))

    assert "NCCL_IB_GID_INDEX" not in values(choice)
    assert "no index is a routable RoCE v2 GID" in choice.notes[0]


def test_roce_over_ipv6_alone_names_the_family(tmp_path: Path) -> None:
    host = hosts.pcie_box(tmp_path)
    for index in (2, 3):
        host.file(f"/sys/class/infiniband/mlx5_0/ports/1/gids/{index}", "2001:0db8:0000:0000:0000:0000:0000:0007")

    assert values(choose(host))["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
    assert values(choose(host, nccl=(2, 19, 3)))["NCCL_IB_GID_INDEX"] == "3"


def test_rails_with_a_gateway_may_be_crossed(tmp_path: Path) -> None:
    host = hosts.a100_roce(tmp_path)
    host.routes("bond0", "ens1np0")

    assert "NCCL_CROSS_NIC" not in values(choose(host))


def test_gpudirect_in_a_virtual_machine_that_hides_the_switches(tmp_path: Path) -> None:
    host = hosts.pcie_box(tmp_path)
    assert "NCCL_NET_GDR_LEVEL" not in values(choose(host))
    host.file("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme hypervisor")

    assert values(choose(host))["NCCL_NET_GDR_LEVEL"] == "PHB"
    assert "NCCL_NET_GDR_LEVEL" not in values(choose(host, {"NCCL_TOPO_FILE": "/opt/topo.xml"}))


def test_the_level_of_gpudirect_has_a_name_that_nccl_knows(tmp_path: Path) -> None:
    """As on Azure, where each device is below a host bridge of its own; NCCL ignores names like NODE."""
    host = Host(tmp_path, virtual=True)
    host.nvidia_driver("550.54.15", peermem=True)
    host.gpu("pci0001:00/0001:00:00.0", hosts.H100, memory_mib=81559, numa=0)
    host.hca("mlx5_0", "pci0101:00/0101:00:00.0", rate="400 Gb/sec (4X NDR)", numa=0)

    assert values(choose(host))["NCCL_NET_GDR_LEVEL"] == "PHB"
    host.file("/sys/devices/pci0101:00/0101:00:00.0/numa_node", "1")
    assert values(choose(host))["NCCL_NET_GDR_LEVEL"] == "SYS"


def test_efa_without_its_plugin_is_reported(tmp_path: Path) -> None:
    host = hosts.aws_p5(tmp_path)
    choice = choose(host)
    assert values(choice) == {}
    assert "32 EFA devices, but no libnccl-net.so" in choice.notes[0]

    host.file("/opt/amazon/ofi-nccl/lib/libnccl-net.so", "")
    assert choose(host).notes == []
    host.file("/proc/sys/kernel/osrelease", "4.14.320-243.544.amzn2.x86_64")
    assert values(choose(host)) == {"FI_EFA_FORK_SAFE": "1"}


def test_low_locked_memory_and_missing_device_files_are_reported(tmp_path: Path) -> None:
    host = hosts.pcie_box(tmp_path)
    shutil.rmtree(host.root / "dev/infiniband")

    notes = choose(host).notes

    assert [note.split(";")[0] for note in notes] == [
        "locked memory is limited to 64 KiB",
        "there are RDMA devices but no /dev/infiniband: the container was started without them",
    ]


def test_of_the_hosts_rdma_devices_those_that_a_container_has_are_used(tmp_path: Path) -> None:
    host = hosts.dgx_h100(tmp_path)
    for number in (0, 1, 2, 3):
        (host.root / f"dev/infiniband/uverbs{number}").unlink()

    assert values(choose(host))["NCCL_IB_HCA"] == "=mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1"
    assert [hca.name for hca in discovery.read(host.tree()).hcas] == [f"mlx5_{n}" for n in (1, 6, 7, 9, 10, 11)]


def test_without_rdma_device_files_the_interfaces_of_sockets_matter(tmp_path: Path) -> None:
    host = hosts.a100_roce(tmp_path)
    shutil.rmtree(host.root / "dev/infiniband")

    choice = choose(host)
    settled = network_variables.settle(choice.to_json(), ["bond0"], {}, "peers reach us at")

    assert values(choice) == {}
    assert {"NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES"} <= {variable.name for variable in settled}
    assert placement.near_ports(1, ["0"], {}, host.tree()) == [{}]


def test_what_the_user_set_is_kept(tmp_path: Path) -> None:
    env = {"NCCL_IB_HCA": "mlx5_0", "UCX_NET_DEVICES": "all", "NCCL_DEBUG": "INFO", "PATH": "/bin"}
    host = hosts.dgx_h100(tmp_path)

    assert values(choose(host, env)) == {}
    given = network_variables.given(env, {"NCCL_DEBUG": "INFO"})
    assert [(variable.name, variable.source) for variable in given] == [
        ("NCCL_DEBUG", "--env"), ("NCCL_IB_HCA", "environment"), ("UCX_NET_DEVICES", "environment"),
    ]  # fmt: skip


def test_what_the_administrator_set_is_kept(tmp_path: Path) -> None:
    host = hosts.laptop(tmp_path)
    host.file("/etc/nccl.conf", "# site\nNCCL_SOCKET_IFNAME==bond0\nNCCL_DEBUG=WARN")

    given = network_variables.given({"NCCL_DEBUG": "INFO", "HOME": "/root"}, {}, host.tree())

    assert [(variable.name, variable.value, variable.source) for variable in given] == [
        ("NCCL_DEBUG", "INFO", "environment"), ("NCCL_SOCKET_IFNAME", "=bond0", "/etc/nccl.conf"),
    ]  # fmt: skip


def test_candidates_put_likely_interfaces_first(tmp_path: Path) -> None:
    nics = discovery.read(hosts.laptop(tmp_path).tree()).nics

    found = library_defaults.candidates(nics, [])
    assert list(found.values()) == ["wlp0s20f3", "wlp0s20f3", "docker0", "br-3f2a9c1d4e5b", "tun0", "wg0"]
    assert next(iter(library_defaults.candidates(nics, ["127.0.1.1", "10.8.0.6"]))) == "10.8.0.6"


def test_sockets_are_named_where_the_default_is_not_what_peers_reach(tmp_path: Path) -> None:
    choice = choose(hosts.laptop(tmp_path), gpus=1)
    assert choice.nccl_default == ["wlp0s20f3", "br-3f2a9c1d4e5b", "tun0", "wg0", "vethd1c3a2b"]
    assert choice.gloo_default == "lo"

    settled = network_variables.settle(choice.to_json(), ["wlp0s20f3"], {}, "peers reach us at")

    assert {variable.name: variable.value for variable in settled} == {
        "NCCL_SOCKET_IFNAME": "=wlp0s20f3", "GLOO_SOCKET_IFNAME": "wlp0s20f3", "UCX_NET_DEVICES": "wlp0s20f3",
    }  # fmt: skip
    assert "br-3f2a9c1d4e5b" in settled[0].reason
    assert "peers reach us at wlp0s20f3" in settled[0].reason
    kept = network_variables.settle(
        choice.to_json(), ["wlp0s20f3"], {"GLOO_SOCKET_IFNAME": "tun0", "UCX_NET_DEVICES": "tun0"}, ""
    )
    assert [variable.name for variable in kept] == ["NCCL_SOCKET_IFNAME"]


def test_sockets_are_left_alone_where_the_default_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "resolve", lambda _: ["10.11.12.13"])
    choice = choose(hosts.aws_p5(tmp_path))

    assert network_variables.settle(choice.to_json(), ["ens32"], {}, "") == []
    assert network_variables.settle(choice.to_json(), [], {}, "") == []


def test_with_rdma_only_the_bootstrap_interface_matters(tmp_path: Path) -> None:
    choice = choose(hosts.a100_roce(tmp_path))

    assert choice.nccl_default == ["bond0"]
    assert [v.name for v in network_variables.settle(choice.to_json(), ["bond0"], {}, "")] == ["GLOO_SOCKET_IFNAME"]


def test_the_version_of_nccl_is_read_beside_torch(tmp_path: Path) -> None:
    (tmp_path / "nvidia_nccl_cu12-2.21.5.dist-info").mkdir()

    assert library_defaults.nccl_version(["/nonexistent", "", str(tmp_path)]) == (2, 21, 5)
    assert library_defaults.nccl_version(["/nonexistent"]) is None
