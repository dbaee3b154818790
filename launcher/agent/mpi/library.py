"""Which MPI a program uses: one that mpirun does not start makes a world of its own, of one rank, and may succeed."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Dict, Optional

from .vendor import HYDRA, OPEN_MPI, Vendor

_LIBRARY = re.compile(rb"libmpi(?:ch)?\.so\.(?:12|40)\b")
_MAX_BYTES = 64 << 20


def of_program(name: str, cwd: str, env: Dict[str, str]) -> str:
    """The library that an executable is linked with; empty if that is none, or not known."""
    import shutil  # it imports all compressions

    path = shutil.which(os.path.join(cwd, name) if os.path.dirname(name) else name, path=env.get("PATH", os.defpath))
    with contextlib.suppress(OSError), open(path or "", "rb") as file:
        return _named(file.read(_MAX_BYTES)) if file.read(4) == b"\x7fELF" else ""
    return ""


def of_process(pid: int) -> str:
    """The library that a process has loaded; empty if it has not loaded one yet."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        return _named(file.read())
    return ""


def _named(data: bytes) -> str:
    found = _LIBRARY.search(data)
    return found[0].decode() if found else ""


def stranger(library: str, vendor: Vendor) -> Optional[str]:
    """Why the library cannot be in the world of this MPI; None: it can."""
    kind = OPEN_MPI if library.endswith(".40") else HYDRA
    if not library or kind == vendor.kind:
        return None
    whose = "Open MPI's" if kind == OPEN_MPI else "MPICH's or Intel's"
    return f"uses {library}, {whose}, and {vendor.mpirun} is of {vendor.name}: each rank would be alone in its world"
