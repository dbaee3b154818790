"""The environment that a launcher sends to the host of node 0, if that does not see it: only what the host lacks.

One call with several requests: the list of files, then the missing pieces, some at once. It returns once the
environment is ready in the host's store, and beside the node's spec.json is the list by which its agent finds it there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import zlib
from typing import Any, Callable, Dict, Iterator, List

from ..environment.manifest import BringError, Manifest, decode, digest_of
from ..environment.mending import lost
from ..environment.placing import place
from ..environment.sending import HEAD, mark_of
from ..environment.serving import ranges
from ..environment.shelf import Shelf
from ..environment.source import LIST
from ..environment.store import Store, default_directory
from ..system import files
from .user_files import HostError, Rest

_WAIT_S = 900.0
_LOOK_S = 0.05
_in_use: List[int] = []
"""Descriptors that keep the environment from being removed until the agent, or this process, has ended."""

Request = Dict[str, Any]
Answer = Callable[[Request], None]


def bring(request: Request, answer: Answer) -> Request:
    """Receive the launcher's environment, unless this host sees it, or the launcher has none. Raises `HostError`.

    Returns whether it is seen here. `answer` sends the answers to all requests but the last.
    """
    told = os.path.join(request["directory"], "nodes", "0", LIST)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(told)  # of an earlier start
    seen, theirs = mark_of(request["source"]), request["mark"]
    if theirs is None or seen == theirs:
        return {"sees": seen is not None}
    answer({"sees": False, "other": seen is not None})
    try:
        return _receive(request, told, answer)
    except BringError as error:
        raise HostError(str(error)) from error


def _receive(request: Request, told: str, answer: Answer) -> Request:
    store = Store(request["dir"] or default_directory())
    encoded = zlib.decompress(Rest(_next()["bytes"]).read())
    manifest, digest = decode(encoded), digest_of(encoded)
    with _alone(store, digest):
        with _shelf(store, manifest) as shelf:
            answer({"pieces": ranges(shelf.lacking), "directory": store.directory})
            while (asked := _next())["do"] == "pieces":
                _take(shelf, Rest(asked["bytes"]))
                answer({"received": True})
            if shelf.lacking:
                raise HostError(f"{len(shelf.lacking)} pieces of the environment have not come")
        locks = store.use(digest), store.guard()  # first: what is complete then stays
        _in_use.extend(locks)
        part = lost(store, digest, manifest)
        is_new = bool(part.files or part.links)
        if is_new:
            place(store, digest, manifest, locks[0])
    os.makedirs(os.path.dirname(told), mode=0o700, exist_ok=True)
    files.write_whole(told, encoded, 0o600, sync=False)
    return {"sees": False, "removed": store.prune(int(request["quota_bytes"])) if is_new else []}


def _next() -> Request:
    line = sys.stdin.buffer.readline()
    if not line:
        raise HostError("the launcher is gone")
    return dict(json.loads(line))


def _take(shelf: Shelf, sent: Rest) -> None:
    """Keep the pieces that follow. An error is answered once all of them are read, as the next request follows."""
    try:
        while head := sent.read(HEAD.size):
            if len(head) < HEAD.size:
                raise HostError("the launcher is gone")
            index, size = HEAD.unpack(head)
            data = sent.read(size)
            if len(data) < size:
                raise HostError("the launcher is gone")
            if not shelf.put(index, zlib.decompress(data)):
                raise HostError("what was sent is damaged: start again")
    finally:
        sent.skip()


@contextlib.contextmanager
def _shelf(store: Store, manifest: Manifest) -> Iterator[Shelf]:
    """What is here of the environment; files that are not whole are removed at the end."""
    shelf = Shelf(store, manifest)
    try:
        yield shelf
    finally:
        shelf.close()


@contextlib.contextmanager
def _alone(store: Store, digest: str) -> Iterator[None]:
    """Wait for another run that makes the same environment on this host."""
    limit = time.monotonic() + _WAIT_S
    while True:
        with store.making(digest) as mine:
            if mine:
                yield
                return
        if time.monotonic() > limit:
            raise HostError(f"{store.directory}: another run has been making the same environment for {_WAIT_S:.0f} s")
        time.sleep(_LOOK_S)
