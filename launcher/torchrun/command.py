"""`distlaunch torchrun`: one node of a run, from its command line to its exit code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.system import streams
from launcher.torchrun import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.agent.job import Job
    from launcher.torchrun.request import Request

_FAILED = 1
"""torchrun's exit code for all failures, and for signals."""


def main(words: Sequence[str]) -> int:
    """Run this node's part and return the exit code. Raises `LaunchError`."""
    streams.open_standard_streams()
    env = dict(os.environ)
    try:
        args = options.parse(words, env)
    except options.CompletionAskedError as asked_for:
        return _completion(str(asked_for), env)

    from launcher.torchrun import rendezvous, request, workers

    why = request.theirs(args, env)
    python = workers.own_python(env)
    if why:
        say(f"{why}: torchrun itself is started")
        os.execv(python, [python, "-m", "torch.distributed.run", *words])
    asked = request.of(args, env, python=python, say=say)
    os.environ.pop(rendezvous.KEY, None)  # not for the workers
    return _run(asked, python)


def say(text: str) -> None:
    """Print a note on stderr."""
    from launcher import output

    output.note(f"distlaunch: {text}")


def _completion(shell: str, env: dict[str, str]) -> int:
    try:
        import shtab  # type: ignore[import-not-found]
    except ImportError:
        say("--print-completion needs the package shtab: pip install shtab")
        return _FAILED
    from launcher import output

    parser = options.parser(env)
    parser.prog = "torchrun"  # shtab supports no commands of two words; usable for an alias
    output.text(shtab.complete(parser, shell=shell) + "\n")
    return 0


def _run(asked: Request, python: str) -> int:
    """Find this node's place, start its agent, show its output and report its result."""
    import socket

    from launcher import output
    from launcher.agent.node import below
    from launcher.errors import StorageError
    from launcher.torchrun.node import Agent
    from launcher.torchrun.printing import Printing
    from launcher.torchrun.show import Show

    job, rank = _placed(asked)
    above = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - a private directory is created there
    try:
        directory = below.create(above)
    except OSError as error:
        raise StorageError(f"{above}: {error.strerror}", hint="set TMPDIR to a writable directory") from error
    try:
        job = job._replace(directory=directory)
        show = Show(asked.wanted, job, rank, socket.gethostname(), say)
        agent, printing = Agent(job, rank, python), Printing(say)
        with output.in_background(lambda: agent.hurries, printing.write):
            show.follow(agent.stream)
            agent.wait()
            succeeded = show.report()
        return 0 if printing.report() and succeeded else _FAILED
    finally:
        below.remove(directory)


def _placed(asked: Request) -> tuple[Job, int]:
    """The job for this node, and its rank."""
    job, rank = asked.job, asked.node_rank
    if job.max_nodes == 1:
        return job, 0
    from launcher.torchrun import meeting

    if asked.backend == "c10d":
        place = meeting.c10d(asked, say)
        rank, job = place.node_rank, job._replace(rendezvous=place.meets)
        if rank > 0 and not job.elastic:
            job = job._replace(master_addr=None)  # node 0 publishes its own
        return job, rank
    if not 0 <= rank < job.max_nodes:
        raise options.TorchrunUsageError(
            f"this is node {rank}, and the run has nodes 0 to {job.max_nodes - 1}", hint="see --nnodes and --node-rank"
        )
    return (job._replace(rendezvous=meeting.static(asked, say)) if rank == 0 else job), rank
