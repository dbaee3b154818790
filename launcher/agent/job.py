"""The launcher's request to every node's agent: one JSON file, the same for all nodes of a run."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Union

from . import outer_run
from .failures import Failure
from .named_tuple import NamedTuple
from .secret_files import beside

if TYPE_CHECKING:
    from .messages import LentTerminal, Rendezvous

LOOPBACK = "127.0.0.1"
_BESIDE = ("key", "function", "notify")
_IF_SET = (  # noqa: SIM905 - as few lines as names allow
    "output_dir project hold_s hold_node debug terminal array may_move plain_stream claim contract ps roles tracking "
    "tracked_as samples_s hang_after_s on_hang env_ship warm_s cold serves_store failed_grace_s"
).split()
"""Fields that few runs set; left out of the JSON if unset."""


class Job(NamedTuple):
    """The agent's whole request, which a backend makes.

    Fields of a newer launcher are refused by name. There are no dataclasses in the agent: to import them takes 15 ms.
    """

    run: str
    command: List[str]
    """Script, module or program, then its arguments."""

    kind: str
    """`script`, `module`, `program` or `function`, for which the command is its name."""

    cwd: str
    env: Dict[str, str]
    directory: str
    """The run's directory, writable for the node: the agent uses `nodes/RANK` in it."""

    rendezvous: Rendezvous
    """How the nodes find node 0.

    `{"file": PATH}`: it writes its address there. `{"addr": ..., "port": ...}`: the backend decides.
    `{"addr": ..., "ports": [...]}`: on a network shared with other runs, node 0 takes a free port and announces it on
    the first of these ports that is free.
    With `"any_order"`, other nodes may start before node 0. With `"everywhere"`, they may be on other hosts even if the
    address is the loopback. With `"fd"`, node 0 inherits a socket that already listens there.
    """

    master_addr: Optional[str] = None
    """Address of node 0 that all nodes reach; None: each node uses the first of node 0's addresses that it reaches."""

    attempt: int = 0
    why_again: Optional[str] = None
    """How many times the scheduler has requeued the run; why the previous attempt ended, as `result` in the stream."""

    min_nodes: int = 1
    max_nodes: int = 1
    replaceable: bool = False
    """Whether another node may replace a lost one even if the number of nodes is fixed."""

    workers: Union[int, str] = "auto"
    python_named: bool = False
    """Whether the user named the interpreter: programs next to it come first in PATH, as in an active environment."""

    start: str = "fork"
    preload: Optional[List[str]] = None
    max_restarts: int = 0
    time_limit_s: Optional[float] = None
    grace_s: float = 30.0
    failed_grace_s: Optional[float] = None
    """Time between SIGTERM and SIGKILL; after a failure, and before another round, if that is not the same."""

    rdzv_timeout_s: float = 600.0
    last_call_s: float = 30.0
    """How long the first round of an elastic run waits for more nodes once there are enough; torch's default."""

    host_timeout_s: float = 30.0
    """A host whose kernel acknowledges nothing for this long is considered lost."""

    peer_timeout_s: float = 300.0
    """A node that is silent for this long is considered lost even if its host answers."""

    heartbeat_s: float = 10.0
    samples_s: float = 10.0
    """Intervals of the heartbeats and of the samples in an agent's stream; 0: no samples."""

    plain_stream: bool = False
    """Whether people read the stream, too, as the log of a pod (`stream/plain.py`)."""

    output_dir: Optional[str] = None
    """Where the workers' files are to be: DISTLAUNCH_OUTPUT_DIR; None: not set."""

    project: Optional[str] = None
    """The name of the directory that runs from one directory share, if they do."""

    hold_s: float = 0.0
    hold_node: Optional[int] = 0
    """How long the agent of that node (None: of each) waits at its end for a launcher that fetches files."""

    role: str = "default"
    numa_binding: Optional[str] = None
    """One of `numa.MODES`; None: workers are not bound."""

    near_nics: bool = False
    """Whether workers use only the RDMA ports nearest to their GPUs."""

    virtual_local_rank: bool = False
    """Whether each worker has LOCAL_RANK 0 and sees one GPU."""

    debug: Optional[int] = None
    """Rank that an uncaught exception takes to a debugger; all other ranks are kept alive meanwhile."""

    macros: bool = False
    """Whether `${local_rank}` in the arguments is replaced, as torchrun does."""

    same_signal_s: float = 0.0
    """A signal repeated within this time counts once: one that a scheduler sends to all processes is also forwarded."""

    stop_signals: Optional[List[str]] = None
    """Names of more signals that end the run as SIGTERM does; others are passed on to the workers."""

    log_limit_bytes: Optional[int] = None
    """How much of each rank's output is kept; None: all."""

    stream_wait_s: float = 300.0
    """How long an exiting agent waits for a blocked stream: a stalled disk, or a pipe without a reader."""

    hang_after_s: Optional[float] = 300.0
    on_hang: str = "warn"
    """How long all ranks may be silent before stacks are compared (None: for ever); then `warn`, `end` or `restart`."""

    master_port: Optional[int] = None
    serves_store: bool = True
    """Port of the workers' store; None: a free one. Whether node 0 serves it, if its Python has torch; else rank 0."""

    sigterm_means: str = Failure.CANCELLED
    """The result after a SIGTERM to the agent: `cancelled`, or `preempted` if the scheduler sends it."""

    signals_reach_workers: bool = False
    """Whether signals to the agent also reach the workers, as on Slurm: then the agent does not forward them."""

    kill_wait_s: Optional[float] = None
    """How long after its SIGTERM the scheduler sends SIGKILL; None: only the agent does."""

    shares_host: bool = False
    """Whether several nodes of the run are simulated on one host."""

    end_signal: Optional[str] = None
    lead_s: float = 30.0
    """Otherwise unused signal by which the scheduler announces the end of the time limit, and how long before it."""

    replaces_lost: bool = False
    """Whether the scheduler replaces a lost node and restarts the nodes that exited because of it."""

    array: bool = False
    """Each task of the scheduler's job array is a run of its own, in `tasks/INDEX` of the directory."""

    session: Optional[str] = None
    """Distinguishes this start of the run from others in the same directory; the same on all nodes."""

    node_env: Optional[List[Dict[str, str]]] = None
    """Additional variables of each node, by node rank."""

    terminal: Optional[LentTerminal] = None
    """The launcher's terminal and stdin, which `group/requests.py` divides among the workers; None: they get neither.

    `rank`: the only rank that is shown, or with `interactive` the rank that has the keyboard. The other fields are
    those of `LentTerminal`; `very` is, by stream, the path of the launcher's own terminal, which all workers share.
    """

    env_ship: Optional[Dict[str, Any]] = None
    """The environment that is brought to the nodes: `source`, `dir`, `quota_bytes` (`environment/stage.py`)."""

    key: str = ""
    """The secret by which the run's nodes authenticate each other: in the file `key`, never in spec.json."""

    warm_s: float = 0.0
    cold: Optional[str] = None
    """How long a fork server stays for the next run (`forkserver/standing.py`); why this agent was not forked there."""

    function: Optional[str] = None
    """The request to call a function, in base64: in the file `function`, never in spec.json."""

    claim: Optional[Dict[str, Any]] = None
    """The run is queued on several clusters, and node 0 starts the workers only once it has the claim; None: at once.

    `wait_s`: how long it waits for a launcher to grant that. `kept`: a file that is there once one has, and outlasts
    `directory`. With `place`, a directory or `ssh://HOST/DIRECTORY`, it claims the file `race` there itself, for the
    run's name.
    """

    contract: str = "torchrun"
    """How workers learn their place: the name of a module of `contracts`."""

    ps: int = 0
    """The number of parameter servers, the last ranks, with the contract `tensorflow`."""

    roles: Optional[List[Dict[str, Any]]] = None
    """Groups of nodes that differ, in the order of their nodes: `name`, `nodes`, and the fields that are their own."""

    tracking: str = "continue"
    tracked_as: Optional[str] = None
    """What experiment trackers get, and the run's id for them if it is another (`contracts/_tracking.py`)."""

    notify: Optional[str] = None
    """Whom node 0 tells of the run, as JSON (`node/notices.py`): in the file `notify`, never in spec.json."""

    may_move: bool = False
    """Whether `directory`, which contains spec.json, may be moved: `read` adjusts the job's paths below it."""

    @classmethod
    def read(cls, path: str) -> Job:
        """Read the job from this file and the key from the one next to it; `ValueError` names unknown fields."""
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        unknown = sorted(set(data) - (set(cls._fields) - set(_BESIDE)))
        if unknown:
            raise ValueError(f"{path}: unknown fields {', '.join(unknown)}: launcher and agent differ in version")
        job = cls(**data)
        job = job._replace(**beside(os.path.dirname(path), alone=job.max_nodes == 1, calls=job.kind == "function"))
        return job.moved_to(os.path.dirname(os.path.abspath(path))) if job.may_move else job

    def to_json(self, *, without: Sequence[str] = ()) -> Dict[str, Any]:
        """The content of spec.json: all fields but those kept in other files, those in `without`, and some if unset."""
        unset = [name for name in _IF_SET if getattr(self, name) == self._field_defaults[name]]
        return {name: value for name, value in self._asdict().items() if name not in (*_BESIDE, *unset, *without)}

    def moved_to(self, directory: str) -> Job:
        """The job after its directory has moved there."""

        def now(path: str) -> str:
            return directory + path[len(self.directory) :] if f"{path}/".startswith(f"{self.directory}/") else path

        rendezvous: Rendezvous = {**self.rendezvous}
        if "file" in rendezvous:
            rendezvous["file"] = now(rendezvous["file"])
        return self.with_files(now)._replace(directory=directory, rendezvous=rendezvous)

    @property
    def commands(self) -> List[List[str]]:
        """The commands of all roles."""
        return [role["command"] for role in self.roles] if self.roles else [self.command]

    def with_files(self, now: Callable[[str], str]) -> Job:
        """The job, with the paths of the user's files as they are now."""

        def of(command: List[str]) -> List[str]:
            return [now(command[0]), *command[1:]]

        roles = self.roles and [{**role, "command": of(role["command"])} for role in self.roles]
        where = self.output_dir and now(self.output_dir)
        return self._replace(cwd=now(self.cwd), command=of(self.command), output_dir=where, roles=roles)

    @property
    def on_loopback(self) -> bool:
        """Whether all of the run is on this machine and unreachable from others."""
        return self.master_addr == LOOPBACK and "everywhere" not in self.rendezvous

    @property
    def unreachable_s(self) -> float:
        """How long nodes wait for another's host; shorter than `peer_timeout_s`: a starved node is not a lost host."""
        return min(self.host_timeout_s, 0.75 * self.peer_timeout_s)

    @property
    def round_grace_s(self) -> float:
        """How long workers have to end after a failure, and before another round."""
        return self.grace_s if self.failed_grace_s is None else self.failed_grace_s

    @property
    def elastic(self) -> bool:
        """Whether the nodes may change while the run continues."""
        return self.min_nodes != self.max_nodes or self.replaceable

    @property
    def wants_keyboard(self) -> bool:
        """Whether one rank gets the launcher's keyboard, so the launcher must be able to reach that rank."""
        return self.terminal is not None and bool(self.terminal["interactive"])

    @property
    def passes_stdin(self) -> bool:
        """Whether workers inherit the stdin that the agent was started with."""
        return self.terminal is not None and self.terminal["stdin"] == "passed"

    def environment(self, base: Dict[str, str], node_rank: int) -> Dict[str, str]:
        """The environment that all workers of a node share, without what `threads` decides."""
        env = {**outer_run.without_it(base), **self.env, **(self.node_env[node_rank] if self.node_env else {})}
        if self.python_named:
            beside, path = os.path.dirname(sys.executable), env.get("PATH", os.defpath).split(os.pathsep)
            env["PATH"] = os.pathsep.join([beside, *(directory for directory in path if directory != beside)])
        where = env.get("DISTLAUNCH_OUTPUT_DIR", self.output_dir)
        own = {"DISTLAUNCH_OUTPUT_DIR": where} if where else {}
        if self.attempt:
            own.update(DISTLAUNCH_ATTEMPT=str(self.attempt), DISTLAUNCH_ATTEMPT_REASON=self.why_again or "")
        return outer_run.with_record(env, own)
