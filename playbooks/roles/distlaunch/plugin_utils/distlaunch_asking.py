"""Asks all hosts of a task at once, over one connection each, and reports their answers to a launcher that follows."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import distlaunch_choice
import distlaunch_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    Answer = dict[str, Any]

_PROBLEM_CHARACTERS = 4000
_HANDS_OVER_S = 10.0
_OF_PROBLEMS = ("problem", "here", "unreachable", "late", "refused", "lease", "setup", "ssh", "proxied", "python_used")


class Asking:
    """The connections while the task runs, and Ansible's `result`, to which the hosts' answers are added."""

    def __init__(self, hosts: Sequence[str], result: dict[str, Any], report: str, limit_s: float) -> None:
        self.result = result
        self._report, self._limit_s = report, limit_s
        self._sessions: dict[str, distlaunch_session.Session] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(len(hosts))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        with ThreadPoolExecutor(max(1, len(self._sessions))) as pool:
            list(pool.map(lambda session: session.close(), self._sessions.values()))

    def connect(self, host: str, argv: Sequence[str], python: str, program: str, setup: str) -> None:
        """Send further requests to the host through that ssh command, to that program, which starts after `setup`."""
        session = self._sessions[host] = distlaunch_session.Session(argv, python, program, setup)
        session.on_sent = lambda sent, size: self.report(host=host, sent=sent, bytes=size)

    def ask(self, host: str, request: Answer, payload: str | bytes | None = None, *, times: int = 1) -> Answer:
        """One host's answer; it may take `times` as long as others."""
        return self._sessions[host].ask(request, payload, limit_s=self._limit_s * times)

    def login_s(self, host: str) -> float:
        """How long its login took, with the start of Python; zero if there was none."""
        return round(self._sessions[host].login_s, 1)

    def each(
        self,
        step: str,
        hosts: Sequence[str],
        work: Callable[[str], Answer],
        asked: Answer | None = None,
        prepare: Callable[[str], None] | None = None,
    ) -> dict[str, Answer]:
        """What `work` returns for each host, all at once; `asked`: the request, which answers have to match.

        `prepare` is called for one host after the other, each before its own work, during that of those before it.
        """

        def one(host: str) -> Answer:
            answer = work(host)
            answer = distlaunch_choice.misfit(step, answer, asked) or answer
            if answer.get("problem"):  # other fields were not validated
                answer = {name: answer[name] for name in _OF_PROBLEMS if name in answer}
                answer["problem"] = str(answer["problem"])[:_PROBLEM_CHARACTERS]
            with self._lock:
                self.result["answers"].setdefault(step, {})[host] = answer
                self.report(step=step, host=host, answer=answer)
            done_there = {key for key, value in answer.items() if value}
            if {"agent", "unpacked", "sent_bytes", "signalled"} & done_there and "running" not in done_there:
                self.result["changed"] = True
            return answer

        def prepared() -> Iterator[str]:
            for host in hosts:
                if prepare:
                    prepare(host)
                yield host

        self.report(step=step, hosts=list(hosts))
        return dict(zip(hosts, self._pool.map(one, prepared()), strict=True))

    @contextlib.contextmanager
    def part_of(self, host: str, before: int, size: int, total: int) -> Iterator[None]:
        """What is sent meanwhile is a part of a whole: so many of its bytes, after those `before`."""
        session = self._sessions[host]
        usual = session.on_sent
        session.on_sent = lambda sent, of: self.report(host=host, sent=before + size * sent // of, bytes=total)
        self.report(host=host, sent=before, bytes=total)
        try:
            yield
        finally:
            session.on_sent = usual

    def note(self, notes: Sequence[str]) -> None:
        """Add notes for the user."""
        self.result["notes"] += notes
        self.report(notes=list(notes))

    def failed(self, answers: Mapping[str, Answer], kind: str = "host") -> bool:
        """Record the problems among these answers; returns whether there are any. `kind`: theirs, if not clearer."""
        found = {}
        for host, answer in answers.items():
            if answer.get("problem"):
                clearer = next((name for name in ("unreachable", "here") if answer.get(name)), kind)
                found[host] = {"kind": clearer, "message": str(answer["problem"]).strip()}
        self.result["problems"].update(found)
        if found:
            self.report(problems=found)
        return bool(found)

    def hand_over(self, follower: str, ranks: Mapping[str, int], found: Mapping[str, Answer]) -> None:
        """Have the hosts send their nodes' streams from now on, to the launcher that listens there.

        If that fails, as without pidfds, which not every Python has, the launcher connects to them itself.
        """
        refused = (AttributeError, OSError)
        with contextlib.suppress(*refused), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as launcher:
            launcher.settimeout(_HANDS_OVER_S)
            launcher.connect("\0" + follower)
            _, owner, _ = struct.unpack("3i", launcher.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if owner != os.getuid():  # the launcher has been killed, and a stranger has taken the name
                return
            for host, rank in ranks.items():
                request = {"call": "tail", "directory": found[host]["directory"], "node_rank": rank}
                self._sessions[host].hand_over(launcher, json.dumps({"host": host}).encode(), request)

    def report(self, **what: Any) -> None:
        """Write a line for the launcher, if there is one."""
        if self._report:
            fd = os.open(self._report, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(fd, json.dumps(what).encode("ascii") + b"\n")
            finally:
                os.close(fd)
