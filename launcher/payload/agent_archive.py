"""The agent as a single file, or in few parts, which is sent to the nodes with each run."""

from __future__ import annotations

import os
import sys
import zlib
from contextlib import suppress
from functools import cache

import launcher
from launcher.agent.named_tuple import NamedTuple
from launcher.agent.system import files, trust
from launcher.payload import kept_agent

_ROOT = os.path.dirname(launcher.__file__)
_CHECKSUM_BYTES = 8
_NAME_BYTES = 32
_PACKING = [os.path.join(os.path.dirname(__file__), name) for name in ("agent_packing.py", "agent_start.py")]


class Kept(NamedTuple):
    """What an earlier command packed."""

    name: str
    packed: bytes


@cache
def packed() -> bytes:
    """The agent as a zipapp, with the same bytes for the same sources and Python.

    It is kept beside Python's own bytecode, and like that it is packed anew when a source has changed, or if it is
    damaged.
    """
    found = kept()
    if found is not None:
        return found.packed
    from launcher.payload import agent_packing

    made = agent_packing.whole(sources())
    if not sys.dont_write_bytecode:
        with suppress(OSError):  # as Python does without its own bytecode
            os.makedirs(os.path.dirname(kept_agent()), exist_ok=True)
            whole = trust.agent_name(made).encode() + made
            files.write_whole(kept_agent(), _signature() + _checksum(whole) + whole, sync=False)
    return made


def name(content: bytes) -> str:
    """The name of an agent's file with this content; of the one that is packed, it is kept with it."""
    found = kept()
    return found.name if found is not None and content == found.packed else trust.agent_name(content)


@cache
def kept() -> Kept | None:
    """What an earlier command packed, if it is of these sources, and whole."""
    signature = _signature()
    with suppress(OSError), open(kept_agent(), "rb") as file:
        if file.read(len(signature)) == signature:
            checksum, whole = file.read(_CHECKSUM_BYTES), file.read()
            if checksum == _checksum(whole):
                return Kept(whole[:_NAME_BYTES].decode("ascii"), whole[_NAME_BYTES:])
    return None


def _checksum(whole: bytes) -> bytes:
    return b"%0*x" % (_CHECKSUM_BYTES, zlib.crc32(whole))


def _signature() -> bytes:
    """What decides what is packed: this Python, and the state of each source."""
    lines = [f"{sys.version} {sys.flags.optimize} {zlib.ZLIB_RUNTIME_VERSION}"]
    for path in (__file__, *_PACKING, *sources()):
        about = os.stat(path)
        lines.append(f"{path} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}")
    return "\0".join([*lines, "\0"]).encode(errors="surrogateescape")


@cache
def digest() -> str:
    """SHA-256 over all that decides what `packed` returns, without the work of packing."""
    import hashlib

    found = hashlib.sha256(f"{sys.version} {zlib.ZLIB_RUNTIME_VERSION}".encode())
    for path in (__file__, *_PACKING, *sources()):
        with open(path, "rb") as file:
            text = file.read()
        found.update(f"\0{os.path.relpath(path, _ROOT)} {len(text)}\0".encode() + text)
    return found.hexdigest()


@cache
def parts() -> dict[str, bytes]:
    """The agent as small as possible, in several files: `agent.pyz`, which is run, and `agent.pyz.1`, ... beside it.

    Comments and docstrings are removed, and line numbers stay. A package is in one part, whole.
    """
    from launcher.payload import agent_packing

    return agent_packing.parts(sources())


@cache
def sources() -> tuple[str, ...]:
    """The files of the agent, in the order in which they are packed."""
    found = [
        os.path.join(directory, name)
        for directory, _, names in os.walk(os.path.join(_ROOT, "agent"))
        for name in names
        if name.endswith(".py")
    ]
    return tuple(sorted(found, key=lambda path: path.split(os.sep)))
