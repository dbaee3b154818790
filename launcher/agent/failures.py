"""The classes of failures, in one table: agents, launcher, JSON and docs/agent-stream.md have them from here."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional


class FailureClass(NamedTuple):
    """What there is to know of a class."""

    text: str
    """In words, for people."""

    exit_code: Optional[int]
    """Of the command that follows a run which ended so; None: the error's own."""

    may_come_back: bool
    """Whether a cluster, or spare hosts, may start the run again because of it: not where the script would fail again."""

    when: str
    """What it stands for."""


CLASSES: Dict[str, FailureClass] = {
    "user_code": FailureClass("the script failed", 1, False, "a worker raised an exception, ended with an exit code, or crashed"),
    "out_of_memory": FailureClass("out of memory", 1, False, "an allocation failed, or the kernel killed for want of memory"),
    "killed": FailureClass("a process was killed", 1, True, "somebody else sent a signal to a worker or to a process of ours"),
    "collective": FailureClass("a collective timed out", 1, True, "ranks waited in a collective for one that did not join it"),
    "fabric": FailureClass("the network failed", 1, True, "a connection could not be made, or was lost"),
    "node": FailureClass("a node failed", 1, True, "a host was lost, or cannot do its part"),
    "preempted": FailureClass("preempted", 1, True, "the scheduler took a node back"),
    "timeout": FailureClass("time limit reached", 124, True, "the run had no time left"),
    "cancelled": FailureClass("cancelled", 130, False, "somebody asked for the run's end"),
    "submission": FailureClass("not submitted", None, False, "the run never came to its cluster"),
}

ENDS = ("preempted", "timeout", "cancelled")
"""Classes that are a run's final state, and a node's `result`; all others are `failed`."""

RESULTS = {"success": 0, "failed": 1, "cancelled": 130, "preempted": 143, "lost": 75, "timeout": 124}
"""Exit codes of agents, by `result`; 75 is EX_TEMPFAIL: what failed was another node, and may well be there the next time."""


def text(kind: object) -> str:
    """A class in words; of one that a newer agent has told, its name."""
    known = CLASSES.get(str(kind))
    return known.text if known else str(kind)


def may_come_back(why: Optional[Mapping[str, Any]]) -> bool:
    """Whether a run may be started again after this cause."""
    known = CLASSES.get(str((why or {}).get("class")))
    return known is not None and known.may_come_back
