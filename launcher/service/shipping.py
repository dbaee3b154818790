"""The environment that a run brings to its nodes (`--env-ship`): which one, and the list of its files."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.environment.source import SQUASHFS, TAR
from launcher.console import live_line
from launcher.errors import BackendUnavailableError, SpecError, StorageError
from launcher.spec import parse_size
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.backends._base import AnyBackend
    from launcher.settings.options import JobOptions
    from launcher.spec import JobSpec

_LOCK = "uv.lock"
_SYNC_S = 3600.0


def shipped(spec: JobSpec, asked: JobOptions, backend: AnyBackend) -> JobSpec:
    """The job, which brings the environment that was asked for. Raises `SpecError` if there is none to bring."""
    if spec.nodes.elastic:
        raise SpecError("--env-ship needs a fixed number of nodes", hint=f"--nodes {spec.nodes.max}")
    if getattr(backend.opts, "container_image", ""):
        raise SpecError("--env-ship and --container-image exclude each other: an image has its environment")
    path = _of_python(spec) if asked.env_ship == "auto" else os.path.join(spec.cwd, os.path.expanduser(asked.env_ship))
    source = _source(os.path.normpath(path), here=backend.shares_outputs and backend.sees_outputs())
    about = {"source": source, "dir": asked.env_ship_dir, "quota_bytes": parse_size(asked.env_ship_quota, "quota")}
    return replace(spec, agents={**spec.agents, "env_ship": about})


def _of_python(spec: JobSpec) -> str:
    """The environment of the Python that is named, or that of this process."""
    python = spec.python or sys.executable
    found = shutil.which(os.path.join(spec.cwd, python) if os.path.dirname(python) else python)
    if found is None:
        raise SpecError(f"env-ship auto: there is no {python} here", hint="name an environment: --env-ship FOLDER")
    directory = os.path.dirname(os.path.dirname(os.path.abspath(found)))
    if directory in ("/", "/usr", "/usr/local"):
        hint = "name one: --env-ship FOLDER, or --python FOLDER/bin/python"
        raise SpecError(f"env-ship auto: {found} is the system's Python, not that of an environment", hint=hint)
    return directory


def _source(path: str, *, here: bool) -> str:
    """What node 0 reads. `here`: it is also on this machine."""
    name = os.path.basename(path)
    project = os.path.dirname(path) if name == _LOCK else path
    if os.path.isfile(os.path.join(project, _LOCK)):
        return os.path.join(project, ".venv")
    if here and not os.path.exists(path):
        raise SpecError(f"env-ship {path!r} does not exist", hint="name the environment's directory, or a packed file")
    if not (os.path.isdir(path) or path.endswith((*TAR, *SQUASHFS))) and (here or "." in name):
        known = ", ".join((*TAR, *SQUASHFS))
        raise SpecError(f"env-ship {path!r} is no directory, uv.lock or packed environment", hint=f"known: {known}")
    return path


def prepare(about: Mapping[str, Any], run_dir: Path, backend: AnyBackend) -> None:
    """Build the environment of a uv project, and list the files of one that nodes read from where it is here."""
    source = Path(about["source"])
    if source.name == ".venv" and (source.parent / _LOCK).is_file():
        _sync(source.parent)
    if not (source.is_dir() and backend.shares_outputs and backend.sees_outputs()):
        return
    from launcher.agent.environment import listing, manifest
    from launcher.agent.environment import source as sources
    from launcher.system import storage, trust

    kept = Path(os.path.expanduser("~/.distlaunch/environments"))
    trust.make("directory", kept / "lists")
    try:
        with live_line.waiting(f"listing {source}"):
            found = listing.listed(str(source), sources.list_of(str(kept), str(source)))
    except manifest.BringError as error:
        raise SpecError(f"env-ship: {error}") from error
    except OSError as error:
        raise StorageError(f"env-ship: {error.filename or source}: {error.strerror}") from error
    for note in found.notes:
        output.warn(f"env-ship: {note}")
    storage.write_whole(run_dir / sources.LIST, found.encode())


def _sync(project: Path) -> None:
    """Have uv make the project's environment: nodes may not reach an index."""
    from launcher.system import proc

    uv = shutil.which("uv")
    if uv is None:
        hint = "install it, or make the environment yourself and name its directory"
        raise BackendUnavailableError(f"env-ship {project}: uv, which makes its environment, is not on PATH", hint=hint)
    with live_line.waiting(f"uv sync in {project}"):
        done = proc.run([uv, "sync", "--frozen", "--project", str(project)], timeout_s=_SYNC_S)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BackendUnavailableError(f"env-ship: uv sync in {project}: {last}")
