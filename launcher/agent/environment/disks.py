"""The disk of a store: it is not a shared one, which would save nothing, and it may be full."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Dict, Iterator

from .manifest import BringError

_NETWORK = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "glusterfs", "afs", "panfs", "wekafs", "9p"),
    *("virtiofs", "orangefs", "pvfs2", "ocfs2", "gfs2"),
)
_LOCAL_FUSE = ("fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.lxcfs")
"""Other file systems of programs are shared disks as a rule: sshfs, JuiceFS, those of object stores."""


def kind_of(path: str) -> str:
    """The kind of the shared file system that has the path; empty if it is on a local disk."""
    kind = _file_system(path)
    is_shared = kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)
    return kind if is_shared else ""


def _file_system(path: str) -> str:
    """The kind of the file system that has the path; empty if it is not known."""
    mounts: Dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, place, kind = line.split(" ")[:3]
            mounts[place.replace("\\040", " ")] = kind
    while path not in mounts and path != "/":
        path = os.path.dirname(path)
    return mounts.get(path, "")


class FullError(BringError):
    """The disk is full."""


@contextlib.contextmanager
def errors(directory: str) -> Iterator[None]:
    """Raise `FullError` for errors of a disk without space."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FullError(
                f"{directory}: {error.strerror}: the environment does not fit; --env-ship-dir DIR names another place"
            ) from error
        raise
