"""Runs one node's agent to its end."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, List, NoReturn, Optional

from .. import roles

if TYPE_CHECKING:
    from ..environment.stage import Refused
    from ..forkserver.imported import Imported
    from ..forkserver.prefork import Forked
    from ..job import Job


def run(
    job: Job,
    rank: int,
    stream: int,
    forked: Optional[Forked] = None,
    *,
    above: Optional[int] = None,
    refused: Optional[Refused] = None,
) -> NoReturn:
    """Run the agent of this node, with its stream on this descriptor, to its end.

    `forked`: its fork server, if that is already running. `above`: the pid of the only process that it works for.
    `refused`: why it cannot begin.
    """
    job = roles.job_of(job, rank)
    if job.warm_s:
        may_stay()
    if above:
        from . import below

        below.run(job, rank, stream, above)
    if forked is None and not (job.passes_stdin or above or refused) and os.access(job.cwd, os.X_OK):
        forked = _fork(job, rank)
    from .agent import Node  # while the fork server, which needs none of it, imports its own modules

    os.dup2(2, 1)  # a stray print must not end up in the stream
    sys.exit(Node(job, rank, stream, forked).run(refused))


def may_stay() -> None:
    """Let this process's fork server, if it stays, fork agents, which it may not import."""
    from ..forkserver import forks

    def differs(words: List[str], imports: Imported) -> str:
        from . import warm  # only in such an agent

        return warm.differs(words, imports)

    def become_agent(words: List[str]) -> None:
        from . import warm

        warm.to_its_end(words, run)

    def prepare() -> None:
        from ..group import process, worker_group  # noqa: F401
        from . import agent, warm  # noqa: F401

    forks.prepare, forks.differs, forks.become_agent = prepare, differs, become_agent


def _fork(job: Job, rank: int) -> Optional[Forked]:
    """The fork server, if it can be forked from this process."""
    from ..forkserver import imported, prefork

    if job.kind == "program":
        return prefork.fork_for_program(job.cwd)
    if job.warm_s and imported.used() is not None:  # it was compared with this job (`warm.differs`)
        return prefork.fork_for_program(job.cwd, scripts=True)
    from .function_call import as_script

    here = dict(os.environ)
    env = job.environment(here, rank)
    changed = [name for name in {*env, *here} if env.get(name) != here.get(name)]
    return prefork.fork(changed, as_script(job, rank).command, job.cwd)
