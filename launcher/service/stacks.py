"""Asks the agents of a run for the stacks of their workers, and groups what they answer over all nodes."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.agent.named_tuple import NamedTuple
from launcher.agent.protocol import Event
from launcher.agent.stacks import sentences
from launcher.agent.stacks.stack import grouped
from launcher.errors import CommandError, RequestError
from launcher.runs import status
from launcher.runs.reader import StreamReader, Wanted, parse_ranks
from launcher.service import bringing, observe, resume
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from launcher.agent.stacks.stack import Stack
    from launcher.results.stacks import StackGroup, Stacks
    from launcher.runs.records import Run

_LIMIT_S, _EACH_S = 20.0, 0.01
"""How long all nodes may take, and how much longer for each: an agent needs up to 2 s, 7 s with py-spy, and may be
reached by ssh, or by an API server that starts a program beside it."""

_READ_S, _AGAIN_S = 0.05, 4.0


def wanted(text: str | None) -> Wanted | None:
    """The ranks that `0,3-5` names; None: all. Raises `RequestError`."""
    try:
        return None if text is None else parse_ranks(text)
    except ValueError as error:
        raise RequestError(f"invalid rank list {text!r}", hint="write --rank 0,3-5") from error


def take(run: Run, ranks: Wanted | None = None) -> Stacks:
    """What these ranks do now. Raises `LaunchError` if the run does not run, or none of its nodes answers."""
    found = _running(run)
    answers = _Answers(found)
    answers.wait(_LIMIT_S + _EACH_S * len(found.hosts))
    if not answers.groups:
        raise CommandError(f"no node of {found.id} answers: {answers.why()}", hint=f"distlaunch status {found.id}")
    groups, hosts = _of_ranks(answers, ranks), answers.hosts
    if ranks is not None and not groups:
        raise RequestError(f"{found.id} has no running rank of those", hint=f"distlaunch status {found.id}")
    silent = answers.missing()
    return {
        "run": found.id,
        "groups": groups,
        "silent": [{"node": node, "host": hosts[node], "why": answers.why()} for node in silent],
    }


def _running(run: Run) -> Run:
    """The run as it was sent. Raises `RequestError` if it has no workers that could be asked."""
    found = observe.whole(run)
    if found.tasks:
        raise RequestError(f"{found.id} is a job array", hint=f"distlaunch stacks {found.id}/{found.tasks[0]}")
    if found.result is not None:
        raise RequestError(f"{found.id} has ended", hint=f"distlaunch status {found.id}")
    found = observe.sent(found)
    if found.handle is None:
        raise RequestError(f"{found.id}: {status.nothing_found(found)}", hint=f"distlaunch status {found.id}")
    return found


class _Node(NamedTuple):
    """What one node has answered."""

    groups: list[Stack]


class _Answers:
    """The nodes' answers, from the request on."""

    def __init__(self, run: Run) -> None:
        self._backend, handle = observe.backend_of(run), run.known
        bringing.everything(run, self._backend)
        self._backend.refresh(handle)
        nodes = status.observe(run).nodes
        self._expected = {node.node for node in nodes if node.result is None}
        self.hosts = [node.host for node in nodes]
        self._stream = self._backend.open_stream(handle, resume.sizes(run))
        self._readers = {node: StreamReader(frozenset(), node) for node in range(len(run.hosts))}
        self.groups: dict[int, list[Stack]] = {}
        """By node."""

        self._ask = partial(self._backend.signal, handle, self._backend.asks_for_stacks)
        self._request = Question(self._ask, "stacks")
        self._again_at = time.monotonic() + _AGAIN_S

    def wait(self, limit_s: float) -> None:
        """Wait until all nodes have answered that run, at most this long. Raises the error of a failed request."""
        limit = time.monotonic() + limit_s
        try:
            while self.missing() and time.monotonic() < limit:
                for chunk in self._stream.read(_READ_S):
                    if isinstance(chunk.node, int):
                        self._hear(chunk.node, chunk.data)
                if self._request.answered(0.0):
                    self._request.answer()
                    if time.monotonic() > self._again_at:  # an agent that was just starting heard nothing
                        self._request, self._again_at = Question(self._ask, "stacks"), time.monotonic() + _AGAIN_S
        finally:
            self._stream.close()

    def missing(self) -> list[int]:
        """The nodes that should have answered, and have not."""
        return sorted(self._expected - set(self.groups))

    def why(self) -> str:
        """Why nodes may not have answered."""
        return "no answer" if self._request.answered(0.0) else "the request has not reached it"

    def _hear(self, node: int, data: bytes) -> None:
        for record in self._readers[node].feed(data):
            if isinstance(record, Event) and record.name == "stacks":
                self.groups[node] = record.fields.get("groups") or []
            elif isinstance(record, Event) and record.name == "done":
                self._expected.discard(node)


def _of_ranks(answers: _Answers, ranks: Wanted | None) -> list[StackGroup]:
    nodes = {rank: node for node, groups in answers.groups.items() for each in groups for rank in each["ranks"]}
    of_nodes = ({**each, "ranks": _only(each["ranks"], ranks)} for every in answers.groups.values() for each in every)
    merged = grouped(each for each in of_nodes if each["ranks"])  # type: ignore[misc]
    return [_result(each, nodes, answers.hosts) for each in merged]


def _only(ranks: Iterable[int], wanted: Wanted | None) -> list[int]:
    return [rank for rank in ranks if wanted is None or rank in wanted]


def _result(group: Stack, nodes: Mapping[int, int], hosts: list[str]) -> StackGroup:
    at = sorted({nodes[rank] for rank in group["ranks"]})
    frames: Any = group["frames"]
    threads: Any = group["threads"]
    return {
        "ranks": group["ranks"],
        "nodes": at,
        "hosts": [hosts[node] for node in at],
        "summary": sentences.doing(group, several=len(group["ranks"]) > 1),
        "frames": frames,
        "threads": threads,
        "state": group["state"],
    }
