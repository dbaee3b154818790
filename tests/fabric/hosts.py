"""Common kinds of hosts, as recorded trees."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from launcher.agent.fabric import amd
from tests.fabric.builder import Host, roce_gids

if TYPE_CHECKING:
    from pathlib import Path

H100, A100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"

DGX_COMPUTE = {
    0: ("18", "1b"), 3: ("40", "43"), 4: ("4f", "52"), 5: ("5e", "61"),
    6: ("9a", "9d"), 9: ("c0", "c3"), 10: ("ce", "d1"), 11: ("dc", "df"),
}  # fmt: skip
"""By number of the HCA: its PCI bus, and that of the GPU behind the same switch."""


def dgx_h100(directory: Path) -> Host:
    """8 GPUs and 8 NDR InfiniBand HCAs, each pair behind a PCIe switch; 4 NVSwitches; 2 Ethernet cards for storage."""
    host = Host(directory, dmi=("NVIDIA", "DGXH100"))
    host.nvidia_driver("535.161.08", peermem=True)
    for number, (hca, gpu) in DGX_COMPUTE.items():
        numa, root = int(number > 5), f"{int(hca, 16) - 3:02x}"
        switch = f"pci0000:{root}/0000:{root}:01.0/0000:{int(root, 16) + 1:02x}:00.0"
        host.gpu(f"{switch}/0000:{int(root, 16) + 2:02x}:01.0/0000:{gpu}:00.0", H100, memory_mib=81559, numa=numa)
        gid = (0, f"fe80:0000:0000:0000:a088:c203:00{number:02x}:1234", "IB/RoCE v1", "")
        host.hca(
            f"mlx5_{number}",
            f"{switch}/0000:{int(root, 16) + 2:02x}:00.0/0000:{hca}:00.0",
            rate="400 Gb/sec (4X NDR)",
            numa=numa,
            gids=[gid],
        )
        host.nic(f"ibp{int(hca, 16)}s0", "ipoib", mtu=2044, state="down")
    for number, place, netdev in ((1, "29:00.0", "ens6f0"), (7, "aa:00.0", "enp170s0f0np0")):
        numa = int(number > 5)
        where = f"pci0000:{place[:2]}/0000:{place}"
        host.hca(
            f"mlx5_{number}", where, rate="100 Gb/sec (4X EDR)", layer="Ethernet", numa=numa,
            gids=roce_gids(f"10.20.{number}.5", netdev),
        )  # fmt: skip
        host.nic(netdev, "physical", [f"10.20.{number}.5/24"], place=where, speed=100000, mtu=9000)
    host.nic("docker0", "bridge", ["172.17.0.1/16"], state="down")
    host.nic("ens6f1", "physical", ["10.0.0.11/24"], place="pci0000:2a/0000:2a:00.1", driver="mlx5_core", speed=100000)
    host.nvswitches(4)
    host.topology("NV18", [f"mlx5_{n}" for n in range(12) if n not in (2, 8)])
    host.routes("ens6f1")
    return host


def a100_roce(directory: Path) -> Host:
    """8 GPUs, 8 RoCE rails in a subnet each, and a bond of two 25 Gb ports for everything else."""
    host = Host(directory, dmi=("Supermicro", "AS -4124GO-NART+"))
    host.nvidia_driver("550.54.15", peermem=True)
    host.nic("bond0", "bond", ["10.0.0.21/24"], speed=50000)
    for number in range(2):
        host.nic(
            f"eno{number + 1}",
            "physical",
            place=f"pci0000:e0/0000:e1:00.{number}",
            driver="mlx5_core",
            speed=25000,
            master="bond0",
        )
    host.hca(
        "mlx5_bond_0",
        "pci0000:e0/0000:e1:00.0",
        rate="25 Gb/sec (1X EDR)",
        layer="Ethernet",
        gids=roce_gids("10.0.0.21", "bond0"),
    )
    for number in range(8):
        root, numa = f"{16 * (number // 2) + 1:02x}", number // 4
        switch = f"pci0000:{root}/0000:{root}:00.0/0000:{int(root, 16) + 1:02x}:00.0"
        at = f"0000:{int(root, 16) + 2:02x}"
        netdev = f"ens{number + 1}np0"
        gpu = f"{switch}/{at}:{number % 2}0.0/0000:{int(root, 16) + 4 + number % 2:02x}:00.0"
        host.gpu(gpu, A100, memory_mib=81920, numa=numa, mig="Disabled", pcie="4, 4, 16, 16")
        place = f"{switch}/{at}:{number % 2}4.0/0000:{int(root, 16) + 8 + number % 2:02x}:00.0"
        host.hca(
            f"mlx5_{number}",
            place,
            rate="200 Gb/sec (4X HDR)",
            layer="Ethernet",
            numa=numa,
            gids=roce_gids(f"10.1.{number}.21", netdev),
        )
        host.nic(netdev, "physical", [f"10.1.{number}.21/24"], place=place, speed=200000, mtu=4200)
    host.nic("docker0", "bridge", ["172.17.0.1/16"])
    host.topology("NV12", ["mlx5_bond_0", *(f"mlx5_{n}" for n in range(8))])
    host.routes("bond0")
    return host


def pcie_box(directory: Path) -> Host:
    """4 GPUs in slots of the CPUs' own, one 100 Gb NIC, no NVLink."""
    host = Host(directory, kernel="6.8.0-40-generic", dmi=("Dell Inc.", "PowerEdge R750xa"))
    host.nvidia_driver("560.28.03", open_module=True)
    for number, root in enumerate(("16", "30", "97", "b0")):
        host.gpu(
            f"pci0000:{root}/0000:{root}:02.0/0000:{int(root, 16) + 1:02x}:00.0", L40S,
            memory_mib=46068, numa=number // 2,
            ecc="3" if number == 2 else "0", pcie="4, 4, 8, 16" if number == 3 else "4, 4, 16, 16",
        )  # fmt: skip
    place = "pci0000:30/0000:30:04.0/0000:33:00.0"
    host.hca(
        "mlx5_0", place, rate="100 Gb/sec (4X EDR)", layer="Ethernet", numa=0, gids=roce_gids("192.168.1.7", "ens3np0")
    )
    host.nic("ens3np0", "physical", ["192.168.1.7/24"], place=place, speed=100000)
    host.topology("SYS", ["mlx5_0"])
    xid = "NVRM: Xid (PCI:0000:b1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    host.file("/dev/kmsg", f"6,1,10,-;Linux version 6.8.0\n4,1843,913726364,-;{xid}\n SUBSYSTEM=pci\n")
    host.limits(memlock="65536", shm_k=65536)
    host.file("/.dockerenv", "")
    host.routes("ens3np0")
    return host


