"""Starts the agents of a run on this machine, one per simulated node, and records each before it begins."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.backends.local import ahead, processes
from launcher.backends.local.plan import argv_of
from launcher.errors import StorageError
from launcher.system import detached

if TYPE_CHECKING:
    from launcher.backends._base import Record
    from launcher.backends.local.handle import AgentProcess, LocalHandle
    from launcher.system import proc

_TOLD = 8
"""Maximum number of agents that have not read their start signal yet: each holds one of our file descriptors."""

_alone = threading.Lock()
"""What `ahead` has started is for one run; a program may submit from several threads."""


def handle_of(run_dir: Path, python: str, cwd: str, nodes: int) -> LocalHandle:
    """A run none of whose agents has been started."""
    agents: list[AgentProcess] = [{"pid": 0, "start_ticks": 0} for _ in range(nodes)]
    return {"run_dir": str(run_dir), "python": python, "output_dir": cwd, "agents": agents}


def start(handle: LocalHandle, record: Record, *, stdin: bool = False, warm_s: float = 0) -> None:
    """Start the agents, with `warm_s` from what stands. With `stdin` they inherit ours, for their workers."""
    with _alone:
        try:
            for agent in processes.of(handle):
                agent.forget()
                agent.directory.mkdir(parents=True, exist_ok=True)
            if len(handle["agents"]) == 1 or stdin or warm_s or not _fork(handle, record):
                _start_each(handle, record, stdin=stdin, warm_s=warm_s)
        except OSError as error:
            raise StorageError(f"{handle['run_dir']}: {error.strerror}") from error
        finally:
            ahead.drop()


def _fork(handle: LocalHandle, record: Record) -> bool:
    """Start the agents as forks of one process; False if that cannot be."""
    run_dir, nodes = Path(handle["run_dir"]), len(handle["agents"])
    argvs = [argv_of(run_dir, handle["python"], rank) for rank in range(nodes)]
    if not ahead.can_fork(argvs[-1], handle["output_dir"]):
        return False
    for first in range(0, nodes, ahead.MANY):
        ranks = range(first, min(first + ahead.MANY, nodes))

        def note(found: list[proc.Identity], ranks: range = ranks) -> None:
            for rank, identity in zip(ranks, found, strict=True):
                _note(handle, rank, identity)
            record(handle)

        wanted = [(argvs[rank], run_dir / "nodes" / str(rank)) for rank in ranks]
        if not ahead.fork(wanted, note, first=not first):
            return False
    return True


def _start_each(handle: LocalHandle, record: Record, *, stdin: bool, warm_s: float) -> None:
    run_dir = Path(handle["run_dir"])
    told: list[detached.Told] = []
    try:
        for rank in range(len(handle["agents"])):
            if len(told) == _TOLD:
                told[0].wait()
                told.pop(0).close()
            directory = run_dir / "nodes" / str(rank)

            def note(identity: proc.Identity, rank: int = rank) -> None:
                _note(handle, rank, identity)
                record(handle)

            place = detached.Place(handle["output_dir"], directory / "stream", directory / "stderr", note)
            _start_agent(argv_of(run_dir, handle["python"], rank), place, told, stdin=stdin, warm_s=warm_s)
        for word in told:
            word.wait()
    finally:
        for word in told:
            word.close()


def _note(handle: LocalHandle, rank: int, identity: proc.Identity) -> None:
    handle["agents"][rank] = {"pid": identity.pid, "start_ticks": identity.start_ticks}


def _start_agent(
    argv: tuple[str, ...], place: detached.Place, told: list[detached.Told], *, stdin: bool, warm_s: float
) -> None:
    """Start one agent, from what already runs if possible; see `detached.start_detached` for `told`."""
    if warm_s:
        from launcher.backends.local import warm  # few runs leave a server, or find one

        reason = warm.start(argv, place, stay_s=warm_s)
        if reason is None:
            return
        argv += warm.words(reason)
    elif not stdin and ahead.take(argv, place, told):
        return
    fd = 0 if stdin else None
    detached.start_detached((*argv, "--when-told"), env=os.environ, told=told, stdin=fd, **place._asdict())
