"""Pod logs, kept as a node's stream in the run's directory: nothing lost or doubled, whoever fetches and whenever it stops.

Each line has the time at which the machine's runtime read it. A log is asked for from a second before the last line that is here,
and lines whose times are here already are left out. Where a fetcher was killed, the stream is cut to what `log.json` vouches for.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from calendar import timegm
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from launcher.agent.protocol import encode_event
from launcher.backends.kubernetes import api
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from launcher.backends.kubernetes.states import Pod

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) ")
_NO_LOG = (b"unable to retrieve container logs", b"failed to try resolving symlinks")
"""What the kubelet gives in place of a log that it does not have any more, with a status of 200."""

_OVERLAP_S = 1.0
_ORDER_S = 0.5
"""Lines of stdout and stderr are stamped before they are put in order: their times may be out of order by less."""

_SILENT_S = 60.0
"""Agents say something every 10 s: a connection that is silent for so long is dead."""

_ANSWER_S = 10.0
"""A log that is not followed is there: a machine that does not give it in so long is not heard of."""

_REFUSED_S = 30.0
"""So long a container that runs may have no log yet, as its machine's runtime has it."""

_LATER = (408, 429)
"""Answers that say no for the moment, and nothing of what was asked."""

_PAUSE_S = (0.3, 5.0)
_SAVE_S = 1.0


class Position:
    """Up to where a log was read, by the times of its lines."""

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        self.last = float((saved or {}).get("last") or 0.0)
        self._seen: dict[bytes, int] = {key.encode(): int(count) for key, count in ((saved or {}).get("seen") or {}).items()}
        self._known: dict[bytes, int] = {}
        self._known_until = 0.0
        self._seconds: dict[bytes, float] = {}

    def to_json(self) -> dict[str, Any]:
        """What another process needs to go on from here."""
        return {"last": self.last, "seen": {key.decode(): count for key, count in self._seen.items()}}

    def since(self) -> str | None:
        """The time to ask from; from then on what comes is compared with what was seen. None: from the start."""
        self._known, self._known_until = dict(self._seen), self.last
        if not self.last:
            return None
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.last - _OVERLAP_S))

    def take(self, lines: list[bytes]) -> list[bytes]:
        """The lines that are new, without their times."""
        new = []
        for line in lines:
            match = _STAMP.match(line)
            if match is None:
                if line:  # the kubelet's own words
                    new.append(line)
                continue
            when = self._second(match[1] + match[3]) + float(match[2] or 0)
            stamp = match[0]
            if self._known_until and when <= self._known_until and self._is_known(stamp, when):
                continue
            self._seen[stamp] = self._seen.get(stamp, 0) + 1
            self.last = max(self.last, when)
            new.append(line[match.end() :])
        self._forget()
        return new

    def _is_known(self, stamp: bytes, when: float) -> bool:
        if self._known.get(stamp, 0) > 0:
            self._known[stamp] -= 1
            return True
        return when < self._known_until - _ORDER_S

    def _forget(self) -> None:
        """Keep the times of the last seconds only."""
        if len(self._seconds) > 4:
            old = self.last - _OVERLAP_S - 1.0
            self._seconds = {key: when for key, when in self._seconds.items() if when >= old}
            self._seen = {key: count for key, count in self._seen.items() if key[:19] + _zone(key) in self._seconds}

    def _second(self, key: bytes) -> float:
        """Unix seconds of a time without its fraction."""
        if key not in self._seconds:
            text = key.decode("ascii")
            offset = 0 if text[19] == "Z" else (-1 if text[19] == "-" else 1) * (int(text[20:22]) * 60 + int(text[23:25])) * 60
            self._seconds[key] = float(timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) - offset)
        return self._seconds[key]


def _zone(stamp: bytes) -> bytes:
    match = _STAMP.match(stamp)
    return match[3] if match else b""


class _Stream:
    """The file that the lines are kept in."""

    def __init__(self, path: Path, size: int) -> None:
        """`size`: up to where it is vouched for."""
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
        """Whether the node's last word is in it."""
        with open(self._path, "rb") as file:
            file.seek(max(0, self.size - 4096))
            return b'{"event":"done"' in file.read()

    def close(self) -> None:
        """Write no more."""
        os.close(self._fd)


