"""What would be sent, as text, and the check whether `--render-to` may write to a directory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.errors import SpecError, StorageError
from launcher.runs import directories
from launcher.system import amounts, input_file, storage, trust

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.payload.snapshot import Snapshot
    from launcher.results.cluster import Planned, Sent
    from launcher.service.launch import Launch
    from launcher.service.request import Request

_HEAD_BYTES = 200


def check(directory: Path, marks: tuple[str, ...]) -> None:
    """Raise `SpecError` unless the directory is empty, or was written for the same backend before.

    `marks` are files that every such directory contains; the first one names the run.
    """
    try:
        there = sorted(os.listdir(directory))
    except OSError as error:
        raise StorageError(f"cannot read {str(directory)!r}: {error.strerror}") from error
    if not there or (
        all(os.path.lexists(directory / name) for name in marks) and directories.is_id(_run_in(directory / marks[0]))
    ):
        return
    raise SpecError(
        f"--render-to {str(directory)!r} holds other files: {amounts.listed(there)}",
        hint="name a new directory, or one of the same kind of run",
    )


def _run_in(path: Path) -> str:
    """The run that a rendered file belongs to; empty if it is not a rendered file."""
    if path.suffix == ".json":
        return str((storage.read_json(path) or {}).get("run"))
    try:
        fd = input_file.open_fd(path)
    except OSError:
        return ""
    with open(fd, "rb") as file:
        found = re.match(r"# Run (\S+): ", file.read(_HEAD_BYTES).decode(errors="replace"))
    return found[1] if found else ""


class Rendered(NamedTuple):
    """What would be sent, as text."""

    texts: Mapping[str, str]
    written: tuple[str, ...]
    """Paths of the written files, if any."""

    data: Planned
    """All of it as plain JSON."""

    sent: Snapshot | None
    """The user's files that are sent along."""


def render(launch: Launch) -> Rendered:
    """What would be sent, as text; also written to files if the request names a directory."""
    request, plan = launch.request, launch.plan
    directory = request.options.render_to
    more: tuple[str, ...] = ()
    if directory:
        with storage.storage_errors(directory):
            trust.make("--render-to", directory)
        trust.require("--render-to", directory, searched=True)  # its contents are executed
        check(Path(directory), request.backend.marks(plan))
        texts, more = request.backend.write(plan, Path(directory))
    else:
        texts = request.backend.render(plan)
    sent = request.backend.files(plan)
    data: Planned = {
        "backend": request.backend_name,
        "nodes": [
            {"node_rank": node.node_rank, "host": node.host, "workers": node.workers, "role": node.role}
            for node in plan.nodes
        ],
        "master": plan.master,
        "files": dict(texts),
        "sent": _sent(request, sent),
        "plan": dict(plan.to_json()),
    }
    written = tuple(os.path.join(directory, name) for name in (*texts, *more)) if directory else ()
    return Rendered(texts, written, {**data, "written": list(written)} if directory else data, sent)


def _sent(request: Request, sent: Snapshot | None) -> Sent:
    return {
        "files": [{"path": file.path, "bytes": file.size} for file in sent.files] if sent else [],
        "variables": {name: value for part in request.job.parts for name, value in part.env.items()},
        "secrets": list(request.job.secrets),
    }