def aws_p5(directory: Path) -> Host:
    """8 GPUs, 32 EFA devices, an ENA interface; a virtual machine that shows no PCIe switches."""
    host = Host(directory, kernel="6.1.112-122.189.amzn2023.x86_64", virtual=True, dmi=("Amazon EC2", "p5.48xlarge"))
    host.nvidia_driver("550.127.05", open_module=True)
    host.nic("ens32", "physical", ["10.11.12.13/20"], place="pci0000:00/0000:00:20.0", driver="ena", mtu=9001)
    for number in range(8):
        root, numa = f"{0x44 + 0x11 * number:02x}", number // 4
        bus = int(root, 16) + 15
        host.gpu(f"pci0000:{root}/0000:{bus:02x}:00.0", H100, memory_mib=81559, numa=numa)
        for card in range(4):
            host.hca(
                f"rdmap{int(root, 16) + 11 + card}s0", f"pci0000:{root}/0000:{int(root, 16) + 11 + card:02x}:00.0",
                rate="100 Gb/sec (4X EDR)", layer="Unspecified", driver="efa", numa=numa,
            )  # fmt: skip
    host.nic("docker0", "bridge", ["172.17.0.1/16"], state="down")
    host.nvswitches(4)
    host.topology("NV18")
    host.routes("ens32")
    return host


