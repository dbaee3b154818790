"""Pod logs, kept as a node's stream in the run's directory: nothing is lost or duplicated, whichever process fetches.

An agent writes a pod's log for people; it is stored in the format of all streams.

Each line has the time at which the container runtime read it. A log is requested from one second before the last
stored line, and lines with known times are dropped. After a fetcher was killed, the stream is cut to the size in
`log.json`.
"""

from __future__ import annotations

import contextlib
import os
import time
from threading import Lock, Semaphore
from typing import TYPE_CHECKING, Any

from launcher.agent.protocol import encode_event
from launcher.agent.stream import plain
from launcher.backends.kubernetes import api, library, locking
from launcher.backends.kubernetes.position import Position
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import ExitStack
    from pathlib import Path
    from typing import TypeAlias

    from launcher.backends.kubernetes.turns import Wait

    Reading: TypeAlias = Generator[Wait, None, bool]

    from launcher.backends.kubernetes.pod_status import Pod

_NO_LOG = (b"unable to retrieve container logs", b"failed to try resolving symlinks")
"""What the kubelet sends, with status 200, in place of a log that it no longer has."""

_ANSWER_S = 10.0
"""A log begins with what is known already: a host that does not deliver that in this time is unreachable."""

_SLOW_S, _DOUBTED = 2.0, Semaphore(4)
"""A try without a line that took longer held a thread for nothing; so many logs are then asked for at once."""

_REFUSED_S = 30.0
"""How long a running container may have no log yet, by its host's runtime."""

_LATER = (404, 408, 429)
"""Statuses of a temporary refusal, which has nothing to do with the log. 404: see `_is_lost`."""

_PAUSE_S = (0.3, 5.0)
_SAVE_S = 1.0


class _Stream:
    """The file in which the lines are kept."""

    def __init__(self, path: str, size: int) -> None:
        """`size`: the size in `log.json`; the rest is cut off."""
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.size = min(size, os.fstat(self._fd).st_size)
        os.ftruncate(self._fd, self.size)
        self._room = storage.Room()

    def append(self, data: bytes) -> None:
        """Write whole lines."""
        self._room.take(self._path, len(data), "the run continues; make room, then: distlaunch logs -f RUN")
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self.size += len(data)

    def has_ended(self) -> bool:
        """Whether it contains the node's final event."""
        with open(self._path, "rb") as file:
            file.seek(max(0, self.size - 4096))
            return b'{"event":"done"' in file.read()

    def close(self) -> None:
        """Write no more."""
        os.close(self._fd)


