"""The user's files on a file system that all nodes share: node 0 lays them out, from packs that a launcher has sent.

A pack is a tar whose members are named by the SHA-256 of their content. `files.json` in the run's directory lists the
files and the packs that have them. `work` there leads to where workers start: the project's directory (`project.py`),
or one of the run's own. `work-SESSION` appears when all files are in place for that start of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any, Dict, List

from ..job import Job
from ..system.files import SENT_MTIME_S
from . import project

LIST = "files.json"
_WAIT_S = 300.0
_BLOCK_BYTES = 1 << 20


def laid(job: Job, top: str, rank: int) -> Job:
    """The job, with the paths of its files as they are now; `top`: the run's directory.

    `OSError` if they cannot be had.
    """
    work, ready = os.path.join(top, "work"), os.path.join(top, f"work-{job.session}")
    limit = time.monotonic() + _WAIT_S
    if rank == 0:
        place = os.path.relpath(_lay(job, top), top)
        for link in (work, ready):
            os.symlink(place, f"{ready}.new")
            os.rename(f"{ready}.new", link)
    while not os.path.isdir(ready):
        if time.monotonic() > limit:
            raise project.ProjectError(2, f"node 0 has not laid out the files within {_WAIT_S:.0f} s", ready)
        time.sleep(0.05)
    real = os.path.realpath(ready)

    def now(path: str) -> str:
        return real + path[len(work) :] if f"{path}/".startswith(f"{work}/") else path

    return job.with_files(now)


def _lay(job: Job, top: str) -> str:
    """Put the files where workers start. Returns that place; the tasks of an array may all do that at once."""
    import shutil

    with open(os.path.join(top, LIST), encoding="ascii") as file:
        wanted = json.load(file)
    sent, own = os.path.join(top, f"sent-{os.urandom(4).hex()}"), os.path.join(top, "files")
    where = wanted["project"]
    begun = os.path.isdir(os.path.join(top, "work"))
    try:
        if os.path.isdir(own):  # from an earlier start, or of another task
            return own
        if where and begun and project.still_has(where, job.run, 0, wanted["digest"]):
            return os.path.join(where, "work")
        _unpack(wanted, sent)
        if where:
            made = project.prepare(
                where, job.run, 0, wanted["digest"], sent, [tuple(entry) for entry in wanted["files"]], own
            )
            for note in made.notes:
                sys.stderr.write(f"distlaunch agent: {note}\n")
            return made.work
        with contextlib.suppress(OSError):  # another task was faster
            os.rename(sent, own)
        return own
    finally:
        shutil.rmtree(sent, ignore_errors=True)


def _unpack(wanted: Dict[str, Any], sent: str) -> None:
    """Write all files below `sent`. `OSError` if a pack is missing or not what was sent."""
    import tarfile

    places: Dict[str, List[List[str]]] = {}
    os.makedirs(sent, mode=0o700)
    for entry in wanted["files"]:
        path, mode, link, sha = entry
        os.makedirs(os.path.dirname(os.path.join(sent, path)), exist_ok=True)
        if mode == "link":
            os.symlink(link, os.path.join(sent, path))
        else:
            places.setdefault(sha, []).append(entry)
    for name in wanted["packs"]:
        pack = os.path.join(wanted["store"], name)
        try:
            with tarfile.open(pack, "r:") as tar:
                for member in tar:
                    for path, mode, _, sha in places.pop(member.name, ()):
                        _write(tar.extractfile(member), os.path.join(sent, path), int(mode, 8), sha)
        except tarfile.TarError as error:
            raise OSError(5, f"it is not what was sent: {error}", pack) from error
    if places:
        missing = next(iter(places.values()))[0][0]
        raise OSError(2, f"{missing} is in none of the packs that were sent", wanted["store"])


def _write(source: Any, path: str, mode: int, sha: str) -> None:
    import hashlib

    found = hashlib.sha256()
    with open(path, "xb") as file:
        while block := source.read(_BLOCK_BYTES):
            found.update(block)
            file.write(block)
    if found.hexdigest() != sha:
        raise OSError(5, "its content is not what was sent", path)
    os.chmod(path, mode)
    os.utime(path, (SENT_MTIME_S, SENT_MTIME_S))
