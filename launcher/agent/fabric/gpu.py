"""One GPU, of whichever vendor."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Sequence


class Gpu(NamedTuple):
    """One GPU; None and empty where nothing tells it."""

    index: int  # type: ignore[assignment]  # no tuple's method
    vendor: str
    model: str
    pci: str
    numa: Optional[int] = None
    place: str = ""
    uuid: str = ""
    memory_bytes: Optional[int] = None
    driver: str = ""
    mig: Optional[bool] = None
    mig_devices: Sequence[str] = ()
    ecc: Optional[bool] = None
    ecc_uncorrected: Optional[int] = None
    """Since the driver was loaded."""

    xid: Sequence[int] = ()
    """NVIDIA's error numbers in the kernel's log, oldest first."""

    pcie: str = ""
    """`gen 4 of 5, x16 of 16`: what the link has, and could have."""

    links: Mapping[str, str] = {}
    """To other GPUs by index, `NV18`, `XGMI`, or the PCI distance."""
