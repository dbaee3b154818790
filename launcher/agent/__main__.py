"""Command line of the agent: `python agent.pyz --spec spec.json --node-rank K` writes its stream to stdout."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, ContextManager, List, Tuple

from . import arguments
from .arguments import refuse
from .system import garbage

if TYPE_CHECKING:
    from .arguments import Arguments
    from .job import Job

_TIMES = ("DISTLAUNCH_TIMES_DISRUPTED", "DISTLAUNCH_TIMES_LOST")
"""How many times the scheduler has restarted this node: after a disruption, and after the loss of another node."""


def main() -> None:
    """Run as the agent, or as the helper that the arguments name."""
    if _is_a_part(sys.argv[1:]):
        return
    garbage.keep()
    args = arguments.read(sys.argv[1:])
    _wait_for_word(args.when_told)
    if args.stdin is not None:
        os.dup2(args.stdin, 0)
        os.close(args.stdin)

    from .job import Job

    try:
        job = Job.read(args.spec)
    except (OSError, ValueError, TypeError) as error:
        refuse(f"cannot read {args.spec}: {error}")
    job, rank, stream = _on_slurm(job) if args.slurm else _here(job, args)
    if not 0 <= rank < job.max_nodes and not (args.below and job.elastic):
        refuse(f"--node-rank {rank}: the run has nodes 0 to {job.max_nodes - 1}")
    if args.room is not None or args.cold is not None:
        job = _make_room(job._replace(cold=args.cold))
    if args.unpack:
        job = _unpack(args.unpack, job, rank)
    refused = None
    if job.env_ship:
        from .environment import stage  # few runs bring one

        if args.in_environment:
            job = stage.taken_over(job, args.in_environment)
        else:
            with _using_project(job, rank):
                refused = stage.become(job, rank, stream, args.spec)
    from .forkserver.forks import Child
    from .node.run import run

    try:
        run(job, rank, stream, above=args.below, refused=refused)
    except Child as child:
        task = child.task
    task()


def _using_project(job: Job, rank: int) -> ContextManager[None]:
    """Note that this node uses the project's directory while its environment is brought, which may take minutes."""
    import contextlib

    if not (job.project and job.output_dir):
        return contextlib.nullcontext()
    from .outputs import project

    return project.used(os.path.dirname(job.output_dir), job.run, rank, job.heartbeat_s)


def _make_room(job: Job) -> Job:
    """Hide the words that are not for people from the command line, whose place stays."""
    from .system import processes

    for name in ("--room", "--cold"):
        if name in sys.argv:
            place = sys.argv.index(name)
            del sys.argv[place : place + 2]
    processes.set_title([sys.executable, "-u", *sys.argv])
    return job


def _is_a_part(argv: List[str]) -> bool:
    """Run the helper that the arguments name; False if this process is the agent itself."""
    kind, rest = (argv or [""])[0], argv[1:]
    if kind == "--fork-server":
        from .forkserver import server
        from .node.run import may_stay

        may_stay()
        server.main(rest)
    elif kind == "--workers-store":
        from .forkserver import workers_store

        workers_store.serve(int(rest[0]))
    elif kind == "--debug":
        from .forkserver import debugger

        debugger.main(rest[0], rest[1], rest[2:])
    elif kind == "--attach":
        from .terminal import attach

        attach.main(rest[0], int(rest[1]))
    elif kind == "--shell":
        from .terminal import shell

        shell.main(rest[0])
    elif kind == "host":
        from .ssh import calls

        calls.main(rest)
    else:
        if kind == "--ahead":
            from . import ahead

            ahead.become()
        return False
    return True


def _wait_for_word(wanted: bool) -> None:
    """Wait until the launcher has recorded this process; exit if it dies first, as the agent could not be found."""
    if not wanted:
        return
    if not os.read(0, 1):
        sys.exit(os.EX_TEMPFAIL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _on_slurm(job: Job) -> Tuple[Job, int, int]:
    """The job on the nodes of the step, this node's rank, and the descriptor of its stream file."""
    from .schedulers import slurm

    try:
        top = job.directory
        job, rank = slurm.here(job, os.environ)
        if os.path.exists(os.path.join(top, "files.json")):
            from .outputs import packs

            job = packs.laid(job, top, rank)
        directory = os.path.join(job.directory, "nodes", str(rank))
        os.makedirs(directory, exist_ok=True)
        stream = os.open(os.path.join(directory, "stream"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(os.open(os.path.join(directory, "stderr"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    except (slurm.SlurmError, OSError, EOFError) as error:
        refuse(str(error))
    return job, rank, stream


def _here(job: Job, args: Arguments) -> Tuple[Job, int, int]:
    """Like `_on_slurm`, with the rank from the command line or a variable; the stream is the agent's stdout."""
    from .failures import Failure

    disrupted, lost = (_number(name, os.environ.pop(name, "") or "0") for name in _TIMES)
    if disrupted + lost:
        why = Failure.PREEMPTED if disrupted else Failure.NODE
        job = job._replace(attempt=job.attempt + disrupted + lost, why_again=why)
    rank, stream = args.node_rank or 0, os.dup(1)
    if args.node_rank_from:
        name, _, more = args.node_rank_from.partition("+")
        rank = _number(name, os.environ.get(name, "").rpartition("-")[2]) + int(more or 0)
    for name in args.without.split(","):
        os.environ.pop(name, None)
    return job, rank, stream


def _number(variable: str, value: str) -> int:
    if not value.isdigit():
        refuse(f"{variable} must be a number, not {value!r}")
    return int(value)


def _unpack(source: str, job: Job, rank: int) -> Job:
    """Unpack the archives to the run's directory, and the user's files from there to the project's, if it has one."""
    import tarfile

    from .system import unpack

    try:
        unpack.unpack(source, job.directory)
        if job.project and job.output_dir:
            from .ssh import user_files

            made = user_files.in_volume(
                os.path.join(job.directory, "files"), os.path.dirname(job.output_dir), job, rank
            )
            for note in made.notes:
                sys.stderr.write(f"distlaunch agent: {note}\n")
            return job._replace(cwd=made.work, output_dir=made.work)
    except (OSError, EOFError, tarfile.TarError) as error:
        refuse(f"the run's archives cannot be unpacked to {job.directory}: {error}")
    return job
