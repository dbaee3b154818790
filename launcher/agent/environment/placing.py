"""Makes an environment of links to contents in the store, and sees that its Python starts."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from typing import List, Tuple

from . import disks
from .manifest import BASE, CONDA, ENV, STAMP_S, VENV, BringError, File, Manifest
from .mending import missing
from .store import ORIGINALS, Store, is_used

_TEXT_BYTES = 1 << 20
_LINE_BYTES = 127
"""Linux reads this much of a script's first line before 5.1, and twice as much since."""

_COMPILE_S, _START_S, _UNPACK_S = 900.0, 60.0, 600.0
_CODE = "import encodings, sys; print(sys.prefix, *sys.version_info[:2])"
_OLDEST = (3, 9)
_MADE = rb"""(?m)^\s*(?:export )?VIRTUAL_ENV=["']?(/[^"'\n]+)"""
"""Where a virtual environment was made, in its `activate`."""


def place(store: Store, digest: str, manifest: Manifest, lock: int) -> str:
    """Make the environment from what the store has, or what is missing of it; returns its interpreter.

    `lock`: that of this process, by `Store.use`. Raises `BringError`.
    """
    top, part = store.environment(digest), manifest
    if store.is_complete(digest) or is_used(lock):
        part = missing(store, digest, manifest)
        store.unfinish(digest)  # others wait until it is whole again
    else:
        store.forget(digest)  # what an interrupted start has left
    _check_home(manifest)
    python = os.path.join(top, manifest.python)
    try:
        with disks.errors(store.directory):
            _lay(store, top, manifest, part)
        if manifest.kind == CONDA:
            _run([python, os.path.join(top, ENV, "bin/conda-unpack")], _UNPACK_S, "conda-unpack has failed")
        _check_start(python, os.path.join(top, ENV))
        _compile(python, top, manifest)
    except BaseException:
        if part is manifest:  # else another run may use it
            store.forget(digest)
        raise
    store.complete(digest, manifest, _own_bytes(top))
    return python


def _check_home(manifest: Manifest) -> None:
    if manifest.home and not os.path.isdir(manifest.home):
        raise BringError(
            f"{manifest.source} is based on the Python in {manifest.home}, which is not on this node, and is not "
            "shipped: base it on a Python outside of /usr (uv venv --managed-python), or ship what conda-pack makes"
        )


def _own_bytes(top: str) -> int:
    """The size of what is this environment's alone: texts that name its place, and what was compiled here."""
    size = 0
    for directory, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a run that uses it writes bytecode
                about = os.lstat(os.path.join(directory, name))
                size += about.st_size if about.st_nlink == 1 else 0
    return size


def _lay(store: Store, top: str, manifest: Manifest, part: Manifest) -> None:
    """These files and links of the manifest; of what is there, they are cut off."""
    for directory in sorted({os.path.dirname(path) for path in _paths(part)}):
        os.makedirs(os.path.join(top, directory), mode=0o755, exist_ok=True)
    os.makedirs(os.path.join(top, ORIGINALS), exist_ok=True)
    former = _former_places(store, manifest)
    for file in part.files:
        target = os.path.join(top, file.path)
        if part is not manifest:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)
        # conda-unpack writes to its files, so none may be a link.
        own_text = _read(store, file) if manifest.kind == CONDA else _changed(store, top, file, manifest, former)
        if own_text:
            _write(target, own_text, file)
            target = os.path.join(top, ORIGINALS, os.path.basename(store.object(file)))  # kept for other nodes
        if not os.path.lexists(target):
            store.link(file, target)
    for path, link in part.links:
        os.symlink(link, os.path.join(top, path))


def _paths(manifest: Manifest) -> List[str]:
    return [*(file.path for file in manifest.files), *(path for path, _ in manifest.links)]


def _read(store: Store, file: File) -> bytes:
    with open(store.object(file), "rb") as content:
        return content.read()


def _write(target: str, data: bytes, file: File) -> None:
    with open(f"{target}.new", "wb") as own:
        own.write(data)
    os.chmod(own.name, 0o755 if file.executable else 0o644)
    os.utime(own.name, (STAMP_S, STAMP_S))
    os.replace(own.name, target)


