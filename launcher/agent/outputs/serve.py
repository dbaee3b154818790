"""A node's side of `fetch`: `agent.pyz host outputs SPEC`, where SPEC is the node's spec.json.

Each request is a line of JSON on stdin, until stdin ends: `{"list": PATTERN}`, `{"read": NAME, "offset": BYTES}`,
`{"write": NAME, "bytes": COUNT}` with that many bytes after it, `{"hold": true}`, so that the agent waits at its end
until its files are fetched, `{"await": true}`, answered once it does, `{"release": true}`, for an agent that waits for
that, `{"grant": true}`, for one that waits for its run's claim, or `{"take": NAME}`, to send that notice of the run.
Frames on stdout, each a line and the data that it announces:
    d BYTES    this many bytes of the file follow
    k          nothing yet; keeps the connection alive
    a JSON     the answer, which ends it; one with `problem` is an error, `in_part` if a file was not read to its end
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any, Callable, Dict

from .. import notice
from . import project
from .receive import receive
from .signs import CONNECTED, GRANTED, HELD, RELEASED, WAITING
from .tree import Tree, TreeError

READY = b"\ndistlaunch-outputs-1\n"
"""Written to stdout first, as login files may have printed something before."""

_ALIVE_S, _LOOK_S = 5.0, 0.1


def directory_of(spec: Dict[str, Any]) -> str:
    """Where the outputs of a job are: its output directory, or where its workers start."""
    where = str(spec.get("output_dir") or spec["cwd"])
    own = project.own_in_volume(os.path.dirname(where), str(spec.get("run")))
    return own if os.path.isdir(own) else where


def main(spec_path: str) -> None:
    """Answer requests until stdin ends."""
    spoke = time.monotonic()

    def alive() -> None:
        nonlocal spoke
        if time.monotonic() - spoke > _ALIVE_S:
            _write(b"k\n")
            spoke = time.monotonic()

    def send(block: bytes) -> None:
        nonlocal spoke
        _write(b"d %d\n" % len(block) + block)
        spoke = time.monotonic()

    try:
        with open(spec_path, encoding="utf-8") as file:
            spec = json.load(file)
        tree = Tree(directory_of(spec), alive)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{spec_path}: {error}")
    if spec.get("hold_s"):
        _be_seen(spec)
    _write(READY)
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        try:
            found = _answer(request, spec, tree, send, alive)
        except TreeError as error:
            found = {"problem": str(error)}
        except OSError as error:
            what = request.get("read") or os.fsdecode(error.filename or tree.top)
            found = {"problem": f"{what}: {error.strerror or error}", "in_part": "read" in request}
        _write(b"a " + json.dumps(found).encode("ascii") + b"\n")


def _answer(
    request: Dict[str, Any], spec: Dict[str, Any], tree: Tree, send: Callable[[bytes], None], alive: Callable[[], None]
) -> Dict[str, Any]:
    if "list" in request:
        return tree.listed(request["list"])
    if "write" in request:
        problem = receive(tree.top, request["write"], int(request["bytes"]), sys.stdin.buffer)
        return {"problem": problem} if problem else {}
    if "read" in request:
        return tree.read(request["read"], int(request["offset"]), send)
    if "take" in request:
        return {"taken": notice.take(spec["directory"], str(request["take"]))}
    if "await" in request:
        while not os.path.exists(os.path.join(spec["directory"], WAITING)):
            time.sleep(_LOOK_S)
            alive()
        return {}
    if "hold" in request:
        _be_seen(spec)
    note = HELD if "hold" in request else RELEASED if "release" in request else GRANTED
    os.close(os.open(os.path.join(spec["directory"], note), os.O_WRONLY | os.O_CREAT, 0o600))
    return {}


def _be_seen(spec: Dict[str, Any]) -> None:
    """Show an agent that waits until its files are fetched that a launcher is connected, until this process ends."""

    def show() -> None:
        sign = os.path.join(spec["directory"], CONNECTED)
        with contextlib.suppress(OSError):  # a full disk: the agent waits as if there was no launcher
            while True:
                os.close(os.open(sign, os.O_WRONLY | os.O_CREAT, 0o600))
                os.utime(sign)
                time.sleep(_ALIVE_S)

    threading.Thread(target=show, name="connected", daemon=True).start()


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
