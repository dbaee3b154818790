"""The classes of failures, in one table: agents, launcher, JSON and docs/agent-stream.md have them from here."""

from __future__ import annotations

from enum import Enum  # `signal` and `socket`, which every agent needs, import it anyway
from typing import Any, Mapping, NamedTuple, Optional


class About(NamedTuple):
    """What there is to know of a class."""

    text: str
    """In words, for people."""

    exit_code: Optional[int]
    """Of the command that follows a run which ended so; None: the error's own."""

    may_come_back: bool
    """Whether a cluster, or spare hosts, may start the run again because of it: not where the script would fail again."""

    when: str
    """What it stands for."""

    agent_exit_code: Optional[int] = None
    """Of a class that is a run's final state, and a node's `result`, by itself; None: that is `failed`."""

    again: str = ""
    """How an attempt because of it is announced."""


class Failure(str, Enum):
    """A class of failures; in JSON it is its value, and what is read from there equals it."""

    about: About

    USER_CODE = (
        "user_code",
        About("the script failed", 1, False, "a worker raised an exception, ended with an exit code, or crashed"),
    )
    OUT_OF_MEMORY = (
        "out_of_memory",
        About("out of memory", 1, False, "an allocation failed, or the kernel killed for want of memory"),
    )
    KILLED = (
        "killed",
        About("a process was killed", 1, True, "somebody else sent a signal to a worker or to one of distlaunch's processes"),
    )
    COLLECTIVE = (
        "collective",
        About("a collective timed out", 1, True, "ranks waited in a collective for one that did not join it"),
    )
    FABRIC = (
        "fabric",
        About("the network failed", 1, True, "a connection could not be made, or was lost"),
    )
    NODE = (
        "node",
        About("a node failed", 1, True, "a host was lost, or cannot do its part", again="after a lost node"),
    )
    TIMEOUT = (
        "timeout",
        About("time limit reached", 124, True, "the run had no time left", agent_exit_code=124, again="after its time limit"),
    )
    PREEMPTED = (
        "preempted",
        About("preempted", 1, True, "the scheduler took a node back", agent_exit_code=143, again="after preemption"),
    )
    CANCELLED = (
        "cancelled",
        About("cancelled", 130, False, "somebody asked for the run's end", agent_exit_code=130),
    )
    SUBMISSION = (
        "submission",
        About("not submitted", None, False, "the run never came to its cluster"),
    )

    def __new__(cls, value: str, about: Optional[About] = None) -> Failure:  # noqa: PYI034 - 3.9 has no Self
        """A member of that value: of the table, where it has `about`, or found in it."""
        made = str.__new__(cls, value)
        made._value_ = value
        made.about = about or About(value, 1, False, "")
        return made

    __str__ = str.__str__

    @classmethod
    def named(cls, value: object) -> Optional[Failure]:
        """The class of that name; None for one that a newer agent has told."""
        try:
            return cls(str(value))
        except ValueError:
            return None


ENDS = tuple(each for each in Failure if each.about.agent_exit_code is not None)
"""Classes that are a run's final state, and a node's `result`; all others are `failed`. The worst first."""

WORST_FIRST = ("failed", *ENDS)
"""As what a run has ended of which parts have ended differently."""

RESULTS = {"success": 0, "failed": 1, "lost": 75, **{str(each): each.about.agent_exit_code or 0 for each in ENDS}}
"""Exit codes of agents, by `result`; 75 is EX_TEMPFAIL: what failed was another node, and may well be there the next time."""


def text(kind: object) -> str:
    """A class in words; of one that a newer agent has told, its name."""
    known = Failure.named(kind)
    return known.about.text if known else str(kind)


def again(kind: object) -> str:
    """How an attempt because of that class is announced, with a space before it; empty where there is nothing to say."""
    known = Failure.named(kind)
    return f" {known.about.again}" if known and known.about.again else ""


def may_come_back(why: Optional[Mapping[str, Any]]) -> bool:
    """Whether a run may be started again after this cause."""
    known = Failure.named((why or {}).get("class"))
    return known is not None and known.about.may_come_back