def _changed(store: Store, top: str, file: File, manifest: Manifest, former: bytes) -> bytes:
    """The text of a file that names where the environment is, for its place here; empty if it is as it was."""
    directory, _name = os.path.split(file.path)
    settings = file.path == f"{ENV}/pyvenv.cfg"
    if file.size > _TEXT_BYTES or not (settings or directory in (f"{ENV}/bin", f"{BASE}/bin")):
        return b""
    data = _read(store, file)
    if settings:
        return _settings(data, top, manifest)
    if b"\0" in data or not re.search(former, data):
        return b""
    new = os.fsencode(os.path.join(top, ENV))
    return _with_short_line(re.sub(former, lambda _: new, data))


def _with_short_line(script: bytes) -> bytes:
    """The script, which a shell starts if its first line is longer than a kernel reads: as pip writes such ones."""
    first = re.match(rb"#![ \t]*(/[^\n]*/python[\d.]*)([ \t][^\n]*)?\n", script)
    if first is None or first.end() <= _LINE_BYTES:
        return script
    return b"#!/bin/sh\n'''exec' \"%s\"%s \"$0\" \"$@\"\n' '''\n" % (first[1], first[2] or b"") + script[first.end() :]


def _former_places(store: Store, manifest: Manifest) -> bytes:
    """A pattern of the environment's place as its scripts name it: where it was read, or where it was made."""
    found = [os.fsencode(manifest.source)]
    for file in manifest.files:
        if file.path == f"{ENV}/bin/activate" and file.size <= _TEXT_BYTES:
            made = re.search(_MADE, _read(store, file))
            found += [made[1]] if made else []
    longest_first = sorted({re.escape(place.rstrip(b"/")) for place in found}, key=len, reverse=True)
    begins = rb"(?:(?<![\w.-])|(?<=[\s\"'=]-[IL])|(?<=:-))"  # also in `-I/place` and `${X:-/place}`
    return begins + rb"(?:%s)(?![\w.-])" % b"|".join(longest_first)


def _settings(data: bytes, top: str, manifest: Manifest) -> bytes:
    """The settings of a virtual environment, with its base Python where it is here."""
    if manifest.base is None:
        return b""
    lines = []
    for line in data.splitlines():
        name = line.partition(b"=")[0].strip().lower()
        lines.append(b"home = " + os.fsencode(os.path.join(top, BASE, "bin")) if name == b"home" else line)
    return b"\n".join(lines) + b"\n"


def _check_start(python: str, prefix: str) -> None:
    """Raise `BringError` unless the interpreter starts, from its place here."""
    said = _run([python, "-I", "-c", _CODE], _START_S, "its Python does not start here")
    found, major, minor = said.rsplit(" ", 2)
    if os.path.realpath(found) != os.path.realpath(prefix):
        raise BringError(f"its Python takes {found} for its place, not {prefix}: it cannot be moved")
    if (int(major), int(minor)) < _OLDEST:
        raise BringError(f"its Python is {major}.{minor}, and agents need 3.9")


def _compile(python: str, top: str, manifest: Manifest) -> None:
    """Bytecode for what came without; files that cannot be compiled are left as they are."""
    if manifest.kind != VENV and not manifest.tag:
        return
    if not _without_bytecode(manifest):
        return
    directories = [os.path.join(top, name, "lib") for name in (ENV, BASE)]
    words = [python, "-I", "-m", "compileall", "-qq", "-j", str(len(os.sched_getaffinity(0)))]
    try:
        subprocess.run(
            [*words, *filter(os.path.isdir, directories)], timeout=_COMPILE_S, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, env=_env(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"distlaunch agent: the environment was not compiled in {_COMPILE_S:.0f} s\n")


def _without_bytecode(manifest: Manifest) -> bool:
    """Whether a module has no bytecode."""
    have = set()
    sources: List[Tuple[str, str]] = []
    for file in manifest.files:
        directory, name = os.path.split(file.path)
        if name.endswith(".pyc"):
            have.add((os.path.dirname(directory), name.partition(".")[0]))
        elif name.endswith(".py") and "/lib/" in file.path:
            sources.append((directory, name[:-3]))
    return any(source not in have for source in sources)


def _run(words: List[str], limit_s: float, problem: str) -> str:
    """What a program of the environment prints. Raises `BringError`."""
    try:
        done = subprocess.run(
            words, timeout=limit_s, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=_env()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BringError(f"{problem}: {error}") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise BringError(f"{problem}: {last[0]}")
    return done.stdout.decode(errors="replace").strip()


def _env() -> dict[str, str]:
    """The variables of such programs: bytecode is written, in its usual place."""
    left_out = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONHOME", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in left_out}
