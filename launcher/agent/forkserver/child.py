"""What a child of the fork server becomes: a worker."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Callable, Dict, Optional

from .. import outer_run
from ..contracts import load
from ..system import processes
from . import ending, reexec, worker
from .preload import Preload
from .program import Program
from .setup import Setup

if TYPE_CHECKING:
    from ..messages import WorkerRequest
    from .debugger import Debugger

Task = Callable[[], None]
"""What a forked child does once it has left the server's frames."""


def task(setup: Setup, preload: Preload, request: WorkerRequest, *, executes: bool) -> Task:
    """The task of a worker that already has its own signals and descriptors. `executes`: in its own interpreter."""
    env = outer_run.with_record(setup.env, request["env"])
    program, python = setup.program, setup.env.get("PYTHON_EXEC", sys.executable)
    is_torchruns = setup.job["macros"]  # whose option --start-method has no effect on scripts
    if is_torchruns:
        program.substitute(local_rank=str(request["local_rank"]))
    argv, debug = program.argv(python), None
    if request["rank"] == setup.job["debug"] and program.kind != "program":
        from . import debugger  # few runs are debugged

        argv = debugger.argv(python, setup.archive, setup.scratch, program)
        debug = debugger.Debugger(setup.scratch)
    if executes and load(setup.job["contract"]).mpi and debug is None and importlib.util.find_spec("mpi4py"):
        argv = program.argv(python, through="mpi4py")  # it aborts the world after an exception; see `worker.run`
    if executes:
        return lambda: reexec.execute(argv, env)
    if request.get("terminal", {}).get("stdin") in ("tty", "pipe"):
        worker.renew("stdin")
    imported, before, scratch, archive, collect = (
        preload.imported,
        preload.before,
        setup.scratch,
        setup.archive,
        preload.more,
    )

    from ..stacks import dump
    from . import hidden  # the fork server has imported both

    def hide() -> None:
        dump.register(scratch)
        hidden.Hidden(imported, before, reexec.Again(argv, env, scratch, may_spawn=not is_torchruns))

    errors = request["error_file"]
    return lambda: _become(program, archive, env, hide, errors, debug, collect=collect)


def _become(
    program: Program,
    archive: str,
    env: Dict[str, str],
    hide: Callable[[], object],
    errors: str,
    debug: Optional[Debugger],
    *,
    collect: bool,
) -> None:
    python = env.get("PYTHON_EXEC", sys.executable)
    worker.set_environment(env)
    worker.reseed()
    worker.set_blas_threads(env)
    ending.prepare(env, collect=collect)
    processes.set_title(program.argv(python))
    hide()
    worker.forget(archive)
    worker.run(program, python, errors, *([debug] if debug else []))
