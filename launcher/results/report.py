"""Results about a run as a whole: the content of `distlaunch report`."""

from __future__ import annotations

from typing import Literal, TypedDict

from launcher.results.cluster import Setting  # noqa: TC001 - schemas are made from the types
from launcher.results.run import Status
from launcher.results.stacks import StackGroup  # noqa: TC001

PhaseName = Literal["queue", "agent", "import", "rendezvous", "workers", "first line"]
"""What a node's start-up consists of, in this order."""


class Phase(TypedDict):
    """One phase of a node's start-up."""

    name: PhaseName
    start: float
    """Unix seconds."""

    end: float


class NodeStart(TypedDict):
    """The start-up of one node, in the run's last attempt."""

    node: int
    host: str
    phases: list[Phase]


class Startup(TypedDict):
    """From the submission to the first line of every node."""

    took_s: float
    slowest: str
    """What most of the time was lost on, in words."""

    nodes: list[NodeStart]


class Round(TypedDict):
    """The workers between two restarts, of one role or of the whole run."""

    attempt: int
    round: int
    role: str
    """Empty if the run has no roles."""

    world_size: int
    start: float
    end: float
    """Until now, if it has not ended."""

    ended_by: str
    """Why it ended, in words; empty while it continues, or if nothing is known."""


class Moment(TypedDict):
    """Something that happened in a run, at one time."""

    time: float
    node: int | None
    kind: Literal["start", "restart", "warning", "stop", "failure", "end"]
    text: str


class Curve(TypedDict):
    """The values of one node."""

    node: int
    values: list[float | None]
    """One for each of the times; null where nothing is known."""

    outlier: bool
    """Whether the node differs from the others by more than is usual among them."""


class Series(TypedDict):
    """One measurement of all nodes over time."""

    name: str
    title: str
    unit: str
    times: list[float]
    """Unix seconds, the same for all nodes."""

    nodes: list[Curve]


class Point(TypedDict):
    """One progress mark."""

    time: float
    step: int | None
    loss: float | None


class ProgressCurve(TypedDict):
    """What the script told about its progress."""

    rank: int | None
    points: list[Point]


class Observation(TypedDict):
    """Something about the run that is worth knowing."""

    level: Literal["problem", "notice"]
    title: str
    detail: str
    nodes: list[int]
    """The nodes that it is about; none for the run as a whole."""


class Taken(TypedDict):
    """What the ranks did at one time: at a hang, or when somebody asked."""

    time: float
    """Unix seconds."""

    reason: Literal["hang", "request"]
    message: str
    """What they did, in one line."""

    odd: list[int]
    """At a hang, the ranks for which the others waited; none if that could not be told."""

    silent_s: float | None
    """For how long no rank had written a line, at a hang."""

    action: str | None
    """At a hang, what followed: `warn`, `end` or `restart`."""

    groups: list[StackGroup]


class LogLine(TypedDict):
    """One line of a worker."""

    stderr: bool
    text: str


class RankLog(TypedDict):
    """The last lines of one rank."""

    rank: int
    node: int
    host: str
    lines: list[LogLine]


class Report(Status):
    """A run with its history."""

    made: float
    """When this report was made, Unix seconds."""

    launcher_version: str
    verdict: str
    """How the run ended or how it is, in one sentence."""

    explanation: list[str]
    """The first cause in words, with its traceback; none if there is none."""

    observations: list[Observation]
    startup: Startup | None
    """Null if no agent has started."""

    rounds: list[Round]
    moments: list[Moment]
    samples: list[Series]
    progress_curves: list[ProgressCurve]
    stacks: list[Taken]
    """The latest stacks that were taken."""

    missing: list[str]
    """What this report lacks, and why."""

    logs: list[RankLog]
    settings: dict[str, Setting]
    """Empty for a run of an earlier version, which did not record them."""

    reproduce: str
    """The command that starts such a run again."""


class Written(TypedDict):
    """A report that was written to a file."""

    run: str
    path: str
    format: Literal["html", "md", "json"]
    bytes: int
