"""One node's part in an MPI world: node 0 starts mpirun, and a worker is started for each rank that MPI starts here.

    node 0: mpirun ── remote shell ── hub ── store ── node K: daemon ── rank's stand-in ── hub ── "start a worker"

MPI knows the stand-ins (`rank.py`); the workers are children of the fork server, as in any run.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from .. import cause
from ..failures import CannotError, Failure
from ..job import Job
from ..named_tuple import NamedTuple
from ..ranks import Group, Ranks
from ..starter import Starter
from ..system import facts
from . import files, library
from . import vendor as vendors
from .hub import ROUND, Caller, Hub
from .mpirun import Mpirun
from .shells import Shells

if TYPE_CHECKING:
    from ..messages import Cause, ExitedWorker, GroupToServer, WorkerRequest
    from ..store.interface import Store
    from .vendor import Vendor

_LOOK_S = 0.02
_KILL_S, _LATE_S = 1.0, 2.0
"""How long a worker may take to end after its MPI, and how long an mpirun that failed waits for the worker's report."""

_SEEN_S = 0.1
_LOST_S = 10.0
"""How long a node waits for the reason why a stand-in has ended before its worker."""

_TOO_MANY = "mpirun has started too many ranks on this node"
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL)
_STAND_IN = ("sh", "-c", 'exec "$DISTLAUNCH_MPI_PYTHON" -ISEc "$DISTLAUNCH_MPI_RANK"')
_ABORTED = r"MPI_ABORT was invoked on rank (\d+)|application called MPI_Abort\(.*\) - process (\d+)"


_LOOPBACK = dict.fromkeys(("OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES", "FI_TCP_IFACE"), "lo")
"""Where all nodes are on this host, no MPI has to use an interface that may go away, such as a container's."""


class Node(NamedTuple):
    """What stays the same for all rounds on this node."""

    job: Job
    node: int
    """Its rank among all nodes of the run."""

    rank: int
    """Its rank among the nodes of its role: those of this world."""

    host: str
    directory: str
    """The node's, in the run's."""

    scratch: str
    """The directory of the workers' small files."""


