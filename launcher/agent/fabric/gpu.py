"""One GPU of any vendor."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

from ..named_tuple import NamedTuple


class Gpu(NamedTuple):
    """One GPU; a field that is unknown is None or empty."""

    index: int  # type: ignore[assignment]  # hides tuple.index
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
    """NVIDIA's Xid error numbers in the kernel log, oldest first."""

    pcie: str = ""
    """Current and maximum generation and width of the link: `gen 4 of 5, x16 of 16`."""

    links: Mapping[str, str] = {}
    """Links to other GPUs by their index: `NV18`, `XGMI`, or the PCI distance."""
