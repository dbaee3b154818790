"""What the launcher tells every node's agent: one JSON file, the same for all nodes of a run."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from .failures import Failure

LOOPBACK = "127.0.0.1"
KEY_FILE, FUNCTION_FILE = "key", "function"
"""Beside spec.json, for their owner alone: what is not in it."""

_SHORTEST_KEY = 32
THREADS = "OMP_NUM_THREADS"


_BESIDE = ("key", "function")
_ONLY_WHERE_SET = ("debug", "terminal", "array", "may_move")
"""What few runs have, and is not told of the others."""


class Job(NamedTuple):
    """The agent's whole request, which a backend makes. Fields of a newer launcher are refused by name, never dropped in silence.

    No dataclass here or elsewhere in the agent: `dataclasses`, with `inspect`, costs every start 15 ms.
    """

    run: str
    command: List[str]
    """Script, module or program, then its arguments."""

    kind: str
    """`script`, `module`, `program`, or `function`: then the command is its name."""

    cwd: str
    env: Dict[str, str]
    directory: str
    """Directory for this run that the node can write: the agent uses `nodes/RANK` in it."""

    rendezvous: Dict[str, Any]
    """Where node 0 is. `{"file": PATH}`: it writes its address there. `{"addr": ..., "port": ...}`: decided by the backend.

    With `"any_order"` other nodes may start before node 0, with `"everywhere"` they may be on other machines, also where that is
    the loopback; with `"fd"` node 0 has a socket that listens there already.

    `{"addr": ..., "ports": [...]}`: on a network that is shared with others, node 0 takes a free port and tells it to whoever
    connects to the first of these that was free.
    """

    master_addr: Optional[str] = None
    """The address of node 0 that all nodes reach; None: each node finds the first that it reaches of all that node 0 has."""

    attempt: int = 0
    """How often the scheduler has started the run again."""

    min_nodes: int = 1
    max_nodes: int = 1
    replaceable: bool = False
    """Another node may take the place of one that is gone, also where their number may not change."""

    workers: Union[int, str] = "auto"
    python_named: bool = False
    """The interpreter was asked for: programs beside it are found before others, as in its activated environment."""

    start: str = "fork"
    preload: Optional[List[str]] = None
    max_restarts: int = 0
    time_limit_s: Optional[float] = None
    grace_s: float = 30.0
    rdzv_timeout_s: float = 600.0
    last_call_s: float = 30.0
    """So long the first round of an elastic run waits for more nodes, once there are enough; torch's own default."""

    host_timeout_s: float = 30.0
    """A host that acknowledges nothing for so long, with its kernel, is lost, or the network to it."""

    peer_timeout_s: float = 300.0
    """A node that gives no sign for so long is lost, though its host answers."""

    heartbeat_s: float = 10.0
    """So often an agent says in its stream that it lives."""

    role: str = "default"
    numa_binding: str = ""
    """One of `numa.MODES`, or nothing."""

    near_nics: bool = False
    """Workers use the RDMA ports nearest to their GPUs alone."""

    virtual_local_rank: bool = False
    """Workers have LOCAL_RANK 0, and see one GPU each."""

    debug: Optional[int] = None
    """This rank is kept in a debugger when an exception would end it, and the others with it."""

    macros: bool = False
    """`${local_rank}` in the arguments is replaced, as torchrun does."""

    same_signal_s: float = 0.0
    """A signal that comes again within so long is the same one: what a scheduler sends to all processes is passed on, too."""

    stop_signals: Optional[List[str]] = None
    """Signals, by name, that end the run as SIGTERM does; others are passed on to the workers."""

    log_limit_bytes: int = 0
    """So much of what each rank writes is kept; 0: all."""

    stream_wait_s: float = 300.0
    """So long an agent that has ended waits for a stream that takes nothing (a stalled disk, a pipe that nobody reads)."""

    master_port: int = 0
    sigterm_means: str = Failure.CANCELLED
    """What a SIGTERM to the agent is: `cancelled`, or `preempted` where the scheduler sends it."""

    signals_reach_workers: bool = False
    """Whoever signals the agent signals the workers, too (Slurm does): the agent must not do it again."""

    kill_wait_s: Optional[float] = None
    """So long after its SIGTERM the scheduler sends SIGKILL; None: nobody but us does."""

    shares_host: bool = False
    """Several nodes of the run are simulated on one machine."""

    end_signal: Optional[str] = None
    """A signal that nobody else listens to, by which the scheduler announces the end of the time limit."""

    lead_s: float = 30.0
    """How long before that end it comes."""

    replaces_lost: bool = False
    """The scheduler puts another node in the place of a lost one, and starts the others again that ended for want of it."""

    array: bool = False
    """Each task of the scheduler's job array is a run of its own, in `tasks/INDEX` of the directory."""

    session: str = ""
    """Tells this start of the run from others in the same directory; the same on all its nodes."""

    why_again: str = ""
    """What the attempt before was stopped for, as `result` in the agent stream."""

    node_env: Optional[List[Dict[str, str]]] = None
    """Further variables of each node, by node rank."""

    terminal: Optional[Dict[str, Any]] = None
    """What workers have of the launcher's terminal and stdin, as `streams_of` divides it; None: nothing.

    `rank`: whose lines alone are shown, or with `interactive` who has the keyboard; `stdin`: `tty`, `pipe` (of the launcher's,
    by the socket), `passed` (the very descriptor, on its machine), `null`; `stdout` and `stderr`: whether they are that terminal;
    `size`, `modes`, `term`: as it is. `very`: the path of the launcher's very terminal, by stream, which all workers share.
    """

    key: str = ""
    """The run's secret, by which its nodes know one another: from the file `key` beside this one, and never in this one."""

    function: Optional[str] = None
    """The request to call it, in base64: from the file `function` beside this one, and never in this one."""

    may_move: bool = False
    """This file lies in `directory`, wherever that has been moved to since: paths of the job that begin with it move along."""

    @classmethod
    def read(cls, path: str) -> Job:
        """The job in that file, with the key beside it; `ValueError` names an unknown field."""
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        unknown = sorted(set(data) - (set(cls._fields) - set(_BESIDE)))
        if unknown:
            raise ValueError(f"{path}: unknown fields {', '.join(unknown)}: launcher and agent are of different versions")
        job = cls(**data)
        beside = os.path.dirname(path)
        job = job._replace(key=_key(os.path.join(beside, KEY_FILE), alone=job.max_nodes == 1))
        if job.kind == "function":
            job = job._replace(function=_function(os.path.join(beside, FUNCTION_FILE)))
        return job.moved_to(os.path.dirname(os.path.abspath(path))) if job.may_move else job

    def to_json(self, *, without: Sequence[str] = ()) -> Dict[str, Any]:
        """What `read` reads, as plain JSON: all but what is in files of its own, and what is decided where the agents are."""
        unset = [name for name in _ONLY_WHERE_SET if getattr(self, name) == self._field_defaults[name]]
        return {name: value for name, value in self._asdict().items() if name not in (*_BESIDE, *unset, *without)}

    def moved_to(self, directory: str) -> Job:
        """The job with its directory there."""

        def now(path: str) -> str:
            return directory + path[len(self.directory) :] if f"{path}/".startswith(f"{self.directory}/") else path

        rendezvous = {key: now(value) if key == "file" else value for key, value in self.rendezvous.items()}
        command = [now(self.command[0]), *self.command[1:]]
        return self._replace(directory=directory, cwd=now(self.cwd), command=command, rendezvous=rendezvous)

    @property
    def on_loopback(self) -> bool:
        """Whether all of the run is on this machine, and reached from nowhere else."""
        return self.master_addr == LOOPBACK and "everywhere" not in self.rendezvous

    @property
    def unreachable_s(self) -> float:
        """So long a connection between nodes waits for the other host; it breaks before anybody takes that node for starved."""
        return min(self.host_timeout_s, 0.75 * self.peer_timeout_s)

    @property
    def elastic(self) -> bool:
        """Whether the nodes may change while the run continues."""
        return self.min_nodes != self.max_nodes or self.replaceable

    @property
    def wants_keyboard(self) -> bool:
        """Whether one rank is to have the launcher's keyboard: then there has to be a way to that rank."""
        return self.terminal is not None and bool(self.terminal["interactive"])

    @property
    def passes_stdin(self) -> bool:
        """Whether workers have the stdin that the agent was started with."""
        return self.terminal is not None and self.terminal["stdin"] == "passed"

    def streams_of(self, rank: int, world_size: int) -> Optional[Dict[str, Any]]:
        """What `streams.made` is to make for that worker; None: nothing to read, and pipes."""
        if self.terminal is None or self.array:
            return None
        lent, mine, stdin = self.terminal, self.terminal["rank"] == rank, self.terminal["stdin"]
        reads = mine if lent["interactive"] else stdin == "passed" or (mine and world_size == 1)
        shown = {name: mine and lent[name] for name in ("stdout", "stderr")}
        reads = reads and stdin != "null"
        return {**lent, **shown, "stdin": stdin if reads else "null"} if reads or any(shown.values()) else None

    def environment(self, base: Dict[str, str], node_rank: int) -> Dict[str, str]:
        """What all workers of a node share, but for `threads`."""
        env = {**base, **self.env, **(self.node_env[node_rank] if self.node_env else {})}
        if self.python_named:
            beside = os.path.dirname(sys.executable)
            path = env.get("PATH", os.defpath).split(os.pathsep)
            env["PATH"] = os.pathsep.join([beside, *(directory for directory in path if directory != beside)])
        if self.attempt:
            env.update(DISTLAUNCH_ATTEMPT=str(self.attempt), DISTLAUNCH_ATTEMPT_REASON=self.why_again)
        return env

    def threads(self, env: Dict[str, str], workers: int) -> Tuple[Optional[str], str]:
        """OMP_NUM_THREADS of a node's workers and why: torchrun's rule, on all backends. None: it is not set."""
        if THREADS in env:
            return env[THREADS], "as it was set"
        if workers > 1 or self.shares_host:
            return "1", "several workers share the host, and it was not set: torchrun's rule"
        return None, "one worker has the host, or what the scheduler gives it: torchrun's rule"


def _key(path: str, *, alone: bool) -> str:
    """The run's key; a node that is alone may have one of its own, as nobody else has to know it."""
    try:
        with open(path, encoding="ascii") as file:
            key = file.read().strip()
    except FileNotFoundError:
        if not alone:
            raise ValueError(f"{path} is missing: the nodes of a run know one another by the secret in it") from None
        return os.urandom(32).hex()
    if len(key) < _SHORTEST_KEY:
        raise ValueError(f"{path} holds no key: it should be {_SHORTEST_KEY} random characters or more")
    return key


def _function(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: the function that is to be called is in it") from None