class World(Starter):
    """A round's ranks on this node."""

    def __init__(
        self, node: Node, vendor: Vendor, hub: Hub, store: Store, tick: Callable[[], None], first_rank: int
    ) -> None:
        """`store`: the round's part. `tick`: called while it waits; raises if the run is to end.

        `first_rank`: the number of the run's workers in roles before this one.
        """
        super().__init__()
        self._node, self._vendor, self._hub, self._store, self._tick = node, vendor, hub, store, tick
        self._first = first_rank
        self._ranks: Dict[int, Caller] = {}
        """The stand-ins, by rank among all of the run."""

        self._left: Dict[int, float] = {}
        """When each stand-in was found dead before its worker."""

        self._mpirun: Optional[Mpirun] = None
        self._shells: Optional[Shells] = None
        self._wrong: Optional[Tuple[str, Failure]] = None
        """What has gone wrong here, and its kind."""

        self._done_at = 0.0

    @property
    def _round(self) -> str:
        """What tells this round's stand-ins from those of others."""
        return self._store.name_of("mpi")

    # -- the start ----------------------------------------------------------------------------------------------------

    def start(self, group: Group, peers: List[Dict[str, Any]]) -> List[Ranks]:
        """Start the ranks; those of this node, once all are there. Raises `CannotError` if they are not."""
        job, rank = self._node.job, self._node.rank
        if job.kind == "program":
            why = library.stranger(library.of_program(job.command[0], job.cwd, dict(os.environ)), self._vendor)
            if why:
                raise CannotError(f"{job.command[0]} {why}")
        names = vendors.hosts(peers, os.uname().nodename)
        hosts_file = os.path.join(self._node.directory, "mpi-hosts")
        shell = files.shell(self._node.scratch, self._node.directory)
        ours = {
            "DISTLAUNCH_MPI_PYTHON": sys.executable,
            "DISTLAUNCH_MPI_RANK": files.source("rank.py"),
            ROUND: self._round,
        }
        env = {**vendors.environment(self._vendor, dict(os.environ), hosts_file, shell), **ours}
        env["DISTLAUNCH_MPI_HUB"] = hub_name(self._node)
        env.update(vendors.private_files(self._vendor, self._node.scratch))
        self._shells = Shells(rank, names, self._store, env, job.cwd)
        of_slurm = {peer.get("slurm_group", "") for peer in peers}
        alike = len(of_slurm) == 1 and not job.shares_host  # a step cannot span several groups, nor simulated nodes
        if rank == 0 and alike and vendors.speaks_with_slurm(self._vendor, dict(os.environ)):
            hosts = [peer["slurm"] for peer, count in zip(peers, group.counts) for _ in range(count)]
            files.write(hosts_file, "".join(f"{host}\n" for host in hosts))
            ours["DISTLAUNCH_MPI_HUB"] = hub_name(self._node, "%N")
            step = vendors.step(self._vendor, names, group.counts, of_slurm.pop())
            within = vendors.of_step(self._vendor, dict(os.environ), hosts_file)
            self._mpirun = Mpirun([*step, *_STAND_IN], {**within, **ours}, job.cwd)
        elif rank == 0:
            files.write(hosts_file, vendors.hosts_text(self._vendor, names, group.counts))
            argv = vendors.command(self._vendor, hosts_file, group.master_addr, shell, group.counts)
            self._mpirun = Mpirun([*argv, *_STAND_IN], env, job.cwd)
        return self._gather(group)

    def _gather(self, group: Group) -> List[Ranks]:
        """Wait for the stand-ins of this node's ranks."""
        wanted, limit_s = group.local_world_size, self._node.job.rdzv_timeout_s
        limit, world = time.monotonic() + limit_s, sum(group.counts)
        assert self._shells is not None
        found = self._ranks = dict[int, Caller]()  # also if some never come, `end` lets them go
        while len(found) < wanted:
            self._tick()
            self._hub.look(_LOOK_S, self._shells.fileno())
            for caller in self._hub.stand_ins(self._round):
                found[self._first + vendors.rank_of(variables(caller))] = caller
            self._attend_shells(starting=True)
            if self._mpirun is not None and self._mpirun.look() is not None:
                raise CannotError(f"{self._mpirun.ended()}: {self._mpirun.said() or 'it wrote nothing'}")
            if time.monotonic() > limit:
                has = f"{self._vendor.name}'s mpirun has started {len(found)} of {wanted} ranks on this node"
                raise CannotError(f"{has} within {limit_s:.0f} s")
        size = variables(next(iter(found.values())))
        told = size.get("OMPI_COMM_WORLD_SIZE") or size.get("PMI_SIZE") or str(world)
        if len(found) > wanted or told != str(world):
            raise CannotError(f"{_TOO_MANY}: {len(found)} of {told}, and {wanted} of {world} were asked for")
        self._ranks = dict(sorted(found.items()))
        own = [number - self._first for number in self._ranks]
        return [Ranks(number, local, number, world, world) for local, number in enumerate(own)]

    def complete(self, request: WorkerRequest) -> List[int]:
        """Add to a worker's request what the MPI has given its stand-in; the descriptors to be sent with it."""
        caller = self._ranks[request["rank"]]
        given = variables(caller)
        request["env"].update(vendors.of_rank(self._vendor, given, dict(os.environ)))
        if self._node.job.shares_host:  # Open MPI names segments of shared memory by host
            own = {f"OMPI_MCA_btl_{name}_backing_directory": self._node.scratch for name in ("sm", "vader")}
            own["OMPI_MCA_coll_han_priority"] = "0"  # Open MPI 5's barrier by hosts never ends if two are one
            own.update(_LOOPBACK if self._node.job.on_loopback else {})
            request["env"].update({name: value for name, value in own.items() if name not in os.environ})
        in_step = "SLURM_PROCID" in given  # bound to CPUs of a step that shares them with the workers
        cpus = os.sched_getaffinity(0 if in_step else caller.pid)
        if cpus != os.sched_getaffinity(0) and "cpus" not in request:
            request["cpus"] = ",".join(map(str, sorted(cpus)))
        fds, caller.fds = caller.fds, []
        if fds:
            request["passes"] = ["PMI_FD"]
        return fds

    # -- while the workers run ----------------------------------------------------------------------------------------

    def exited(self, about: ExitedWorker) -> None:
        """Have a worker's stand-in end as it did; but a failure ends the round, before MPI hears of it."""
        if about["code"] == 0 and about["rank"] in self._ranks:
            caller = self._ranks.pop(about["rank"])
            caller.answer(0)
            caller.close()
        self._left.pop(about["rank"], None)

    def attend(self) -> List[GroupToServer]:
        """Call this in every turn; what to signal, as messages to the fork server."""
        self._hub.look(0.0)
        self._hub.watch(self._ranks)
        if self._hub.stand_ins(self._round):
            self._wrong = f"{_TOO_MANY}: did it read the hosts?", Failure.NODE
        self._attend_shells(starting=False)
        if self._mpirun is not None:
            self._mpirun.look()
        now = time.monotonic()
        signals: List[GroupToServer] = []
        for rank, caller in self._ranks.items():
            if caller.is_orphaned(now) and not self._mpirun_has_ended():
                self._wrong = f"the daemon of mpirun has died: rank {rank} has lost it", Failure.KILLED
            taken, caller.signals = caller.signals, []
            signals.extend({"signal": number, "rank": rank, "mark": True} for number in taken)
            if caller.gone and now > self._left.setdefault(rank, now) + _KILL_S and rank not in self.ended:
                signals.append({"signal": signal.SIGKILL, "rank": rank, "mark": True})
        self.ended.update(message["rank"] for message in signals if message["signal"] in _ENDING)
        return signals

    def _mpirun_has_ended(self) -> bool:
        """Whether mpirun itself was that daemon: its ranks are orphans a moment before its end can be seen."""
        limit = time.monotonic() + _SEEN_S
        while self._mpirun is not None and self._mpirun.look() is None and time.monotonic() < limit:
            time.sleep(_SEEN_S / 10)
        return self._mpirun is not None and self._mpirun.code is not None

    def _attend_shells(self, *, starting: bool) -> None:
        assert self._shells is not None
        for caller in self._hub.take(b"shell"):
            self._shells.ask(caller)
        self._shells.attend(starting=starting)

    def failure(self) -> Optional[Cause]:
        """Why the MPI has ended, if it has and no worker has failed."""
        mpirun = self._mpirun
        host, node = self._node.host, self._node.node
        if self._shells is not None and self._shells.killed:
            text, kind = cause.killed("the daemon of mpirun", cause.signal_name(self._shells.killed), facts.oom_kills())
            return cause.of_node(host=host, node=node, message=text, kind=kind, time=time.time())
        if self._wrong:
            text, kind = self._wrong
            return cause.of_node(host=host, node=node, message=text, kind=kind, time=time.time())
        lost = [rank for rank, began in self._left.items() if time.monotonic() > began + _LOST_S]
        if lost:
            text = f"the MPI has ended the process of rank {lost[0]}, and did not report why"
            return cause.of_node(host=host, node=node, message=text, kind=Failure.KILLED, time=time.time())
        if mpirun is None or mpirun.code in (None, 0) or mpirun.age_s() < (_LATE_S if mpirun.code > 0 else 0):
            return None
        number = vendors.signal_in(self._vendor, mpirun.name, mpirun.code)
        if number:
            text, kind = cause.killed(mpirun.name, cause.signal_name(number), facts.oom_kills())
            return cause.of_node(host=host, node=node, message=text, kind=kind, time=mpirun.ended_at)
        said, aborted = mpirun.said(), re.search(_ABORTED, mpirun.text())
        kind = Failure.USER_CODE if aborted or not said else Failure.NODE
        # hydra's mpirun reports only errors of its own.
        by_rank = "a rank has called MPI_Abort, as its last lines report"
        message = f"{mpirun.ended()}: {said or by_rank}"
        found = cause.of_node(host=host, node=node, message=message, kind=kind, time=time.time())
        return {**found, "rank": self._first + int(aborted[1] or aborted[2])} if aborted else found

    def over(self) -> bool:
        """Whether mpirun has ended too, after all workers of this node have; it has a moment for that."""
        self._done_at = self._done_at or time.monotonic()
        return self._mpirun is None or self._mpirun.code == 0 or time.monotonic() > self._done_at + 2 * _LATE_S

    def end(self) -> None:
        """End mpirun, and let go of the stand-ins: the round is over."""
        if self._mpirun is not None:
            self._mpirun.end()
        for caller in [*self._ranks.values(), *self._hub.take(b"rank"), *self._hub.take(b"shell")]:
            caller.close()
        if self._shells is not None:
            self._shells.close()
        self._ranks = {}


def hub_name(node: Node, where: str = "") -> str:
    """The name of a node's hub, which only those can know that have the run's key.

    `where`: what is to stand for the node: Slurm's name, or its rank if it has none, or shares it with others.
    """
    job = node.job
    where = where or (not job.shares_host and os.environ.get("SLURMD_NODENAME")) or str(node.rank)
    which = f"{job.key} {job.run} {job.session} {job.attempt} {job.role if job.roles else ''}"
    secret = hashlib.sha256(which.encode()).hexdigest()[:32]
    return f"distlaunch-mpi-{secret}-{where}"


def variables(caller: Caller) -> Dict[str, str]:
    """The variables of a rank's stand-in."""
    pairs = (os.fsdecode(word).partition("=") for word in caller.words[1:])
    return {name: value for name, _, value in pairs}