class NodeLog:
    """The stream of one node: the logs of its pods, one after another."""

    def __init__(self, directory: Path, node: int, cluster: api.Cluster, lock: ExitStack | None = None) -> None:
        """`lock`: to be closed in the end."""
        self._node, self._cluster, self._held = node, cluster, lock
        self._notes = f"{directory}/log.json"
        directory.mkdir(parents=True, exist_ok=True)
        notes = storage.read_json(self._notes) or {}
        self._complete: list[str] = [str(uid) for uid in notes.get("complete") or ()]
        self._uid = str(notes.get("uid") or "")
        self._position = Position(notes.get("position"))
        self._stream = _Stream(f"{directory}/stream", int(notes.get("size") or 0))
        self._saved_at = 0.0
        self._lock = Lock()
        self._closed = False

    @classmethod
    def claimed(cls, directory: Path, node: int, cluster: api.Cluster) -> NodeLog | None:
        """The log, of which the process has the lock until it closes it; None if another one has it."""
        directory.mkdir(parents=True, exist_ok=True)
        lock = locking.locked(directory / "log.lock")
        return None if lock is None else cls(directory, node, cluster, lock)

    @property
    def size(self) -> int:
        """How much of it is stored, in bytes."""
        return self._stream.size

    def is_complete(self, pod: Pod) -> bool:
        """Whether the pod's whole log is stored."""
        return pod.uid in self._complete

    def catch_up(self, pod: Pod) -> None:
        """Fetch the new lines of a pod's log now. Raises `ApiError` or `UnreachableError`."""
        try:
            if self.fetch(pod, follow=False, ended=pod.ended) and pod.ended:
                self._finish(pod)
        except api.ApiError as error:
            if error.status in (401, 403):
                raise
            if _is_lost(error, pod, ended=pod.ended):
                self._lost(pod)

    def follow(self, pod: Pod, latest: Callable[[], Pod | None]) -> Generator[Wait, None, None]:
        """Fetch the pod's log until it ends; yields what it waits for. Raises `ApiError`.

        `latest` returns the pod's current state.
        """
        pause, doubted = _PAUSE_S[0], pod.lost
        refused_until: float | None = None
        while not self.is_complete(pod):
            now = latest()
            ended = now is None or now.ended  # before reading: a log read after the end is complete
            before, begun = self._stream.size, time.monotonic()
            try:
                if (yield from self._fetch(pod, follow=not ended, ended=ended, doubted=doubted)) and ended:
                    self._finish(pod)
                    return
            except api.ApiError as error:
                if error.status in (401, 403):
                    raise
                if _is_lost(error, pod, ended=ended):
                    self._lost(pod)
                    return
                refused_until = refused_until or time.monotonic() + _REFUSED_S
                if error.status < 500 and error.status not in _LATER and time.monotonic() > refused_until:
                    raise
            except api.UnreachableError:
                pass
            else:
                refused_until = None
            grows = self._stream.size > before
            doubted = not grows and time.monotonic() - begun > _SLOW_S
            pause = _PAUSE_S[0] if grows else min(pause * 1.5, _PAUSE_S[1])
            yield pause

    def fetch(self, pod: Pod, *, follow: bool, ended: bool) -> bool:
        """Read new lines, with `follow` also later ones; returns whether it reached the end. `ended`: no more come."""
        reading = self._fetch(pod, follow=follow, ended=ended)
        while True:
            try:
                next(reading)  # what it waits for, the next read waits for, too
            except StopIteration as done:
                return bool(done.value)

    def _fetch(self, pod: Pod, *, follow: bool, ended: bool, doubted: bool = False) -> Reading:
        if pod.uid != self._uid:
            self._leave()
            self._uid, self._position = pod.uid, Position()
        query: dict[str, Any] = {"container": pod.own, "timestamps": "true", **({"follow": "true"} if follow else {})}
        if since := self._position.since():
            query["sinceTime"] = since
        path = f"/api/v1/namespaces/{self._cluster.namespace}/pods/{pod.name}/log"
        while doubted and not _DOUBTED.acquire(blocking=False):
            yield _PAUSE_S[1]
        try:
            response = self._cluster.open(path, query, silent_s=_ANSWER_S)
        finally:
            if doubted:
                _DOUBTED.release()
        try:
            blocks = api.blocks(response, cut=ended)
            while True:
                if follow:
                    yield 0.0 if library.is_ahead(response) else response
                if (lines := next(blocks, None)) is None:
                    break
                with self._lock:
                    if self._closed:
                        return False
                    if any(line.startswith(_NO_LOG) for line in lines):
                        raise api.ApiError(404, "the log has been removed")
                    self._append([plain.decode(line, self._node) for line in self._position.take(lines)])
        finally:
            response.close()
            with self._lock:
                self._save()
        return True

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            if not self._closed:
                self._save()
                self._closed = True
                self._stream.close()
                if self._held is not None:
                    self._held.close()

    def _append(self, lines: list[bytes]) -> None:
        if lines:
            self._stream.append(b"\n".join(lines) + b"\n")
        if time.monotonic() - self._saved_at > _SAVE_S:
            self._save()

    def _finish(self, pod: Pod) -> None:
        with self._lock:
            self._complete.append(pod.uid)
            self._save()

    def _lost(self, pod: Pod) -> None:
        """Note that the pod's log was removed with the pod."""
        with self._lock:
            if self._closed:
                return
            if pod.uid == self._uid and self._breaks_off() and pod.has_run:
                what = "the end of the log" if self._position.last else "the log"
                self._warn(f"{what} of pod {pod.name} is lost: the pod was removed before it was read")
        self._finish(pod)

    def _leave(self) -> None:
        """Leave the current pod for another; if its log was not read to the end, that end is lost."""
        with self._lock:
            if not self._closed and self._uid not in self._complete and self._breaks_off():
                self._warn("the end of the previous pod's log is lost: it was removed before it was read")

    def _breaks_off(self) -> bool:
        """Whether the log of the current pod is not stored, or lacks its end."""
        return bool(self._uid) and not (self._position.last and self._stream.has_ended())

    def _warn(self, text: str) -> None:
        self._append([encode_event("warning", self._node, message=text).rstrip(b"\n")])

    def _save(self) -> None:
        if self._closed:
            return
        notes = {
            "size": self._stream.size,
            "uid": self._uid,
            "position": self._position.to_json(),
            "complete": self._complete,
        }
        with contextlib.suppress(FileNotFoundError):  # the user has removed the run's directory
            storage.write_whole(self._notes, storage.encode_json(notes))
        self._saved_at = time.monotonic()


def _is_lost(error: api.ApiError, pod: Pod, *, ended: bool) -> bool:
    """Whether the rest of a pod's log no longer exists.

    The kubelet does not find that of a running pod while it rotates it, nor in its own first seconds.
    """
    return error.status == 404 and (ended or error.message == f'pods "{pod.name}" not found')


def is_stored(directory: Path, pod: Pod) -> bool:
    """Whether the pod's whole log is in that node's directory, whichever process has brought it."""
    notes = storage.read_json(f"{directory}/log.json") or {}
    return pod.uid in (notes.get("complete") or ())
