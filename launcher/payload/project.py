"""The project that a launch belongs to: its directory's name, unique for its user and this host, and its files."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import output
from launcher.payload import scripts

if TYPE_CHECKING:
    from launcher.payload.snapshot import Snapshot
    from launcher.spec import JobSpec

_LONGEST = 40


def name_of(directory: str) -> str:
    """A name that is valid everywhere, the same for each launch from this directory."""
    real = os.path.realpath(directory)
    who = f"{os.getuid()}@{os.uname().nodename}:{real}".encode(errors="surrogateescape")
    word = re.sub(r"[^a-z0-9]+", "-", os.path.basename(real).lower()).strip("-")[:_LONGEST].rstrip("-")
    return f"{word or 'project'}-{hashlib.sha256(who).hexdigest()[:8]}"


def files(spec: JobSpec, runs_root: Path, *, limit_bytes: int) -> tuple[Snapshot, Path, list[str]]:
    """The files to send, their top directory, where workers start, and the command relative to that.

    A script outside of the working directory, or a bundled one, is sent with its own directory instead.
    """
    from launcher.payload import snapshot

    command, also, root = list(spec.command), [], Path(spec.cwd)
    if spec.kind == "script":
        script = Path(os.path.abspath(os.path.join(spec.cwd, command[0])))
        root = script.parent if scripts.is_bundled(command[0]) or not script.is_relative_to(root) else root
        command[0] = str(script.relative_to(root))
        also = [command[0]]
    found = snapshot.collect(
        root, limit_bytes=limit_bytes, also=also, leave_out=[runs_root], ship_secrets=spec.ship_secrets,
        links=spec.links,
    )  # fmt: skip
    for warning in found.warnings:
        output.warn(warning)
    return found, root, command
