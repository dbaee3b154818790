"""The agent as a child of the process that shows its stream, with a temporary directory: `distlaunch torchrun`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import zlib
from typing import NoReturn

from ..job import Job
from ..system import processes

ARCHIVE = "agent"
"""Subdirectory from which the agent's processes are started."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""Names this host as long as it runs: the directory above may be on a file system that several share."""

_NAME = re.compile(r"distlaunch-torchrun-[0-9]+-[0-9a-f]{8}-[0-9]+-([0-9]+)-([0-9]+)\Z")


def run(job: Job, rank: int, stream: int, parent: int) -> NoReturn:
    """Run the agent to its end, which comes soon if `parent` exits first; the last to exit removes the directory."""
    from .agent import Node

    os.setsid()
    processes.die_with_parent(parent, signal.SIGTERM)
    stderr = os.open(os.path.join(job.directory, "stderr"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd in (1, 2):  # a stray print must not end up in the stream
        os.dup2(stderr, fd)
    code = 1
    try:
        code = Node(job, rank, stream).run()
    finally:
        if os.getppid() != parent:
            remove(job.directory)
        os._exit(code)


def create(above: str) -> str:
    """Make a directory there for this process, and remove those of killed ones. Raises `OSError`."""
    prefix = f"distlaunch-torchrun-{os.getuid()}-{_host()}-{os.stat('/proc/self/ns/pid').st_ino}-"
    with contextlib.suppress(OSError):
        for name in os.listdir(above):
            if name.startswith(prefix) and _is_dead(os.path.join(above, name)):
                remove(os.path.join(above, name))
    directory = os.path.join(above, f"{prefix}{os.getpid()}-{processes.start_ticks(os.getpid())}")
    os.mkdir(directory, 0o700)
    archive = os.path.join(directory, ARCHIVE)
    os.mkdir(archive)
    os.symlink(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.path.join(archive, "distlaunch_agent"))
    with open(os.path.join(archive, "__main__.py"), "w", encoding="ascii") as file:
        file.write("from distlaunch_agent.__main__ import main\n\nmain()\n")
    return directory


def _host() -> str:
    """Eight hexadecimal digits that are another host's only by chance, also where /proc/sys is not there."""
    with contextlib.suppress(OSError), open(BOOT_ID, encoding="ascii") as file:
        return file.read(8)
    return f"{zlib.crc32(os.uname().nodename.encode(errors='surrogateescape')):08x}"


def remove(directory: str) -> None:
    """Remove such a directory and its content, without following links."""
    with contextlib.suppress(OSError):
        for path, directories, files in os.walk(directory, topdown=False):
            for name in files:
                os.unlink(os.path.join(path, name))
            for name in directories:
                inner = os.path.join(path, name)
                (os.unlink if os.path.islink(inner) else os.rmdir)(inner)
        os.rmdir(directory)


def _is_dead(directory: str) -> bool:
    """Whether it is such a directory, owned by this user, whose processes have exited."""
    found = _NAME.match(os.path.basename(directory))
    with contextlib.suppress(OSError):
        about = os.lstat(directory)
        ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not stat.S_IMODE(about.st_mode) & 0o077
        return bool(
            ours and found and str(processes.start_ticks(int(found[1]))) != found[2] and not _has_agent(directory)
        )
    return False


def _has_agent(directory: str) -> bool:
    """Whether the agent, which exits a moment after its parent, is still running."""
    nodes = os.path.join(directory, "nodes")
    for rank in os.listdir(nodes) if os.path.isdir(nodes) else []:
        with (
            contextlib.suppress(OSError, ValueError, KeyError),
            open(os.path.join(nodes, rank, "agent.json"), "rb") as file,
        ):
            identity = json.load(file)
            if processes.start_ticks(identity["pid"]) == identity["start_ticks"]:
                return True
    return False
