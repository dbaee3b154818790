"""The container that an agent runs in: the command that starts it, and the end of one whose client was killed."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Dict, List, Optional, Sequence

from ..lease import gpus
from ..system import files
from .user_files import HostError

_NOTE = "container.json"
_END_S = 20.0
_CLIENTS = ("podman", "docker")
"""Runtimes whose program is only a client: the container is no child of it, and does not inherit variables."""


def words(request: Dict[str, Any], own: str, cwd: str, names: Sequence[str]) -> List[str]:
    """The command that runs what follows in the request's container; empty without one.

    `names`: variables of the agent that the container gets. Records in `own` what `remove` needs.
    """
    container: Optional[Dict[str, Any]] = request.get("container")
    if not container:
        return []
    base = os.path.expanduser(request["dir"])
    runtime, has_gpus = container["runtime"], bool(gpus.found())
    program = next((path for path in _places(runtime) if os.access(path, os.X_OK)), None)
    if program is None:
        raise HostError(f"there is no {runtime} on its PATH, which --container-image needs")
    mounts = [*(f"{path}:{path}" for path in dict.fromkeys([base, cwd])), *container["mounts"]]
    if runtime not in _CLIENTS:
        binds = [word for mount in mounts for word in ("--bind", mount)]
        return [runtime, "exec", *(["--nv"] if has_gpus else []), *binds, "--pwd", cwd, container["image"]]
    name = f"distlaunch-{os.path.basename(request['directory'])}-{request['node_rank']}"
    files.write_whole(os.path.join(own, _NOTE), json.dumps({"runtime": program, "name": name}).encode(), 0o600)
    remove(own)
    binds = [word for mount in mounts for word in ("--volume", mount)]
    devices = {"podman": ["--device", "nvidia.com/gpu=all"], "docker": ["--gpus", "all"]}[runtime]
    limits = {"podman": ["--ulimit", "host"], "docker": ["--ulimit", "memlock=-1"]}[runtime]
    rootless = ["--userns", "keep-id"] if runtime == "podman" and os.getuid() else []
    return [
        runtime, "run", "--rm", "--name", name, "--user", f"{os.getuid()}:{os.getgid()}", *rootless,
        "--network", "host", "--ipc", "host", "--pid", "host", *limits, "--entrypoint", "",
        *(devices if has_gpus else []), *binds, "--workdir", cwd,
        *(word for variable in names for word in ("--env", variable)), container["image"],
    ]  # fmt: skip


def _places(program: str) -> List[str]:
    return [os.path.join(directory, program) for directory in os.get_exec_path()]


def remove(own: str) -> None:
    """End the container of a node whose client may be gone; waits up to a limit."""
    with contextlib.suppress(OSError, ValueError, KeyError, ImportError):
        note = json.loads(files.read_word(os.path.join(own, _NOTE)))
        import subprocess

        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run(
                [str(note["runtime"]), "rm", "--force", str(note["name"])], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_END_S, check=False,
            )  # fmt: skip
