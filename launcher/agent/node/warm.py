"""The agent's part in fork servers that stay after a run: what one must have imported, and who runs an agent in it."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Callable, List, NoReturn, Tuple

from .. import arguments, roles
from ..forkserver import forks, kept
from ..forkserver.guess import NO
from ..forkserver.program import Program
from ..job import Job
from ..system import processes
from . import environment
from .function_call import as_script

if TYPE_CHECKING:
    from ..forkserver.imported import Imported


def differs(words: List[str], imported: Imported) -> str:
    """Why the job in these words of an agent must not use a server with these imports; empty if it can."""
    job, rank = _job(words)
    if job.passes_stdin or job.start != "fork" or job.kind == "program":
        return "its workers read the launcher's stdin" if job.passes_stdin else "its workers are not forked"
    env, count, _, _ = environment.of(job, rank)
    reason = _other_imports(job, count, imported.modules) if job.function is None else ""
    changed = kept.changed(imported.env, env, imported.modules)
    if changed and not reason:
        reason = f"{', '.join(changed)} {'was' if len(changed) == 1 else 'were'} different when it imported torch"
    if not reason and kept.base(env, job.cwd) != imported.base:
        reason = f"PYTHONPATH meant what is in {imported.base} when it imported torch"
    command = [sys.executable, "-u", "-m", *as_script(job, rank).command]
    if not reason and sum(len(os.fsencode(word)) + 1 for word in command) > processes.title_bytes():
        reason = "the command line of the workers is longer than that of the one that stands"
    return reason


def _other_imports(job: Job, workers: int, modules: List[str]) -> str:
    program = Program(job.command, job.kind, job.cwd, [])
    try:
        wanted = [*environment.PRELOAD, *(job.preload or []), *program.preloads()]
        wanted += ["torch._dynamo"] if (workers > 1 or job.max_nodes > 1) and program.uses_ddp() else []
    except OSError as error:
        return f"{program.path}: {error.strerror}"
    if program.wants_torch() == NO:
        return "the script does not import torch"
    other = sorted(set(wanted) ^ set(modules))
    if other:
        return f"the one that stands has imported {'more' if other[0] in modules else 'less'}: {', '.join(other)}"
    return ""


def to_its_end(words: List[str], run: Callable[[Job, int, int], NoReturn]) -> NoReturn:
    """Run the agent with these words to its end, without taking torch apart."""
    code = 1
    try:
        run(*_job(words), os.dup(1))
    except forks.Child:
        raise
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - this process must not go on as what it was forked from
        import traceback

        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode(errors="backslashreplace"))
    os._exit(code)


def _job(words: List[str]) -> Tuple[Job, int]:
    args = arguments.read(words)
    rank = args.node_rank or 0
    return roles.job_of(Job.read(args.spec), rank), rank
