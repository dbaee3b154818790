"""The network links of a host: their speed, and how often they failed since the agent started."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Dict, List, Optional, Sequence

from ..named_tuple import NamedTuple

_NET, _RDMA = "sys/class/net", "sys/class/infiniband"
_RDMA_ERRORS = (
    *("link_error_recovery", "port_rcv_errors"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
)
_NET_ERRORS = ("statistics/rx_crc_errors", "statistics/rx_frame_errors", "statistics/tx_carrier_errors")
"""What a bad cable or transceiver causes. Sound links have symbol errors, too, and full queues drop packets."""


class Link(NamedTuple):
    """An RDMA port (`mlx5_0:1`) or a network device with hardware."""

    name: str
    speed: str
    """The file with its speed."""

    downs: str
    errors: Sequence[str]


class Links:
    """The links of this host, read several times."""

    def __init__(self, root: str = "/") -> None:
        self._links = [*_rdma(root), *_devices(root)]
        self._first = {link.name: (_count(link.downs), _sum(link.errors)) for link in self._links}

    def now(self) -> Dict[str, List[object]]:
        """The columns of a sample; those without any value are left out."""
        columns: Dict[str, List[object]] = {
            "link_gbps": [_gbps(link.speed) for link in self._links],
            "link_downs": [_since(_count(link.downs), self._first[link.name][0]) for link in self._links],
            "link_errors": [_since(_sum(link.errors), self._first[link.name][1]) for link in self._links],
        }
        known = {name: column for name, column in columns.items() if any(value is not None for value in column)}
        return {"links": [link.name for link in self._links], **known} if known else {}


def _rdma(root: str) -> List[Link]:
    found = []
    for device in _names(os.path.join(root, _RDMA)):
        for port in _names(os.path.join(root, _RDMA, device, "ports")):
            at = os.path.join(root, _RDMA, device, "ports", port)
            errors = [f"{at}/counters/{name}" for name in _RDMA_ERRORS]
            found.append(Link(f"{device}:{port}", f"{at}/rate", f"{at}/counters/link_downed", errors))
    return found


def _devices(root: str) -> List[Link]:
    found = []
    for name in _names(os.path.join(root, _NET)):
        at = os.path.join(root, _NET, name)
        if os.path.exists(f"{at}/device"):
            errors = [f"{at}/{each}" for each in _NET_ERRORS]
            found.append(Link(name, f"{at}/speed", f"{at}/carrier_down_count", errors))
    return found


def _names(path: str) -> List[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(path))
    return []


def _text(path: str) -> str:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        return file.read().strip()
    return ""


def _count(path: str) -> Optional[int]:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _sum(paths: Sequence[str]) -> Optional[int]:
    known = [count for count in map(_count, paths) if count is not None]
    return sum(known) if known else None


def _since(now: Optional[int], first: Optional[int]) -> Optional[int]:
    """The difference; of a counter that was reset, what it has counted since."""
    return None if now is None or first is None else now - first if now >= first else now


def _gbps(path: str) -> Optional[float]:
    """`400 Gb/sec (4X NDR)` of an RDMA port, or megabits of a device, where -1 means that it is not known."""
    text = _text(path)
    rate = re.match(r"([\d.]+) Gb/sec", text)
    if rate:
        return float(rate[1])
    return int(text) / 1000 if text.isdigit() and int(text) < 1 << 31 else None
