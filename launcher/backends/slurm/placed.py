"""Where the nodes find the user's files: where they are, or in a copy that the run has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import output
from launcher.payload import project, scripts
from launcher.spec import parse_size
from launcher.system import install
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from launcher.backends.slurm.options import SlurmOptions
    from launcher.backends.slurm.site import Site
    from launcher.payload.snapshot import Snapshot
    from launcher.spec import JobSpec

_SNAPSHOT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the nodes find the user's files."""

    copied: Path | None = None
    """The directory that is copied for the run; None if the nodes use the files where they are."""

    folder: str = "snapshot"
    """The copy's directory, in the run's."""

    snapshot: Snapshot | None = None
    """The files of that directory."""

    script: str = ""
    """The script, relative to the top of what is sent; empty if it stays as given."""

    def path(self, path: str, directory: Path) -> str:
        """The path in the run's directory of a bundled script or a copied file; other paths as they are."""
        for old, new in ((self.copied, self.folder), (install.data("train"), "payload")):
            if old and os.path.isabs(path) and Path(path).is_relative_to(old):
                return str(directory / new / os.path.relpath(path, old))
        return path

    def command(self, part: JobSpec, directory: Path) -> list[str]:
        """What the nodes run of this job, or of the job of one of its roles."""
        if self.script and self.copied:
            return project.command_in(part, self.copied)
        first, *args = part.command
        return [self.path(first, directory) if part.kind == "script" else first, *args]

    def start(self, cwd: str, directory: Path) -> str:
        """Where workers start: the working directory, or the top of the copy if that is not in it."""
        if self.copied and not Path(cwd).is_relative_to(self.copied):
            return str(directory / self.folder)
        return self.path(cwd, directory)


def find(spec: JobSpec, opts: SlurmOptions, site: Site, runs_root: Path) -> Placed:
    """Where the nodes will find the user's files. Raises `SpecError` for files that cannot be copied or sent."""
    bundled = any(part.kind == "script" and scripts.is_bundled(part.command[0]) for part in spec.parts)
    if site.login and (bundled or not opts.in_place):
        files, top, command = project.files(
            spec, runs_root, limit_bytes=parse_size(opts.snapshot_limit, "snapshot-limit")
        )
        return Placed(top, "work", files, command[0])
    if not opts.snapshot:
        return Placed()
    from launcher.payload import snapshot

    top = snapshot.root(Path(spec.cwd))
    return Placed(top, "snapshot", _collect(spec, top, runs_root))


def _collect(spec: JobSpec, directory: Path, runs_root: Path) -> Snapshot:
    """The user's files as they are now."""
    from launcher.payload import snapshot

    found = snapshot.collect(
        directory,
        limit_bytes=_SNAPSHOT_BYTES,
        also=[os.path.relpath(os.path.join(spec.cwd, part.command[0]), directory) for part in spec.parts],
        leave_out=[runs_root],
        links=spec.links,
        same_disk=True,
        ship_secrets=spec.ship_secrets,
    )
    for warning in found.warnings:
        output.warn(warning)
    return found
