"""Trees of /sys and /proc and recorded output, in the formats of real kernels and tools, from short descriptions."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from launcher.agent.fabric import nvidia
from launcher.agent.fabric.sources import Tree, recording

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NUL_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
TYPES = {"loopback": "772", "ipoib": "32", "tun": "65534"}


class Host:
    """A host in a directory; every method adds something to it."""

    def __init__(
        self, directory: Path, *, kernel: str = "5.15.0-105-generic", virtual: bool = False, dmi: Sequence[str] = ()
    ) -> None:
        self.root, self.commands = directory / "root", directory / "commands"
        self.commands.mkdir(parents=True)
        self._addresses: list[dict[str, object]] = []
        self._gpus: list[dict[str, str]] = []
        self._switches = 0
        self.file("/proc/sys/kernel/osrelease", kernel)
        self.file("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme de" + " hypervisor" * virtual)
        for key, value in zip(("sys_vendor", "product_name"), dmi, strict=False):
            self.file(f"/sys/class/dmi/id/{key}", value)
        self.limits()
        self.nic("lo", "loopback", ["127.0.0.1/8", "::1/128"], state="unknown", mtu=65536)

    def tree(self) -> Tree:
        """The host as the agent sees it."""
        self.command("ip -json address", json.dumps(self._addresses))
        return Tree(str(self.root), str(self.commands))

    def file(self, path: str, text: str) -> None:
        """A file with a newline at its end."""
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text.rstrip("\n") + "\n")

    def link(self, path: str, target: str) -> None:
        """A symbolic link, relative as in sysfs."""
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(os.path.relpath(self.root / target.lstrip("/"), at.parent))

    def command(self, line: str, output: str) -> None:
        """What a command prints."""
        (self.commands / recording(line)).write_text(output)

    def limits(self, *, memlock: str = "unlimited", shm_k: int = 527800000) -> None:
        """/proc/self/limits and the mount of /dev/shm."""
        rows = [("Max open files", "1048576", "files"), ("Max locked memory", memlock, "bytes")]
        head = f"{'Limit':<26}{'Soft Limit':<21}{'Hard Limit':<21}{'Units':<10}\n"
        self.file(
            "/proc/self/limits",
            head + "".join(f"{name:<26}{soft:<21}{soft:<21}{unit:<10}\n" for name, soft, unit in rows),
        )
        self.file("/proc/mounts", f"tmpfs /dev/shm tmpfs rw,nosuid,nodev,size={shm_k}k,inode64 0 0")

    # -- PCI ----------------------------------------------------------------------------------------------------------

    def pci(
        self, place: str, *, numa: int = -1, driver: str = "", cls: str = "0x020000", vendor: str = "0x15b3"
    ) -> str:
        """A device by its place: `pci0000:16/0000:16:01.0/.../0000:1b:00.0`. Returns its path below /sys/devices."""
        at = f"/sys/devices/{place}"
        for name, value in (("numa_node", str(numa)), ("class", cls), ("vendor", vendor)):
            self.file(f"{at}/{name}", value)
        if driver:
            self.file(f"/sys/bus/pci/drivers/{driver}/module/version", "1")
            self.link(f"{at}/driver", f"/sys/bus/pci/drivers/{driver}")
        self.link(f"/sys/bus/pci/devices/{place.rpartition('/')[2]}", at)
        return at

    # -- GPUs ---------------------------------------------------------------------------------------------------------

    def nvidia_driver(self, version: str, *, open_module: bool = False, peermem: bool = False) -> None:
        """/proc/driver/nvidia/version as either kernel module writes it."""
        name = "NVIDIA UNIX Open Kernel Module for x86_64" if open_module else "NVIDIA UNIX x86_64 Kernel Module"
        self.file(
            "/proc/driver/nvidia/version",
            f"NVRM version: {name}  {version}  Sat Mar  9 00:41:55 UTC 2024\nGCC version:  gcc 12.3.0",
        )
        self.command("nvidia-smi --query-gpu=driver_version --format=csv,noheader", f"{version}\n")
        if peermem:
            self.file("/sys/module/nvidia_peermem/refcnt", "16")

    def gpu(
        self,
        place: str,
        model: str,
        *,
        memory_mib: int,
        numa: int,
        mig: str = "[N/A]",
        ecc: str = "0",
        pcie: str = "5, 5, 16, 16",
    ) -> None:
        """An NVIDIA GPU: its PCI device, the driver's file, and its row in nvidia-smi."""
        at = self.pci(place, numa=numa, driver="nvidia", cls="0x030200", vendor="0x10de")
        pci, index = at.rpartition("/")[2], len(self._gpus)
        uuid = f"GPU-{index:08x}-b4ef-7a3c-5d92-0123456789ab"
        self.file(
            f"/proc/driver/nvidia/gpus/{pci}/information",
            f"Model: \t\t {model}\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\n"
            "Video BIOS: \t 96.00.61.00.01\nBus Type: \t PCIe\n"
            f"DMA Size: \t 52 bits\nBus Location: \t {pci}\nDevice Minor: \t {index}\nGPU Excluded:\t No",
        )
        bus = f"0000{pci}".upper()
        row = f"{index}, {uuid}, {bus}, {model}, {memory_mib}, {mig}, Enabled, {ecc}, 31, {pcie}"
        self._gpus.append({"pci": pci, "row": row, "model": model, "uuid": uuid})
        self.command(" ".join(nvidia.NVIDIA_SMI), "".join(gpu["row"] + "\n" for gpu in self._gpus))
        self.command(
            "nvidia-smi -L",
            "".join(f"GPU {n}: {gpu['model']} (UUID: {gpu['uuid']})\n" for n, gpu in enumerate(self._gpus)),
        )

    def only_gpus(self, *minors: int) -> None:
        """Only these GPUs have a device file, as in a container with a part of the host's."""
        for minor in minors:
            self.file(f"/dev/nvidia{minor}", "")

    def nvswitches(self, count: int) -> None:
        """NVSwitches behind one bridge."""
        for number in range(count):
            self.pci(
                f"pci0000:02/0000:02:01.0/0000:{5 + number:02x}:00.0",
                cls="0x068000",
                vendor="0x10de",
                driver="nvidia-nvswitch",
                numa=0,
            )

    def topology(self, link: str, nics: Sequence[str] = ()) -> None:
        """`nvidia-smi topo -m` with the same link between all GPUs."""
        gpus = [f"GPU{index}" for index in range(len(self._gpus))]
        names = [*gpus, *(f"NIC{index}" for index in range(len(nics)))]
        lines = [
            "\t"
            + "\t".join(f"\x1b[4m{name}" for name in [*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
            + "\x1b[0m"
        ]
        for name in names:
            cells = ["  X " if other == name else link if name[0] == other[0] == "G" else "SYS" for other in names]
            lines.append("\t".join([name, *cells, *(["0-51", "0", "N/A"] if name in gpus else [])]))
        legend = [
            "",
            "Legend:",
            "",
            "  X    = Self",
            "  NV#  = Connection traversing a bonded set of # NVLinks",
            "",
            "NIC Legend:",
            "",
        ]
        self.command(
            "nvidia-smi topo -m", "\n".join([*lines, *legend, *(f"  NIC{n}: {nic}" for n, nic in enumerate(nics)), ""])
        )

    def amd_gpu(self, number: int, place: str, *, numa: int, peers: Sequence[int]) -> None:
        """An MI300X in the kernel driver's topology; `number` is its KFD node."""
        at = self.pci(place, numa=numa, driver="amdgpu", cls="0x120000", vendor="0x1002")
        pci = at.rpartition("/")[2]
        bus = int(pci.split(":")[1], 16)
        node = f"/sys/class/kfd/kfd/topology/nodes/{number}"
        self.file(
            f"{node}/properties",
            f"cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\nlocation_id {bus << 8}\ndomain 0",
        )
        self.file(f"{node}/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 206141652992\nflags 0\nwidth 8192")
        for link, peer in enumerate(peers):
            self.file(
                f"{node}/io_links/{link}/properties",
                f"type 11\nversion_major 0\nnode_from {number}\nnode_to {peer}\nweight 15",
            )

    # -- network ------------------------------------------------------------------------------------------------------

    def nic(
        self, name: str, kind: str, addresses: Sequence[str] = (), *, place: str = "", driver: str = "", numa: int = -1,
        state: str = "up", mtu: int = 1500, speed: int | None = None, master: str = "", devtype: str = "",
    ) -> None:  # fmt: skip
        """An interface; `kind` is physical, bond, bridge, veth, tun, loopback, ipoib, wireless."""
        at, index = f"/sys/class/net/{name}", len(self._addresses) + 1
        far = index + 7 if kind == "veth" else index
        values = {
            "type": TYPES.get(kind, "1"),
            "ifindex": str(index),
            "iflink": str(far),
            "operstate": state,
            "mtu": str(mtu),
        }
        values["carrier"] = "1" if state in ("up", "unknown") else "0"
        values["uevent"] = (f"DEVTYPE={devtype}\n" if devtype else "") + f"INTERFACE={name}\nIFINDEX={index}"
        for key, value in values.items():
            self.file(f"{at}/{key}", value)
        if speed is not None:
            self.file(f"{at}/speed", str(speed))
        if kind == "bond":
            self.file(f"{at}/bonding/mode", "802.3ad 4")
        if kind == "bridge":
            self.file(f"{at}/bridge/stp_state", "0")
        if kind == "tun":
            self.file(f"{at}/tun_flags", "0x1001")
        if place:
            device = f"/sys/devices/{place}"
            if not (self.root / device.lstrip("/")).exists():
                self.pci(place, driver=driver, numa=numa)
            self.link(f"{at}/device", device)
            self.file(f"{device}/net/{name}/ifindex", str(index))
        if kind == "wireless":
            self.file(f"{at}/phy80211/name", "phy0")
        if master:
            self.link(f"{at}/master", f"/sys/class/net/{master}")
        info = [
            {
                "family": "inet6" if ":" in text else "inet",
                "local": text.split("/")[0],
                "prefixlen": int(text.split("/")[1]),
            }
            for text in addresses
        ]
        self._addresses.append({"ifname": name, "ifindex": index, "addr_info": info})

    def hca(
        self, name: str, place: str, *, rate: str, layer: str = "InfiniBand", numa: int = 0, driver: str = "mlx5_core",
        state: str = "4: ACTIVE", gids: Sequence[tuple[int, str, str, str]] = (), port: int = 1,
    ) -> None:  # fmt: skip
        """An RDMA device with one port; `gids` are (index, gid, type, netdev), all others are empty."""
        if not (self.root / "sys/devices" / place).exists():
            self.pci(place, numa=numa, driver=driver)
        at = f"/sys/class/infiniband/{name}"
        self.link(f"{at}/device", f"/sys/devices/{place}")
        file = f"uverbs{sum(1 for _ in (self.root / 'sys/class/infiniband_verbs').glob('*'))}"
        self.file(f"/sys/class/infiniband_verbs/{file}/ibdev", name)
        self.file(f"/dev/infiniband/{file}", "")
        self.file(f"{at}/fw_ver", "28.39.1002")
        self.file(f"{at}/node_type", "1: CA")
        values = {"state": state, "phys_state": "5: LinkUp", "rate": rate, "link_layer": layer}
        for key, value in values.items():
            self.file(f"{at}/ports/{port}/{key}", value)
        table = {index: (gid, kind, netdev) for index, gid, kind, netdev in gids}
        for index in range(16):
            gid, kind, netdev = table.get(index, (NUL_GID, "", ""))
            self.file(f"{at}/ports/{port}/gids/{index}", gid)
            if kind:  # the kernel answers EINVAL for empty entries
                self.file(f"{at}/ports/{port}/gid_attrs/types/{index}", kind)
                self.file(f"{at}/ports/{port}/gid_attrs/ndevs/{index}", netdev)

    def routes(self, *via: str) -> None:
        """/proc/net/route with a default route through each interface."""
        head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
        self.file(
            "/proc/net/route",
            "\n".join([head, *(f"{name}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0" for name in via)]),
        )


def roce_gids(ipv4: str, netdev: str, *, first: int = 0) -> list[tuple[int, str, str, str]]:
    """A port's table as mlx5 fills it: link-local v1 and v2, then those of the IPv4 address, v1 before v2."""
    mapped = "0000:0000:0000:0000:0000:ffff:" + ":".join(
        f"{int(a):02x}{int(b):02x}" for a, b in zip(ipv4.split(".")[::2], ipv4.split(".")[1::2], strict=True)
    )
    local = "fe80:0000:0000:0000:0ac0:ebff:fe12:3456"
    rows = [(local, "IB/RoCE v1"), (local, "RoCE v2"), (mapped, "IB/RoCE v1"), (mapped, "RoCE v2")]
    return [(first + index, gid, kind, netdev) for index, (gid, kind) in enumerate(rows)]
