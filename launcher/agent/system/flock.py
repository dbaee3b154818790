"""Locks of files that the kernel frees with the descriptor, or with the process."""

from __future__ import annotations

import errno
import fcntl
from typing import BinaryIO, Optional, Union

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
"""Lustre that is mounted without `flock`, NFS 3 without lockd, and some FUSE mounts."""


def taken(file: Union[int, BinaryIO]) -> bool:
    """Lock the file, without waiting; False if another process or thread has it.

    Also true where the file system has no such locks, as nothing can be known there.
    """
    return taken_if_known(file) is not False


def taken_if_known(file: Union[int, BinaryIO]) -> Optional[bool]:
    """The same; None where the file system has no such locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True
