"""A container image without a registry: almost empty, as the runtime mounts this machine's programs and Python."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

IMAGE = "distlaunch.test/torch:latest"
"""Stands for a PyTorch image: it has a shell, and a `python3` with torch. Because of the tag `latest`, Kubernetes asks
a registry for it unless `imagePullPolicy` is `IfNotPresent`."""

PINNED = "distlaunch.test/torch:1"
"""The same image under a tag for which that policy is the default."""

AS_USER = "distlaunch.test/torch-user:1"
"""The same image with a user other than root."""

PAUSE = "distlaunch.test/pause:latest"
"""The image of every pod's sandbox."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/ssl",
    "/etc/localtime",
)
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def mounted() -> list[str]:
    """The paths of this machine that containers see, read-only: programs, libraries, this Python and its packages."""
    python = {os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix), sys.prefix, sys.base_prefix}
    wanted = [path for path in (*SYSTEM, *SETTINGS, *sorted(python)) if os.path.exists(path)]
    whole = [path for path in wanted if not (path in SYSTEM and os.path.islink(path))]
    return [path for path in whole if not any(path != other and Path(path).is_relative_to(other) for other in whole)]


def runtime_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """The output of `ctr oci spec`, with those mounts."""
    mounts = [{"destination": path, "type": "bind", "source": path, "options": ["bind", "ro"]} for path in mounted()]
    return {**spec, "mounts": [*spec["mounts"], *mounts]}


def write(path: Path) -> None:
    """Write all images into one archive, as `docker save` would."""
    layer = _layer()
    digest = hashlib.sha256(layer).hexdigest()
    config: dict[str, Any] = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Env": [f"PATH={Path(sys.prefix) / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": ["sleep", "infinity"],
            "WorkingDir": "/workspace",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    own_user = {**config, "config": {**config["config"], "User": "1000"}}
    manifest = [
        {"Config": "config.json", "RepoTags": [IMAGE, PINNED, PAUSE], "Layers": ["layer.tar"]},
        {"Config": "user.json", "RepoTags": [AS_USER], "Layers": ["layer.tar"]},
    ]
    with tarfile.open(path, "w") as archive:
        _add(archive, "config.json", json.dumps(config).encode())
        _add(archive, "user.json", json.dumps(own_user).encode())
        _add(archive, "layer.tar", layer)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer() -> bytes:
    """The image's only layer: a few files, and the mount points."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        directories = {
            "tmp": 0o1777,
            "root": 0o755,
            "workspace": 0o777,
            "proc": 0o755,
            "sys": 0o755,
            "dev": 0o755,
            "run": 0o755,
            "var": 0o755,
        }
        for path in mounted():
            if os.path.isdir(path):
                directories.setdefault(path[1:], 0o755)
            else:
                _add(layer, path[1:], b"")
        for name, mode in directories.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            layer.addfile(entry)
        for path in SYSTEM:
            if os.path.islink(path):
                entry = tarfile.TarInfo(path[1:])
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                layer.addfile(entry)
        for name, text in FILES.items():
            _add(layer, name, text.encode())
        for path in _sandbox():
            _add(layer, path[1:], Path(path).read_bytes(), mode=0o755)
    return buffer.getvalue()


def _sandbox() -> list[str]:
    """`sleep` and its libraries: a sandbox is the only container without mounts."""
    program = shutil.which("sleep", path="/usr/bin:/bin")
    assert program
    told = subprocess.run(("ldd", program), capture_output=True, text=True, timeout=30, check=True).stdout
    libraries = re.findall(r"(/\S+) \(0x", told)
    return [
        os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) for path in (program, *libraries)
    ]


def _add(archive: tarfile.TarFile, name: str, data: bytes, *, mode: int = 0o644) -> None:
    """Add a file."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
