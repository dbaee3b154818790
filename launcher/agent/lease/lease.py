"""A run's lease of a host, or of as many of its GPUs as it has workers there.

GPUs: an exclusive lock for each, and a shared one of the host. A host without GPUs: the exclusive lock of the host. The
process that talks with the launcher takes the locks. Its child, the agent, inherits them and keeps them to its end;
whatever the agent starts closes them. Who has to wait has a locked ticket, and only the first ticket may take anything.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..named_tuple import NamedTuple
from ..system import processes, users
from . import gpus
from .lock_files import LockFiles, write_note

HOST = "host"
_TICKET = "ticket-"
_POLL_S = 0.1
_LONGEST_S = 15.0
_FRESH_S = 1.0
"""How long an answer of nvidia-smi, which takes up to seconds, is used."""

Request = Dict[str, Any]


class Wish(NamedTuple):
    """What a run asks for on this host."""

    run: str
    workers: str
    """A number, or `auto`."""

    env: Dict[str, str]
    """The workers' variables that name GPUs."""


class Holder:
    """The leases and the place in the queue of this process; they end with it, unless an agent inherits the leases."""

    def __init__(self, files: Optional[LockFiles] = None) -> None:
        self.gpus: Optional[List[int]] = None
        """The leased GPUs; None: the whole host, or no lease."""

        self._files = files
        self._locks: List[int] = []
        self._ticket: Optional[Tuple[str, int]] = None
        self._about: Request = {}
        self._env: Dict[str, str] = {}

    @property
    def files(self) -> LockFiles:
        """The host's lock files; raises `LeaseError` if there can be none."""
        self._files = self._files or LockFiles()
        return self._files

    def take(self, wish: Wish, *, wait_s: float, queue: bool) -> Request:
        """Take the lease within this time: `leased`, or who has it and who waits. `queue`: keep the place in the queue.

        Without `queue` the time is for leases that are about to end, and GPUs whose memory is about to be freed.
        """
        limit = time.monotonic() + min(wait_s, _LONGEST_S)
        uses, fresh_until = gpus.found(), time.monotonic() + _FRESH_S
        while True:
            if time.monotonic() > fresh_until:
                uses, fresh_until = gpus.found(), time.monotonic() + _FRESH_S
            allowed = gpus.visible(uses, {**os.environ, **wish.env})
            with self.files.mutex():
                answer = self._take(wish, uses, allowed, queue=queue)
            if answer["leased"] or time.monotonic() >= limit:
                return answer
            time.sleep(_POLL_S)

    def look(self, wish: Wish) -> Request:
        """Whether the lease can be taken now (`free`), or who has it; keeps nothing."""
        uses = gpus.found()
        allowed = gpus.visible(uses, {**os.environ, **wish.env})
        with self.files.mutex():
            answer = self._take(wish, uses, allowed, queue=False)
            self.close()
        own = any(one.get("run") == wish.run for one in answer["held"])
        return {"free": own or answer["leased"] is not None, "held": answer["held"], "ahead": answer["ahead"]}

    def _take(self, wish: Wish, uses: Sequence[gpus.Use], allowed: Sequence[int], *, queue: bool) -> Request:
        if self._locks:
            return self._answer()
        ahead = self._ahead()
        if not ahead:
            self._locks = self._host() if not uses else self._gpus(wish, uses, allowed)
        if self._locks:
            self.leave_queue()
            self._env = self._environment(wish, len(uses))
            self._about = about(wish.run, os.getpid())
            self._write(self._about)
            return self._answer()
        if queue and self._ticket is None:
            name = f"{_TICKET}{1 + max([_number(name) for name in self.files.names(_TICKET)], default=0):09}"
            self._ticket = name, self.files.create(name, about(wish.run, os.getpid()))
        return {
            "leased": None,
            "held": held(self.files, uses),
            "ahead": [_checked(self.files.note(name)) for name in ahead],
        }

    def _answer(self) -> Request:
        return {"leased": {"gpus": self.gpus}, "held": [], "ahead": []}

    def _host(self) -> List[int]:
        """The lock of the whole host; empty if it is not free."""
        lock = self.files.locked(HOST)
        return [] if lock is None else [lock]

    def _gpus(self, wish: Wish, uses: Sequence[gpus.Use], allowed: Sequence[int]) -> List[int]:
        """The locks of the host and of as many GPUs as there are workers, all or none."""
        host = self.files.locked(HOST, shared=True)
        if host is None:
            return []
        named = any(name in wish.env for name in gpus.VISIBLE)
        count = int(wish.workers) if wish.workers.isdigit() and not named else len(allowed)
        busy = {use.gpu for use in uses if use.busy}
        locks: List[int] = [host]
        own: List[int] = []
        for number in allowed:
            if len(own) == min(count, len(allowed)):
                break
            lock = None if number in busy else self.files.locked(f"gpu-{number}")
            if lock is not None:
                locks.append(lock)
                own.append(number)
        if len(own) < min(count, len(allowed)):
            for lock in locks:
                os.close(lock)
            return []
        self.gpus = own
        return locks

    def _environment(self, wish: Wish, count: int) -> Dict[str, str]:
        """What shows the workers their GPUs, if these are not all, and the user does not name them."""
        if self.gpus is None or len(self.gpus) == count or any(name in wish.env for name in gpus.VISIBLE):
            return {}
        numbers = ",".join(map(str, self.gpus))
        name = next((name for name in gpus.VISIBLE[1:] if name in os.environ), gpus.VISIBLE[0])
        return {name: numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def _ahead(self) -> List[str]:
        """The tickets before ours whose processes still wait; removes our own dead ones."""
        found = []
        for name in self.files.names(_TICKET):
            if self._ticket is not None and name >= self._ticket[0]:
                break
            if self.files.is_locked(name):
                found.append(name)
            else:
                self.files.remove(name)
        return found

    def leave_queue(self) -> None:
        """Give up the place in the queue."""
        if self._ticket is not None:
            name, fd = self._ticket
            self.files.remove(name)
            os.close(fd)
            self._ticket = None

    def environment(self) -> Dict[str, str]:
        """Variables of the workers by which they see only the leased GPUs."""
        return dict(self._env)

    def descriptors(self) -> List[int]:
        """The descriptors of the locks, for the agent."""
        return list(self._locks)

    def hand_over(self, pid: int) -> None:
        """Name that child, which has inherited the locks, as their holder."""
        self._write({**self._about, "pid": pid, "start_ticks": processes.start_ticks(pid)})

    def close(self) -> None:
        """Close the locks here; a child that has inherited them keeps them."""
        self.leave_queue()
        for fd in self._locks:
            os.close(fd)
        self._locks, self.gpus, self._env = [], None, {}

    def _write(self, note: Request) -> None:
        first = 0 if self.gpus is None else 1  # the shared lock of a host has many holders
        for fd in self._locks[first:]:
            write_note(fd, note)


def about(run: str, pid: int) -> Request:
    """What other users may know of a holder."""
    me = {"uid": os.getuid(), "user": users.name_of(os.getuid())}
    return {"run": run[:128], **me, "pid": pid, "start_ticks": processes.start_ticks(pid), "since": round(time.time())}


def held(files: LockFiles, uses: Sequence[gpus.Use]) -> List[Request]:
    """Who holds what on this host, by run; call it with the mutex. `gpus`: None for the whole host.

    `user` of a process that still runs is its owner, whatever the note says.
    """
    if files.is_locked(HOST):
        return [{**_checked(files.note(HOST)), "gpus": None}]
    found: List[Request] = []
    for use in uses:
        if files.is_locked(f"gpu-{use.gpu}"):
            note = _checked(files.note(f"gpu-{use.gpu}"))
            same = next((one for one in found if {**one, "gpus": 0} == {**note, "gpus": 0}), None)
            if same is None:
                found.append({**note, "gpus": [use.gpu]})
            else:
                same["gpus"].append(use.gpu)
        elif use.busy:
            found.append({"gpus": [use.gpu], "used_mib": use.used_mib})
    return found


def waiting(files: LockFiles) -> List[Request]:
    """Who waits, in order; call it with the mutex."""
    return [_checked(files.note(name)) for name in files.names(_TICKET) if files.is_locked(name)]


def _checked(note: Request) -> Request:
    """The note's known fields, with the actual owner of the process."""
    kept = {name: note[name] for name in ("run", "user", "since", "pid") if isinstance(note.get(name), (str, int))}
    pid = kept.pop("pid", 0)
    with contextlib.suppress(OSError):
        if isinstance(pid, int) and pid > 0 and processes.start_ticks(pid) == note.get("start_ticks"):
            kept["user"] = users.name_of(os.stat(f"/proc/{pid}").st_uid)
    return kept


def _number(ticket: str) -> int:
    digits = ticket[len(_TICKET) :]
    return int(digits) if digits.isdigit() and len(digits) < 19 else 0
