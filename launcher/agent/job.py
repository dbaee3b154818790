"""What the launcher tells every node's agent: one JSON file, the same for all nodes of a run."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Union

LOOPBACK = "127.0.0.1"
KEY_FILE = "key"
_SHORTEST_KEY = 32


class Job(NamedTuple):
    """The agent's whole request. Fields of a newer launcher are refused by name, never dropped in silence.

    No dataclass here or elsewhere in the agent: `dataclasses`, with `inspect`, costs every start 15 ms.
    """

    run: str
    command: List[str]
    """Script, module or program, then its arguments."""

    kind: str
    """`script`, `module` or `program`."""

    cwd: str
    env: Dict[str, str]
    folder: str
    """Folder for this run that the node can write: the agent uses `nodes/RANK` in it."""

    rendezvous: Dict[str, Any]
    """Where node 0 is. `{"file": PATH}`: it writes its address there. `{"addr": ..., "port": ...}`: decided by the backend.

    `{"addr": ..., "ports": [...]}`: on a network that is shared with others, node 0 takes a free port and tells it to whoever
    connects to the first of these that was free.
    """

    master_addr: Optional[str] = None
    """The address of node 0 that all nodes reach; None: each node finds the first that it reaches of all that node 0 has."""

    attempt: int = 0
    """How often the scheduler has started the run again."""

    min_nodes: int = 1
    max_nodes: int = 1
    workers: Union[int, str] = "auto"
    start: str = "fork"
    preload: Optional[List[str]] = None
    max_restarts: int = 0
    time_limit_s: Optional[float] = None
    grace_s: float = 30.0
    rdzv_timeout_s: float = 600.0
    last_call_s: float = 30.0
    """So long the first round of an elastic run waits for more nodes, once there are enough; torch's own default."""

    peer_timeout_s: float = 30.0
    """A node that was not heard of for so long is lost."""

    heartbeat_s: float = 10.0
    """So often an agent says in its stream that it lives."""

    log_limit_bytes: int = 0
    """So much of what each rank writes is kept; 0: all."""

    stream_wait_s: float = 300.0
    """So long an agent that has ended waits for a stream that takes nothing (a stalled disk, a pipe that nobody reads)."""

    master_port: int = 0
    sigterm_means: str = "cancelled"
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
    """Each task of the scheduler's job array is a run of its own, in `tasks/INDEX` of the folder."""

    session: str = ""
    """Tells this start of the run from others in the same folder; the same on all its nodes."""

    why_again: str = ""
    """What the attempt before was stopped for, as `result` in the agent stream."""

    cpus: Optional[int] = None
    """Processors of this node that the scheduler gives the run; None: all of them."""

    node_env: Optional[List[Dict[str, str]]] = None
    """Further variables of each node, by node rank."""

    key: str = ""
    """The run's secret, by which its nodes know one another: from the file `key` beside this one, and never in this one."""

    may_move: bool = False
    """This file lies in `folder`, wherever that has been moved to since: paths of the job that begin with it move along."""

    @classmethod
    def read(cls, path: str) -> Job:
        """The job in that file, with the key beside it; `ValueError` names an unknown field."""
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        unknown = sorted(set(data) - (set(cls._fields) - {"key"}))
        if unknown:
            raise ValueError(f"{path}: unknown fields {', '.join(unknown)}: launcher and agent are of different versions")
        job = cls(**data)
        job = job._replace(key=_key(os.path.join(os.path.dirname(path), KEY_FILE), alone=job.max_nodes == 1))
        return job.moved_to(os.path.dirname(os.path.abspath(path))) if job.may_move else job

    def moved_to(self, folder: str) -> Job:
        """The job with its folder there."""

        def now(path: str) -> str:
            return folder + path[len(self.folder) :] if f"{path}/".startswith(f"{self.folder}/") else path

        rendezvous = {key: now(value) if key == "file" else value for key, value in self.rendezvous.items()}
        command = [now(self.command[0]), *self.command[1:]]
        return self._replace(folder=folder, cwd=now(self.cwd), command=command, rendezvous=rendezvous)

    @property
    def on_loopback(self) -> bool:
        """Whether all of the run is on this machine, and reached from nowhere else."""
        return self.master_addr == LOOPBACK

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change while the run goes on."""
        return self.min_nodes != self.max_nodes

    def environment(self, base: Dict[str, str], node_rank: int, workers: int) -> Dict[str, str]:
        """What all workers of a node share; torchrun's OMP_NUM_THREADS=1 for several workers on a machine included."""
        env = {**base, **self.env, **((self.node_env or [{}] * self.max_nodes)[node_rank])}
        if self.attempt:
            env.update(DISTLAUNCH_ATTEMPT=str(self.attempt), DISTLAUNCH_ATTEMPT_REASON=self.why_again)
        if self.cpus:
            env.setdefault("OMP_NUM_THREADS", str(max(1, self.cpus // workers)))
        elif workers > 1 or self.shares_host:
            env.setdefault("OMP_NUM_THREADS", "1")
        return env


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
