"""Open MPI's components for libfabric are left out where no node has a device that they could use.

Open MPI opens them on every node. To close the one that moves bytes (`btl/ofi`) takes it a second of sleep in each
MPI_Init, and to look for libfabric's providers takes tens of milliseconds of CPU time per rank. By default both
components pass over the providers that need no device (tcp, sockets, udp, shm), so they find nothing on such a node.
"""

from __future__ import annotations

import glob
import os
import re
from typing import TYPE_CHECKING, Dict

from ..fabric.sources import Tree

if TYPE_CHECKING:
    from .vendor import Vendor

COMPONENTS = {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_mtl": "^ofi"}
"""The variables that leave them out."""

_DEVICES = ("/sys/class/infiniband", "/sys/class/cxi")
"""InfiniBand, RoCE, EFA and Omni-Path, and Slingshot."""

_CHOICE = re.compile(r"(btl|mtl|pml|mca_base_\w*file\w*)$")
_PREFIX = "OMPI_MCA_"
_FILES = "openmpi-mca-params*.conf"
_LINE = re.compile(r"\s*([\w-]+)\s*=")


def is_unused(vendor: Vendor, env: Dict[str, str], tree: Tree) -> bool:
    """Whether this node has no device for libfabric, and no one has chosen Open MPI's components.

    Args:
        vendor: the MPI.
        env: the variables of its ranks.
        tree: the host's files.
    """
    from .vendor import OPEN_MPI

    if vendor.kind != OPEN_MPI or any(tree.names(place) for place in _DEVICES):
        return False
    chosen = (name[len(_PREFIX) :] for name in env if name.startswith(_PREFIX))
    return not any(_CHOICE.match(name) for name in chosen) and not _files_choose(vendor, env)


def _files_choose(vendor: Vendor, env: Dict[str, str]) -> bool:
    """Whether a file of settings, the user's or that of the installation, names components."""
    prefixes = {os.path.dirname(os.path.dirname(path)) for path in (vendor.mpirun, os.path.realpath(vendor.mpirun))}
    prefixes.update(env[name] for name in ("OPAL_PREFIX", "PRTE_PREFIX") if env.get(name))
    patterns = [os.path.join(glob.escape(prefix), "etc", _FILES) for prefix in prefixes]
    patterns += [f"/etc/openmpi*/{_FILES}"] if any(prefix.startswith("/usr") for prefix in prefixes) else []
    patterns += [os.path.join(glob.escape(env.get("HOME", "")), ".openmpi/mca-params.conf")]
    return any(_chooses(path) for pattern in patterns for path in glob.glob(pattern))


def _chooses(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = [_LINE.match(line) for line in file]
    except OSError:
        return True  # what it says is not known
    return any(line and _CHOICE.match(line[1]) for line in found)
