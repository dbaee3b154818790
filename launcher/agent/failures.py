"""The failure classes in one table, the source for agents, launcher, JSON and docs/agent-stream.md."""

from __future__ import annotations

from enum import Enum  # `signal` and `socket`, which every agent needs, import it anyway
from typing import Any, Mapping, Optional

from .named_tuple import NamedTuple


class About(NamedTuple):
    """The properties of a class."""

    text: str
    """Its name for messages."""

    exit_code: Optional[int]
    """Exit code of the command that follows such a run; None: that of the error."""

    may_come_back: bool
    """Whether a cluster, or spare hosts, may restart the run after it; False if the script would fail again."""

    when: str
    """The condition that it stands for."""

    agent_exit_code: Optional[int] = None
    """Exit code of the agent if the class is itself a run's state and a node's `result`; None: both are `failed`."""

    again: str = ""
    """How an attempt that follows it is announced."""


class Failure(str, Enum):
    """A failure class. JSON has its value, and a string read from there compares equal to the member."""

    about: About

    USER_CODE = (
        "user_code",
        About("the script failed", 1, False, "a worker raised an exception, ended with an exit code, or crashed"),
    )
    OUT_OF_MEMORY = (
        "out_of_memory",
        About("out of memory", 1, False, "an allocation failed, or the kernel killed a process because memory ran out"),
    )
    KILLED = (
        "killed",
        About(
            "a process was killed",
            1,
            True,
            "another process sent a signal to a worker or to one of distlaunch's processes",
        ),
    )
    COLLECTIVE = (
        "collective",
        About("a collective timed out", 1, True, "ranks waited in a collective for one that did not join it"),
    )
    NO_PROGRESS = (
        "no_progress",
        About(
            "the run hung",
            1,
            True,
            "no rank made progress for `--hang-after`, and `--on-hang` ends such a run",
        ),
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
        About(
            "time limit reached",
            124,
            True,
            "the run had no time left",
            agent_exit_code=124,
            again="after its time limit",
        ),
    )
    PREEMPTED = (
        "preempted",
        About("preempted", 1, True, "the scheduler took a node back", agent_exit_code=143, again="after preemption"),
    )
    CANCELLED = (
        "cancelled",
        About("cancelled", 130, False, "the user cancelled the run", agent_exit_code=130),
    )
    NOT_CHOSEN = (
        "not_chosen",
        About(
            "not chosen",
            1,
            False,
            "of a run that is queued on several clusters, this try got no claim: its script was not started",
            agent_exit_code=69,
        ),
    )
    SUBMISSION = (
        "submission",
        About("not submitted", None, False, "the run never reached its cluster"),
    )

    def __new__(cls, value: str, about: Optional[About] = None) -> Failure:  # noqa: PYI034 - 3.9 has no Self
        """Make the member for one row of the table."""
        made = str.__new__(cls, value)
        made._value_ = value
        made.about = about or About(value, 1, False, "")
        return made

    __str__ = str.__str__

    @classmethod
    def named(cls, value: object) -> Optional[Failure]:
        """The class with this name; None if it is unknown, as one from a newer agent may be."""
        try:
            return cls(str(value))
        except ValueError:
            return None


ENDS = tuple(each for each in Failure if each.about.agent_exit_code is not None)
"""Classes that are a run's final state and a node's `result`, worst first; all others are `failed`."""

WORST_FIRST = ("failed", *ENDS)
"""The order that decides a run's state: the first of these that any of its parts ended with."""

RESULTS = {"success": 0, "failed": 1, "lost": 75, **{str(each): each.about.agent_exit_code or 0 for each in ENDS}}
"""Exit codes of agents by `result`. 75 is EX_TEMPFAIL: another node failed, and may be back for the next attempt."""


def text(kind: object) -> str:
    """The class's name for messages; of an unknown class, the value itself."""
    known = Failure.named(kind)
    return known.about.text if known else str(kind)


def again(kind: object) -> str:
    """How an attempt that follows this class is announced, after a leading space; empty if it is not."""
    known = Failure.named(kind)
    return f" {known.about.again}" if known and known.about.again else ""


def may_come_back(why: Optional[Mapping[str, Any]]) -> bool:
    """Whether a run may be restarted after this cause."""
    known = Failure.named((why or {}).get("class"))
    return known is not None and known.about.may_come_back


class CannotError(Exception):
    """This node lacks something that its workers need; the message names it."""