class NodeLog:
    """The stream of one node: the logs of its pods, one after the other."""

    def __init__(self, directory: Path, node: int, cluster: api.Cluster) -> None:
        self._node, self._cluster = node, cluster
        self._notes = directory / "log.json"
        directory.mkdir(parents=True, exist_ok=True)
        notes = storage.read_json(self._notes) or {}
        self._complete: list[str] = [str(uid) for uid in notes.get("complete") or ()]
        self._uid = str(notes.get("uid") or "")
        self._position = Position(notes.get("position"))
        self._stream = _Stream(directory / "stream", int(notes.get("size") or 0))
        self._saved_at = 0.0
        self._lock = Lock()
        self._closed = False

    def is_complete(self, pod: Pod) -> bool:
        """Whether all of its log is here."""
        return pod.uid in self._complete

    def catch_up(self, pod: Pod) -> None:
        """Fetch what is new of a pod's log now. Raises `ApiError` or `UnreachableError`."""
        try:
            if self.fetch(pod, follow=False, ended=pod.ended) and pod.ended:
                self._finish(pod)
        except api.ApiError as error:
            if error.status in (401, 403):
                raise
            if error.status == 404:
                self._lost(pod)

    def follow(self, pod: Pod, latest: Callable[[], Pod | None], stop: Event) -> None:
        """Fetch the pod's log until it has ended, or `stop`; `latest` tells what is known of the pod now. Raises `ApiError`."""
        pause = _PAUSE_S[0]
        refused_until: float | None = None
        while not stop.is_set() and not self.is_complete(pod):
            now = latest()
            ended = now is None or now.ended  # before it is read: what is read after its end is all
            before = self._stream.size
            try:
                if self.fetch(pod, follow=not ended, ended=ended) and ended:
                    self._finish(pod)
                    return
            except api.ApiError as error:
                if error.status in (401, 403):
                    raise
                if error.status == 404:
                    self._lost(pod)
                    return
                refused_until = refused_until or time.monotonic() + _REFUSED_S
                if error.status < 500 and error.status not in _LATER and time.monotonic() > refused_until:
                    raise
            except api.UnreachableError:
                pass
            else:
                refused_until = None
            pause = _PAUSE_S[0] if self._stream.size > before else min(pause * 1.5, _PAUSE_S[1])
            stop.wait(pause)

    def fetch(self, pod: Pod, *, follow: bool, ended: bool) -> bool:
        """Read what is new, and with `follow` what comes; whether it was read to its end. `ended`: nobody writes any more."""
        if pod.uid != self._uid:
            self._leave()
            self._uid, self._position = pod.uid, Position()
        query: dict[str, Any] = {"container": pod.own, "timestamps": "true", **({"follow": "true"} if follow else {})}
        if since := self._position.since():
            query["sinceTime"] = since
        path = f"/api/v1/namespaces/{self._cluster.namespace}/pods/{pod.name}/log"
        response = self._cluster.open(path, query, silent_s=_SILENT_S if follow else _ANSWER_S)
        try:
            for lines in api.blocks(response, cut=ended):
                with self._lock:
                    if self._closed:
                        return False
                    if any(line.startswith(_NO_LOG) for line in lines):
                        raise api.ApiError(404, "the log has been removed")
                    self._append(self._position.take(lines))
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
        """Its log has gone with it."""
        with self._lock:
            if self._closed:
                return
            if pod.uid == self._uid and self._breaks_off():
                self._warn(f"the end of the log of pod {pod.name} is lost: the pod was removed before it was read")
        self._finish(pod)

    def _leave(self) -> None:
        """Go on to another pod; where the one before was not read to its end, it is not there to be read any more."""
        with self._lock:
            if not self._closed and self._uid not in self._complete and self._breaks_off():
                self._warn("the end of the log of the pod before is lost: it was removed before it was read")

    def _breaks_off(self) -> bool:
        """Whether what is here of a pod's log lacks its end."""
        return bool(self._position.last) and not self._stream.has_ended()

    def _warn(self, text: str) -> None:
        self._append([encode_event("warning", self._node, message=text).rstrip(b"\n")])

    def _save(self) -> None:
        if self._closed:
            return
        notes = {"size": self._stream.size, "uid": self._uid, "position": self._position.to_json(), "complete": self._complete}
        with contextlib.suppress(FileNotFoundError):  # somebody has removed the run's directory
            storage.write_whole(self._notes, storage.encode_json(notes))
        self._saved_at = time.monotonic()
