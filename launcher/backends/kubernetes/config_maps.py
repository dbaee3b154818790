"""The pods' input as ConfigMaps: the agent, its spec, and archives of the files, cut into pieces.

ConfigMaps need no registry, no shared volume and only the right to create them; every node's kubelet fetches them.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.errors import SpecError
from launcher.system import install

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.payload.snapshot import Snapshot
    from launcher.spec import JobSpec

LIMIT_BYTES = 64_000_000
"""Maximum total size of the working directory's files."""

ARCHIVE_LIMIT_BYTES = 24_000_000
"""Maximum size when packed. etcd keeps all of it while the run exists, and has 2 GB for the whole cluster."""

SMALL_BYTES = 192_000
"""`kubectl apply` copies each object into an annotation of at most 256 KiB; this much still fits as base64."""

_SMALL_PIECES = 8
_LARGE_BYTES = 960_000
"""A ConfigMap holds at most 1 MiB."""

_SMALL_NODES = 64
"""Each node fetches, and its kubelet watches, every ConfigMap: those of a larger run are few and large."""

_LEAST_BYTES = 16_000
"""Less of an archive is not worth a piece."""


def archives(snapshot: Snapshot | None, *, bundled: bool) -> dict[str, bytes]:
    """The archives that the pod unpacks, by name: the user's files, and the scripts that come with distlaunch."""
    from launcher.payload import snapshot as snapshots

    found: dict[str, bytes] = {}
    if snapshot is not None:
        found["files"] = _packed(snapshot)
    if bundled:
        found["bundled"] = _packed(snapshots.collect(install.data("train"), limit_bytes=LIMIT_BYTES))
    total = sum(map(len, found.values()))
    if total > ARCHIVE_LIMIT_BYTES and snapshot is not None:
        raise SpecError(
            f"the files in {str(snapshot.directory)!r} are {total / 1e6:.0f} MB when packed, "
            f"and at most {ARCHIVE_LIMIT_BYTES / 1e6:.0f} MB travel by ConfigMaps",
            hint="list what the run does not need in .gitignore or .distlaunchignore, build it into the image, "
            "or put it on a volume: --volume pvc:CLAIM:PATH --workdir PATH",
        )
    return found


def collect(spec: JobSpec, own: list[str], leave_out: Path) -> Snapshot:
    """The files of the working directory, and those scripts in any case."""
    from launcher.payload import snapshot as snapshots

    how: dict[str, Any] = {"also": own, "leave_out": [leave_out]}
    how |= {"ship_secrets": spec.ship_secrets, "links": spec.links}
    found = snapshots.collect(Path(spec.cwd), limit_bytes=LIMIT_BYTES, **how)
    for warning in found.warnings:
        output.warn(warning)
    return found


def contents(
    spec_text: str, agent: Mapping[str, bytes], packed: Mapping[str, bytes], nodes: int
) -> list[dict[str, Any]]:
    """The `data` and `binaryData` of each ConfigMap: as few as possible, of which the first one has the spec.

    `agent`: its parts. The archives are cut into `files.tgz.000`, `files.tgz.001`, ..., which the agent joins.
    """
    total = sum(map(len, packed.values()))
    is_small = nodes <= _SMALL_NODES and total <= SMALL_BYTES * _SMALL_PIECES
    size = SMALL_BYTES if is_small else _LARGE_BYTES
    made: list[dict[str, Any]] = [{"data": {"spec.json": spec_text}, "binaryData": {}}]
    rooms = [size - len(json.dumps(spec_text)) * 3 // 4]  # it is not base64

    def put(key: str, data: bytes, least: int) -> int:
        """Add as much as fits where `least` fits; returns how much that is."""
        number = next((number for number, room in enumerate(rooms) if room >= least), len(rooms))
        if number == len(rooms):
            made.append({"binaryData": {}})
            rooms.append(size)
        piece = data[: rooms[number]]
        made[number]["binaryData"][key] = _text(piece)
        rooms[number] -= len(piece)
        return len(piece)

    for key, data in sorted(agent.items(), key=lambda part: -len(part[1])):  # the largest first: fewer are half empty
        assert put(key, data, len(data)) == len(data), "a part is smaller than a ConfigMap"
    for name, data in packed.items():
        number = start = 0
        while start < len(data):
            start += put(f"{name}.tgz.{number:03}", data[start:], min(_LEAST_BYTES, len(data) - start))
            number += 1
    return made


def _packed(snapshot: Snapshot) -> bytes:
    buffer = io.BytesIO()
    snapshot.write_tar(buffer, compress=True)
    return buffer.getvalue()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
