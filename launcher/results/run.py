"""Results about runs: their states, how they were started, and what a command did."""

from __future__ import annotations

from typing import Literal, TypedDict

from launcher.agent.failures import Failure
from launcher.results.files import Fetched  # noqa: TC001 - schemas are made from the types
from launcher.results.race import MaybeRace
from launcher.results.usage import MaybeUsage, Told

State = Literal["pending", "starting", "running", "stopping", "success", "failed", "unknown"] | Failure
"""State of a run; of the failure classes, only final states."""

_Classified = TypedDict("_Classified", {"class": str, "message": str})


class Cause(_Classified, total=False):
    """The first failure of a run, or of a node. `class` is one of those in docs/agent-stream.md."""

    host: str | None
    node: int | None
    rank: int | None
    """Null if no worker was at fault."""

    local_rank: int | None
    exit_code: int | None
    """Exit code of that worker."""

    signal: str | None
    """The name of the signal that ended the worker."""

    traceback: str | None
    time: float | None
    """When it was raised, Unix seconds."""

    secondary: bool | None
    """Whether it looks like the consequence of a failure elsewhere."""

    may_come_back: bool
    """Whether starting the run again may help."""


class Node(TypedDict):
    """One node of a run."""

    node: int
    """Its rank."""

    host: str
    role: str
    """Empty if the run has no roles, or before the rendezvous."""

    ranks: list[int]
    """Ranks of its workers."""

    workers: int | None
    """Running now; null before the first one."""

    master: str
    """MASTER_ADDR and port, as `ADDR:PORT`; empty before the rendezvous."""

    output_dir: str | None
    """Where its workers write relative paths, on its host or in its pod; null before it has started."""

    started: float | None
    """Unix seconds."""

    last_seen: float | None
    """Unix seconds."""

    stopping: str
    """Why its workers are being stopped; empty if they are not."""

    restarts: int
    cause: Cause | None
    result: str | None
    """How it ended, as docs/agent-stream.md lists it; null before."""

    early: bool
    """Whether it was taken away after it had done its part, while the others continued."""

    attempt: int
    """How many times the scheduler restarted it."""

    lines_lost: int
    """Lines of its workers that are not in the logs."""


class Task(TypedDict):
    """One task of a job array."""

    run: str
    state: State
    exit_code: int | None
    cause: Cause | None
    duration_s: float | None


class _MaybeArray(TypedDict, total=False):
    tasks: list[Task]
    """Of a job array."""


class RunState(_MaybeArray):
    """A run at one moment."""

    state: State
    exit_code: int | None
    """Exit code of `distlaunch` after following such a run; null before the end."""

    cause: Cause | None
    detail: str
    """Why the run is in this state, if there is more to say."""

    restarts: int
    """How many times its agents restarted its workers."""

    attempt: int
    """How many times the run as a whole was restarted."""

    duration_s: float | None
    queued_s: float | None
    """From its submission to the start of its first agent; null before that, without a queue, or after a restart."""

    nodes: list[Node]
    """By rank; none of a job array."""


def nothing(state: State, detail: str = "") -> RunState:
    """A run in this state, with nothing known about its nodes."""
    return {
        "state": state,
        "exit_code": None,
        "cause": None,
        "detail": detail,
        "restarts": 0,
        "attempt": 0,
        "duration_s": None,
        "queued_s": None,
        "nodes": [],
    }


class Started(TypedDict):
    """A run that continues without the launcher: `--detach`."""

    run: str
    """Its id."""

    path: str
    """Its directory."""

    job_id: str | None
    """The scheduler's own id; null if there is none, or none is known yet."""


class _MaybeFetched(TypedDict, total=False):
    fetched: Fetched
    """With `--fetch`: the files that were fetched."""


class Followed(RunState, Started, _MaybeFetched):
    """A run that was followed to its end."""

    output_dir: str | None
    """Where the first node's workers wrote relative paths, on its host; null if that is not known."""


class Status(RunState, Started, MaybeRace, Told):
    """All that is known about a run."""

    output_dir: str | None
    """As of a run that was followed."""

    backend: str
    cluster: str | None
    command: list[str]
    """Script, module or program, then its arguments."""

    cwd: str
    created: float | None
    """Unix seconds."""


class Listed(MaybeUsage):
    """One run in a list."""

    run: str
    state: State
    exit_code: int | None
    backend: str
    cluster: str | None
    nodes: str
    """How many it has or, before that is known, as asked for: a number, or MIN:MAX."""

    job_id: str | None
    """The scheduler's own id; null if there is none, or none is known yet."""

    tasks: list[int]
    """Indices of a job array."""

    created: float | None
    """Unix seconds."""

    command: list[str]
    cwd: str
    path: str


class Runs(TypedDict):
    """The runs in the runs directory, the newest last."""

    runs: list[Listed]


class _MaybeGpus(TypedDict, total=False):
    gpus: dict[str, list[int]]
    """The GPUs that it has, by host; only where runs take leases of GPUs."""


class ClusterRun(_MaybeGpus):
    """A run as its cluster reports it, of any user."""

    run: str
    state: State
    nodes: str
    created: float
    """Unix seconds."""

    user: str | None
    """Who started it; null if the cluster does not say."""

    job_id: str | None
    """The scheduler's own id; null if there is none."""

    hosts: list[str]
    """By node rank; empty if it has not started, or the cluster does not say."""

    command: list[str]
    """Script, module or program, then its arguments; empty if the cluster does not say."""


class ClusterRuns(TypedDict):
    """The runs that a cluster knows: `--on NAME`."""

    runs: list[ClusterRun]


class Cancelled(TypedDict):
    """A run after `cancel`."""

    run: str
    state: State
    exit_code: int | None
    """Null if its end was not waited for."""


class Requeued(TypedDict):
    """A run that was started again."""

    run: str
    attempt: int


class Adopted(Started):
    """A run that another host started, now among the local runs."""

    hosts: list[str]


class Ended(TypedDict):
    """A run that has ended."""

    run: str
    job_id: str | None
    state: State
    exit_code: int | None


class Waited(TypedDict):
    """The runs that were waited for and have ended, in the order in which they were named."""

    runs: list[Ended]


class Removed(TypedDict):
    """Runs that were removed."""

    runs: list[str]


class Pruned(Removed):
    """Old runs that were removed or, with `--dry-run`, would be."""

    kept: list[str]
    """Those that could not be removed."""

    removed: bool
    """False: nothing was removed."""
