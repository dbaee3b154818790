"""What a host uses: CPUs, memory, and what its network devices have received and sent."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Dict, List, Optional, Set, Tuple

from ..named_tuple import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_NET, _RDMA = "/sys/class/net", "sys/class/infiniband"
_Number = Optional[float]
_DATA = (
    ("counters/port_rcv_data", "counters/port_xmit_data", 4),
    ("hw_counters/rx_bytes", "hw_counters/tx_bytes", 1),
)
"""What a port has received and sent, and the unit: InfiniBand counts words. EFA has only the second ones."""


class Counters(NamedTuple):
    """What only grows."""

    time: float
    busy_s: Optional[float]
    """CPU time of all CPUs that was not idle."""

    received: Optional[int]
    sent: Optional[int]
    rdma_received: Optional[int]
    rdma_sent: Optional[int]


class Host:
    """This host, read several times."""

    def __init__(self, root: str = "/") -> None:
        """`root`: where the RDMA devices are described."""
        self._devices = _physical()
        self._ports = _rdma_ports(os.path.join(root, _RDMA))
        self._last: Optional[Counters] = None

    def use(self) -> Dict[str, Optional[float]]:
        """The fields of a sample; rates since the last call, so none in the first one."""
        now, last = self._counters(), self._last
        self._last = now
        used, total = _memory_mib()
        fields: Dict[str, Optional[float]] = {
            "cpus": os.cpu_count(), "memory_mib": used, "memory_total_mib": total
        }  # fmt: skip
        if last is not None:
            passed = max(0.1, now.time - last.time)
            fields["cpu"] = _rate(now.busy_s, last.busy_s, passed, 2)
            for name in ("received", "sent", "rdma_received", "rdma_sent"):
                fields[name] = _rate(getattr(now, name), getattr(last, name), passed)
        return fields

    def _counters(self) -> Counters:
        received, sent = _traffic(self._devices)
        into, out = _rdma(self._ports)
        return Counters(time.monotonic(), _busy_s(), received, sent, into, out)


def _rate(now: _Number, before: _Number, passed_s: float, digits: Optional[int] = None) -> Optional[float]:
    """Per second; None if it is not known. A counter that was reset has no rate below zero."""
    return None if now is None or before is None else round(max(0.0, now - before) / passed_s, digits)


def _busy_s() -> Optional[float]:
    """From the first line of /proc/stat: user nice system idle iowait irq softirq steal ..."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/stat", "rb") as file:
        user, nice, system, _, _, irq, soft = map(int, file.readline().split()[1:8])
        return (user + nice + system + irq + soft) / _TICKS
    return None


def _memory_mib() -> Tuple[Optional[int], Optional[int]]:
    """Used memory, without what could be freed, and all of it."""
    with contextlib.suppress(OSError, ValueError, KeyError), open("/proc/meminfo", encoding="ascii") as file:
        kib = dict(line.split(":", 1) for line in file)
        total, free = (int(kib[name].split()[0]) // 1024 for name in ("MemTotal", "MemAvailable"))
        return total - free, total
    return None, None


def _physical() -> Set[str]:
    """The network devices with hardware: others, such as bridges, pass on what those receive. Else all but loopback."""
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(_NET) if name != "lo"]
        return {name for name in names if os.path.exists(f"{_NET}/{name}/device")} or set(names)
    return set()


def _traffic(devices: Set[str]) -> Tuple[Optional[int], Optional[int]]:
    """The bytes that these devices have received and sent."""
    if not devices:
        return None, None
    received = sent = 0
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/net/dev", encoding="ascii") as file:
        for line in file:
            name, _, counts = line.partition(":")
            if name.strip() in devices:
                fields = counts.split()
                received, sent = received + int(fields[0]), sent + int(fields[8])
        return received, sent
    return None, None


def _rdma_ports(at: str) -> List[str]:
    """The directories of all RDMA ports."""
    found = []
    with contextlib.suppress(OSError):
        for device in os.listdir(at):
            with contextlib.suppress(OSError):
                found += [f"{at}/{device}/ports/{port}" for port in os.listdir(f"{at}/{device}/ports")]
    return found


def _rdma(ports: List[str]) -> Tuple[Optional[int], Optional[int]]:
    """The bytes that these ports have received and sent."""
    counts = [found for port in ports if (found := _counts(port))]
    return (sum(into for into, _ in counts), sum(out for _, out in counts)) if counts else (None, None)


def _counts(port: str) -> Optional[Tuple[int, int]]:
    """The same of one port, by the first kind of counters that it has."""
    for received, sent, unit in _DATA:
        with contextlib.suppress(OSError, ValueError):
            return _read(f"{port}/{received}") * unit, _read(f"{port}/{sent}") * unit
    return None


def _read(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())
