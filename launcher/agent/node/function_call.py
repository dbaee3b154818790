"""A function in place of a script (`distlaunch.call`): the agent makes it a script and forwards each rank's result."""

from __future__ import annotations

import binascii
import contextlib
import os
from typing import TYPE_CHECKING, Optional, Tuple

from ..job import Job
from ..system.scratch import within

if TYPE_CHECKING:
    from ..messages import ExitedWorker
    from ..stream.writer import Writer

LIMIT_BYTES = 64 * 1024 * 1024
"""A rank's result that is larger than this stays in its file."""

_PART_BYTES = 192 * 1024
_READ_S = 30.0
_SCRIPT = "called.py"


def as_script(job: Job, node_rank: int) -> Job:
    """The job, with the script that calls its function as the command if it has one."""
    if job.function is None:
        return job
    return job._replace(kind="script", command=[os.path.join(_directory(job, node_rank), _SCRIPT)])


def write(job: Job, node_rank: int) -> None:
    """Write the script and its request, readable only by this user; files of a previous attempt are removed."""
    if job.function is None:
        return
    import pkgutil

    directory = _directory(job, node_rank)
    os.makedirs(directory, 0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    for name in os.listdir(directory):
        os.unlink(os.path.join(directory, name))
    request = binascii.a2b_base64(job.function)
    text = pkgutil.get_data(__package__, _SCRIPT) or b""
    if b"torch" in request:
        text += b'\n_NAMED = "torch"  # the fork server imports ahead what a script names\n'
    for name, content in (("request", request), (_SCRIPT, text)):
        fd = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(content)


def send_result(job: Job, node_rank: int, worker: ExitedWorker, out: Writer) -> None:
    """Write the worker's result to the stream; a worker that was killed has none."""
    if job.function is None:
        return
    path = os.path.join(_directory(job, node_rank), f"result-{worker['rank']}")
    about = {"rank": worker["rank"], "round": worker["round"]}
    nothing: Tuple[int, Optional[bytes]] = (0, None)
    size, data = within(_READ_S, lambda: _read(path), nothing)
    if data is None:
        if size:
            out.event("returned", **about, path=path)
        return
    pieces = [data[start : start + _PART_BYTES] for start in range(0, size, _PART_BYTES)]
    for part, piece in enumerate(pieces):
        out.event(
            "returned",
            **about,
            part=part,
            parts=len(pieces),
            data=binascii.b2a_base64(piece, newline=False).decode("ascii"),
        )
    with contextlib.suppress(OSError):
        os.unlink(path)


def _read(path: str) -> Tuple[int, Optional[bytes]]:
    """Size and content of a file: without content if it is too large, with size 0 if it is missing."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return size, file.read() if size <= LIMIT_BYTES else None
    except OSError:
        return 0, None


def _directory(job: Job, node_rank: int) -> str:
    return os.path.join(job.directory, "nodes", str(node_rank), "call")
