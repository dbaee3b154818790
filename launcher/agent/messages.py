"""The messages between the processes of one node, by direction. Imported by type checkers alone.

    agent ⇄ fork server ⇄ the worker group's process ⇄ agent

A message has the keys of one line of its class, by the first of which it is known, unless said otherwise.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, TypedDict

from .channel import Channel

Json = Dict[str, Any]


class WorkerRequest(TypedDict, total=False):
    """A worker that is to be started."""

    rank: int
    local_rank: int
    round: int
    env: Dict[str, str]
    cpus: str
    """What it is bound to, as `taskset` lists CPUs; missing: nothing."""

    terminal: Json
    """What it has of the launcher's terminal and stdin, as `Job.streams_of` gives it; missing: pipes."""


class _Named(TypedDict):
    rank: int
    local_rank: int
    round: int
    pid: int


class StartedWorker(_Named, total=False):
    """One that was forked."""

    cpus: str


class ExitedWorker(StartedWorker):
    """One that was reaped."""

    code: int
    """Its exit code; below 0 the signal that ended it."""

    stopped: bool
    """It was we who ended it."""

    time: float
    """Unix seconds."""


class ServerSetup(TypedDict):
    """What the fork server and the worker group's process are to do."""

    job: Json
    """The fields of `Job`."""

    env: Dict[str, str]
    """The workers'."""

    preload: List[str]
    node_rank: int
    host: str
    workers: int
    agent: int
    """The pid of the agent."""

    directory: str
    scratch: str
    files: int
    """The soft limit of open files that workers have."""

    ignored: List[int]
    """Signals that workers ignore."""


class Signal(TypedDict, total=False):
    """For all workers, known by `signal`."""

    signal: int
    mark: bool
    """Workers that end now were ended by us."""

    repeat: bool
    """Also to those that are marked."""

    rank: int
    """To this one alone, with its process group."""


class AgentToServer(Signal, total=False):
    """`setup` comes first, with node 0's listening socket."""

    setup: ServerSetup
    quit: bool


class ServerToAgent(TypedDict, total=False):
    """`started` comes with our ends of the worker's output."""

    started: StartedWorker
    terminal: Optional[Json]
    """With `started`: what was asked for in its `WorkerRequest`."""

    exited: ExitedWorker
    event: str
    fields: Json
    failed: str
    """`script`, `server`, `import` (with `module`), `store` (with `code`)."""

    message: str
    traceback: str
    module: str
    code: int
    group_exited: int
    """The exit code of the worker group's process."""


class GroupToServer(Signal, total=False):
    """`listens` comes with the socket at which workers look for their store."""

    start: WorkerRequest
    sweep: bool
    """End what the workers have left."""

    listens: bool


class ServerToGroup(TypedDict, total=False):
    """What becomes of the workers, and what was asked for."""

    started: StartedWorker
    exited: ExitedWorker
    debugged: Json
    ready: bool
    """All is imported that workers are to find."""

    swept: bool


class Result(TypedDict, total=False):
    """How this node's part of the run ended."""

    result: str
    """`success`, `failed`, `stopped`, `stopped_by_peer`."""

    word: Json
    """What another node ended the run by."""

    error: str
    kind: str
    """The class of the failure, for `error`."""

    secondary: bool
    lost: bool
    traceback: str
    time: float


class GroupToAgent(TypedDict, total=False):
    """The last one is `ended`, or `broken`."""

    ended: Result

    event: str
    fields: Json
    ask_cause: List[int]
    """Why have these ranks ended? Answered by `cause`."""

    first_cause: Optional[Json]
    """The cause that all nodes were told; None: all start again, and what ended this round does not end the run."""

    broken: str
    """A part of it has failed."""

    traceback: str
    """With `broken`."""


class AgentToGroup(TypedDict, total=False):
    """`endpoint` and `cause` are answers, `stop` and `ends` come at any moment."""

    endpoint: Tuple[str, int]
    fabric: Optional[Json]
    cause: Json
    waited: Dict[str, List[int]]
    """With `cause`: ranks whose collective has timed out or was lost, by which of the two."""

    stop: str
    deadline: float
    signal: int
    leaves: bool
    """This node alone leaves."""

    done: bool
    """This node leaves once its workers have succeeded."""

    ends: bool
    """The agent ends now."""


AgentServer = Channel[AgentToServer, ServerToAgent]
"""The agent's end of its channel to the fork server; the other ends are named alike."""

ServerAgent = Channel[ServerToAgent, AgentToServer]
ServerGroup = Channel[ServerToGroup, GroupToServer]
GroupServer = Channel[GroupToServer, ServerToGroup]
GroupAgent = Channel[GroupToAgent, AgentToGroup]
AgentGroup = Channel[AgentToGroup, GroupToAgent]
