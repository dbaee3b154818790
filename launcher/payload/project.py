"""The project that a launch belongs to: its directory's name, unique for its user and this host, and its files."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import output
from launcher.errors import SpecError
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

    A script outside of the working directory, or a bundled one, is sent with its own directory instead. Raises
    `SpecError` for roles whose scripts would be sent with different directories.
    """
    from launcher.payload import snapshot

    roots = {str(_root(part)): part.command[0] for part in spec.parts}
    if len(roots) > 1:
        shown = ", ".join(roots.values())
        raise SpecError(f"roles: {shown} are in different directories", hint="copy them to the working directory")
    root = Path(*roots)
    commands = [command_in(part, root) for part in spec.parts]
    also = [command[0] for command, part in zip(commands, spec.parts, strict=True) if part.kind == "script"]
    found = snapshot.collect(
        root, limit_bytes=limit_bytes, also=also, leave_out=[runs_root], ship_secrets=spec.ship_secrets,
        links=spec.links,
    )  # fmt: skip
    for warning in found.warnings:
        output.warn(warning)
    return found, root, commands[0]


def command_in(spec: JobSpec, root: Path) -> list[str]:
    """The command, with its script relative to the top directory of the files that are sent."""
    if spec.kind != "script":
        return list(spec.command)
    return [str(_script(spec).relative_to(root)), *spec.command[1:]]


def _root(spec: JobSpec) -> Path:
    """The directory that is sent."""
    inside = spec.kind != "script" or (
        _script(spec).is_relative_to(spec.cwd) and not scripts.is_bundled(spec.command[0])
    )
    return Path(spec.cwd) if inside else _script(spec).parent


def _script(spec: JobSpec) -> Path:
    return Path(os.path.abspath(os.path.join(spec.cwd, spec.command[0])))
