"""The messages between the processes of one node, by direction. Imported only by type checkers.

    agent ⇄ fork server ⇄ the worker group's process ⇄ agent

A message has some of the keys of its class and is identified by the first of them, unless noted otherwise.
"""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, Tuple, TypedDict

from . import hang_messages
from .channel import Channel

Json = Dict[str, Any]


class Rendezvous(TypedDict, total=False):
    """How the nodes find node 0: see `Job.rendezvous`."""

    file: str
    addr: str
    port: int
    ports: List[int]
    any_order: bool
    everywhere: bool
    fd: int


class _Lent(TypedDict):
    rank: Optional[int]
    """The only rank that is shown or, with `interactive`, the rank that has the keyboard."""

    interactive: bool
    stdin: Literal["tty", "pipe", "passed", "null"]
    """A terminal, the launcher's stdin through the socket, its own descriptor on the same host, or an empty one."""

    stdout: bool
    """Whether it is the terminal; `stderr` likewise."""

    stderr: bool


class LentTerminal(_Lent, total=False):
    """The launcher's terminal and stdin, as its workers share them."""

    if_alone: bool  # only a run's only worker has it, as the lines of others would be shown, too
    size: List[int]  # rows and columns
    modes: Optional[Json]
    term: str
    very: Dict[str, str]
    """By stream, the path of the launcher's own terminal, which all workers share."""

    name: str
    """The path of the terminal that was made for the worker."""


_Classified = TypedDict("_Classified", {"class": str, "message": str})


class Cause(_Classified):
    """Why a worker or a node failed. `class` is one of `Failure`."""

    host: Optional[str]
    node: Optional[int]
    rank: Optional[int]
    local_rank: Optional[int]
    exit_code: Optional[int]
    signal: Optional[str]
    traceback: Optional[str]
    time: float
    """Unix seconds."""

    secondary: bool
    """Whether it looks like the consequence of a failure elsewhere."""


class _Published(TypedDict):
    kind: Literal["restart", "fail", "stop", "lost", "done"]
    node: int


class Verdict(_Published, total=False):
    """What one node publishes to all: the end of a round, or of the run."""

    host: str
    cause: Cause
    message: str
    """Of a lost node."""
    time: float
    secondary: bool
    stop: str
    """Of a stop, its reason; `signal` as in `AgentToGroup`."""

    signal: int
    left_s: float
    """How long the workers have: the clocks of two nodes may differ by more than that."""


class WorkerRequest(TypedDict, total=False):
    """A worker to be started."""

    rank: int
    local_rank: int
    round: int
    env: Dict[str, str]
    error_file: str
    passes: List[str]  # the variables that get the numbers of the descriptors that come with the request

    cpus: str
    """The CPUs that it is bound to, in the format of `taskset`; missing: it is not bound."""

    terminal: LentTerminal
    """Its share of the launcher's terminal and stdin, from `Job.streams_of`; missing: pipes."""


class _Named(TypedDict):
    rank: int
    local_rank: int
    round: int
    pid: int


class StartedWorker(_Named, hang_messages.Stuck, total=False):
    """A worker that was forked."""

    cpus: str


class ExitedWorker(StartedWorker):
    """A worker that was reaped, or given up."""

    code: int
    """Its exit code; if negative, the signal that ended it."""

    stopped: bool
    """Whether distlaunch ended it."""

    time: float
    """Unix seconds."""


class ServerSetup(TypedDict):
    """The setup of the fork server and of the worker group's process."""

    job: Json
    """The fields of `Job`."""

    env: Dict[str, str]
    """The workers' environment."""

    preload: List[str]
    node_rank: int
    host: str
    workers: int
    agent: int
    """The pid of the agent."""

    directory: str
    scratch: str
    files: int
    """The workers' soft limit of open files."""

    ignored: List[int]
    """Signals that workers ignore."""


class Signal(TypedDict, total=False):
    """A signal for all workers, identified by `signal`."""

    signal: int
    mark: bool
    """Workers that exit from now on count as ended by distlaunch."""

    repeat: bool
    """Also signal workers that are already marked."""

    rank: int
    """Signal only this rank's process group."""


class AgentToServer(Signal, total=False):
    """`setup` comes first, on node 0 with its listening socket. `stacks`: ask all workers for theirs."""

    setup: ServerSetup
    stacks: bool
    quit: bool
    stays: bool  # with `quit`


class ServerToAgent(TypedDict, total=False):
    """`started` comes with the agent's ends of the worker's output."""

    started: StartedWorker
    terminal: Optional[LentTerminal]  # with `started`: that of its `WorkerRequest`

    exited: ExitedWorker
    event: str
    fields: Json
    failed: str
    """`script`, `server`, `import` (with `module`), `store` (with `code`)."""

    message: str
    traceback: str
    module: str
    code: int
    group_exited: int  # the exit code of the worker group's process
    stays: Json  # its pid, or the reason


class GroupToServer(Signal, total=False):
    """`listens` comes with the listening socket of the workers' store."""

    start: WorkerRequest
    sweep: bool
    """End the processes that the workers left behind."""

    listens: bool


class ServerToGroup(TypedDict, total=False):
    """Reports on the workers, and replies."""

    started: StartedWorker
    exited: ExitedWorker
    debugged: Json
    ready: bool
    """The imports for the workers are done."""

    swept: bool


class Result(TypedDict, total=False):
    """How this node's part of the run ended."""

    result: str
    """`success`, `failed`, `stopped`, `stopped_by_peer`."""

    word: Verdict
    """The verdict with which another node ended the run."""

    error: str
    kind: str
    """The class of the failure, for `error`."""

    secondary: bool
    lost: bool
    traceback: str
    time: float


class GroupToAgent(hang_messages.GroupToAgent, total=False):
    """The last message is `ended` or `broken`."""

    ended: Result
    event: str
    fields: Json
    ask_cause: List[int]
    """Asks why these ranks exited; `cause` is the reply."""

    first_cause: Optional[Cause]
    """The cause published to all nodes; None: all nodes restart, and what ended this round does not end the run."""

    broken: str
    traceback: str
    """The message and the traceback of an internal failure."""


class AgentToGroup(hang_messages.AgentToGroup, total=False):
    """`endpoint` and `cause` are replies; `stop`, `fail` and `ends` come at any time."""

    endpoint: Tuple[str, int]
    fabric: Optional[Json]
    cause: Cause
    waited: Dict[str, List[int]]
    stopping: bool
    """With `cause`: ranks that waited, by the keys of `cause.WAITED`; whether the agent has ended all that failed."""

    stop: str
    deadline: float
    signal: int
    leaves: bool
    """Only this node leaves."""

    done: bool
    """This node leaves once its workers have succeeded."""

    fail: Cause  # why this node has no workers, for the other nodes
    ends: bool  # the agent exits now


AgentServer = Channel[AgentToServer, ServerToAgent]
"""The agent's end of its channel to the fork server; the other ends are named in the same way."""

ServerAgent = Channel[ServerToAgent, AgentToServer]
ServerGroup = Channel[ServerToGroup, GroupToServer]
GroupServer = Channel[GroupToServer, ServerToGroup]
GroupAgent = Channel[GroupToAgent, AgentToGroup]
AgentGroup = Channel[AgentToGroup, GroupToAgent]
