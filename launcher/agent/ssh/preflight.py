"""What a host reports before a run starts there: its Python and torch, disk and clock, identity and addresses."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from typing import Any, Dict, List, Optional

from ..system import files, processes, users

_PROBE_BYTES = 256 * 1024


def preflight(request: Dict[str, Any]) -> Dict[str, Any]:
    """Collect all facts; if a run is to start, also create its directory, readable only by its owner."""
    import socket  # these are not for calls that only look for an agent

    from ..network import routes
    from ..system import facts

    now = time.time()
    base = os.path.expanduser(request["dir"])
    directory = os.path.join(base, "runs", request["run"])
    if request["run"] and request.get("starts"):
        os.makedirs(directory, mode=0o700, exist_ok=True)
    if request.get("probes"):  # not to look at runs, or to end them: on a full disk that is what helps
        _probe(directory if os.path.isdir(directory) else base)
    snapshot = str(request.get("digest") or "")
    disk = os.statvfs(base)
    return {
        "time": now,
        "hostname": socket.gethostname(),
        "python": sys.executable,
        "python_version": facts.python_version(),
        "torch": _torch_version(),
        **_framework(str(request.get("contract") or "env")),
        "gpus": facts.gpu_count(dict(os.environ)),
        "cpus": facts.cpus(),
        "dir": base,
        "directory": directory,
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "agent_path": os.path.join(base, "agents", request["agent"] + ".pyz"),
        "has_files": bool(snapshot) and _has_files(os.path.join(base, "snapshots", snapshot), directory),
        "has_cwd": os.path.isdir(request["cwd"]) if request.get("cwd") else True,
        "addresses": routes.candidates(socket.gethostname()),
        "machine": machine(),
        "disk": _disk(base),
        "mounts": _mounts(base),
        "supervisor": supervisor(),
        "user_processes_end": _ends_with_session(),
        "replaced": request.get("replaced"),
    }


def _has_files(snapshot: str, run: str) -> bool:
    """Whether the files are here, or where an earlier attempt of the run had them: snapshots are not kept for ever."""
    return os.path.isdir(snapshot) or (os.path.basename(run) != "" and os.path.isdir(os.path.join(run, "work")))


def machine() -> List[Any]:
    """The identity of this host: two names with the same answer are one host, or one container."""
    return [boot_id(), os.stat("/proc/self/ns/net").st_ino]


def boot_id() -> str:
    """Identifies this boot of the host."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _probe(directory: str) -> None:
    """Write and remove a file: only that shows quotas and read-only disks."""
    path = os.path.join(directory, f".probe-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with open(path, "wb") as file:
            file.write(b"\0" * _PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, directory) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _disk(base: str) -> List[Any]:
    """The identity of the directory's disk: hosts with the same answer share it."""
    path = os.path.join(base, "disk-id")
    if not os.path.exists(path):
        files.write_once(path, os.urandom(16).hex().encode("ascii"))
    with open(path, encoding="ascii") as file:
        about = os.fstat(file.fileno())
        return [file.read(), about.st_ino, about.st_mtime_ns]


def _mounts(base: str) -> List[str]:
    """Where the directory's disk is mounted, and that of a link to it, in the words of /proc/self/mounts."""
    places: Dict[str, str] = {}
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        for word, kind in [line.split(" ")[1:3] for line in file]:
            if kind != "autofs":  # there, a disk is mounted when it is used
                places[re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), word)] = word
    found = set()
    for path in (os.path.abspath(base), os.path.realpath(base)):
        place = "/" + path.lstrip("/")  # two slashes may stay, of which `dirname` makes no single one
        while place not in places and place != "/":
            place = os.path.dirname(place)
        found.add(places.get(place, "/"))
    return sorted(found - {"/"})


def _framework(contract: str) -> Dict[str, str]:
    """What the contract needs and this host has, or what it lacks."""
    from .. import contracts
    from ..failures import CannotError

    try:
        return {"framework": contracts.load(contract).framework(dict(os.environ)), "without": ""}
    except CannotError as error:
        return {"framework": "", "without": str(error)}


def _torch_version() -> Optional[str]:
    """The version of torch without importing it, which takes seconds; None if it is not installed."""
    from importlib import util  # not metadata: its import takes 30 ms, and a torch on the path may have none

    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    with (
        contextlib.suppress(OSError),
        open(os.path.join(os.path.dirname(spec.origin), "version.py"), encoding="utf-8") as file,
    ):
        match = re.search(r"^__version__ = ['\"]([^'\"]+)", file.read(), re.MULTILINE)
        if match:
            return match[1]
    return "unknown"


def supervisor() -> str:
    """`systemd` if the user's own systemd outlives logins, else `session`: the agent starts its own session."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    lingers = os.path.exists(os.path.join("/var/lib/systemd/linger", users.name_of(os.getuid())))
    if not lingers or not os.path.exists(f"{runtime}/systemd/private"):
        return "session"
    import shutil

    return "systemd" if shutil.which("systemd-run") else "session"


def _ends_with_session() -> bool:
    """Whether logind kills a login's processes when the login ends."""
    if supervisor() == "systemd":
        return False
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="ascii") as file:
        if "/session-" not in file.read():
            return False
    import glob

    value = "no"
    places = ("/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf")
    more = sorted((path for place in places for path in glob.glob(f"{place}.d/*.conf")), key=os.path.basename)
    for path in (*places, *more):  # the last setting wins
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            value = [value, *re.findall(r"^\s*KillUserProcesses\s*=\s*(\w+)", file.read(), re.MULTILINE)][-1]
    return value.lower() in ("yes", "true", "on", "1") and users.name_of(os.getuid()) != "root"


def alive(identity: Dict[str, Any]) -> bool:
    """Whether the recorded process itself still runs, on this host."""
    if identity.get("boot_id") not in (None, boot_id()):
        return False
    return bool(processes.start_ticks(identity["pid"]) == identity["start_ticks"])


def identity_of(directory: str, rank: int) -> Optional[Dict[str, Any]]:
    """The node's agent as recorded at its start; None if it was not started."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(files.read_word(os.path.join(directory, "nodes", str(rank), "started.json"))))
    return None
