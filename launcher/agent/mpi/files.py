"""The files and programs that an mpirun is given."""

from __future__ import annotations

import os
from typing import Any


def source(name: str) -> str:
    """The text of a program of this package."""
    loader: Any = __spec__.loader  # of the archive, too
    data: bytes = loader.get_data(os.path.join(os.path.dirname(__file__), name))
    return data.decode()


def write(path: str, text: str) -> None:
    """Write a text."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def shell(scratch: str, directory: str) -> str:
    """Write the program that mpirun calls in place of ssh; its path.

    It is in memory, as each MPI takes the path apart at spaces, which that of a run may have; unless nothing may be
    executed there, as in some containers.
    """
    begin = '#!/bin/sh\nexec "$DISTLAUNCH_MPI_PYTHON" -ISE - "$@" <<\'END\'\n'
    path = ""
    for at in (scratch, directory):
        path = os.path.join(at, "mpi-shell")
        write(path, begin + source("remote_shell.py") + "END\n")
        os.chmod(path, 0o700)
        if os.access(path, os.X_OK):
            break
    return path