def laptop(directory: Path) -> Host:
    """Wireless, a docker bridge with a container, a compose network and a VPN."""
    host = Host(directory, kernel="6.9.7-arch1-1", dmi=("LENOVO", "21HMCTO1WW"))
    host.nic("enp0s31f6", "physical", place="pci0000:00/0000:00:1f.6", driver="e1000e", state="down", speed=-1)
    own = ["192.168.178.34/24", "2003:e7::5/64", "fe80::5/64"]
    host.nic("wlp0s20f3", "wireless", own, place="pci0000:00/0000:00:14.3", driver="iwlwifi", devtype="wlan")
    host.nic("docker0", "bridge", ["172.17.0.1/16"])
    host.nic("br-3f2a9c1d4e5b", "bridge", ["172.18.0.1/16"], devtype="bridge")
    host.nic("vethd1c3a2b", "veth", ["fe80::7/64"], speed=10000, master="docker0")
    host.nic("tun0", "tun", ["10.8.0.6/24"], state="unknown")
    host.nic("wg0", "tun", ["10.66.0.2/32"], state="unknown", devtype="wireguard")
    host.routes("wlp0s20f3")
    return host


def cpu_node(directory: Path) -> Host:
    """Two sockets, HDR100 InfiniBand with IPoIB, gigabit Ethernet; in a Slurm job's cgroup."""
    host = Host(directory, kernel="4.18.0-513.24.1.el8_9.x86_64", dmi=("HPE", "ProLiant DL385 Gen10 Plus v2"))
    host.nic("eno1", "physical", ["10.3.0.17/16"], place="pci0000:40/0000:42:00.0", driver="tg3", speed=1000)
    gid = (0, "fe80:0000:0000:0000:b859:9f03:00a1:2b3c", "IB/RoCE v1", "")
    host.hca("mlx5_0", "pci0000:80/0000:80:01.1/0000:81:00.0", rate="100 Gb/sec (2X HDR)", numa=1, gids=[gid])
    host.nic("ib0", "ipoib", ["10.4.0.17/16"], place="pci0000:80/0000:80:01.1/0000:81:00.0", mtu=2044, speed=100000)
    host.file("/proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_81/step_0")
    group = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_81"
    host.file(f"{group}/memory.max", str(64 << 30))
    host.file(f"{group}/step_0/memory.max", "max")
    host.file(f"{group}/step_0/cpu.max", "1600000 100000")
    host.routes("eno1")
    return host


def mi300x(directory: Path) -> Host:
    """8 AMD GPUs in a full XGMI mesh, whose model and memory rocm-smi reports."""
    host = Host(directory, kernel="5.15.0-119-generic", dmi=("Supermicro", "AS -8125GS-TNMR2"))
    for cpu in (0, 1):
        host.file(
            f"/sys/class/kfd/kfd/topology/nodes/{cpu}/properties",
            "cpu_cores_count 96\nsimd_count 0\nlocation_id 0\ndomain 0",
        )
    buses = ("05", "26", "46", "65", "85", "a6", "c6", "e5")
    for number, bus in enumerate(buses):
        peers = [peer for peer in range(2, 10) if peer != number + 2]
        host.amd_gpu(number + 2, f"pci0000:{bus}/0000:{bus}:00.0", numa=number // 4, peers=peers)
    cards = {
        f"card{n}": {
            "Unique ID": f"0x{n:016x}", "PCI Bus": f"0000:{bus.upper()}:00.0", "VRAM Total Memory (B)": "206141652992",
            "VRAM Total Used Memory (B)": "297664512", "Card Series": "AMD Instinct MI300X",
        }
        for n, bus in enumerate(buses)
    }  # fmt: skip
    links = {f"(Topology) Link type between DRM devices {a} and {b}": "XGMI" for a in range(8) for b in range(a + 1, 8)}
    host.command(" ".join(amd.ROCM_SMI), json.dumps({**cards, "system": {"Driver version": "6.8.5", **links}}))
    host.nic("eth0", "physical", ["10.5.0.2/24"], place="pci0000:00/0000:01:00.0", driver="bnxt_en", speed=100000)
    host.routes("eth0")
    return host
