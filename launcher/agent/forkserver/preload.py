"""What is done once for all workers of a node: compiling the script, and importing what workers import."""

from __future__ import annotations

import importlib
import os
import sys
import time
from importlib.machinery import PathFinder
from typing import Dict, List, Set

from ..contracts import load
from ..system import cgroup, garbage
from . import imported, traces, worker
from .agent import Agent
from .guess import NO, SURELY
from .setup import Setup

_IMPORT_TIME = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Set while torch is imported: otherwise numpy's OpenBLAS starts threads, and counting GPUs initialises CUDA."""

_ROOM_BYTES = 1 << 30
"""Torch takes a third of this: with a lower memory limit, torch is imported only if it is certain to be needed."""


class Preload:
    """The imports of the fork server for its workers."""

    def __init__(self, setup: Setup, agent: Agent) -> None:
        self._setup, self._agent = setup, agent
        self.more = False
        """Whether the job or the script names more modules to import."""

        self.imported: Dict[str, Set[str]] = {}
        """The packages that were asked for, each with all that its import has loaded."""

        self.modules: List[str] = []
        """Those that were asked for, or come with one of them."""

        self.before = traces.before()
        """The interpreter's state before the imports."""

    def compile(self) -> None:
        """Compile the script, unless another interpreter runs the workers."""
        if self._setup.other_python():
            return
        try:
            self._setup.program.compile()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is reported and ends the run
            import traceback

            error.__traceback__ = None
            text = "".join(traceback.format_exception(type(error), error, None))
            reads = (
                f", says Python {sys.version.split()[0]}, {sys.executable}" if isinstance(error, SyntaxError) else ""
            )
            self._agent.fail("script", text, message=f"{type(error).__name__}: {error}{reads}")

    def run(self, *, forks: bool) -> None:
        """Import the modules, and report which torch was found. `forks`: whether workers are forked."""
        setup, with_torch = self._setup, list(self._setup.message["preload"])
        if (setup.message["workers"] > 1 or setup.job["max_nodes"] > 1) and setup.program.uses_ddp():
            with_torch.append("torch._dynamo")
        extra = [*(setup.job["preload"] or []), *setup.program.preloads()]
        self.more = bool(extra)
        wants_torch = forks and (imported.used() is not None or self._imports_torch_ahead())
        worker.set_environment({**setup.env, **_IMPORT_TIME})
        began = time.monotonic()
        if not getattr(sys.flags, "safe_path", False) and setup.program.kind != "program":
            # Not earlier: files next to the script may have the names of modules imported here.
            sys.path.insert(0, setup.program.directory)
        if forks:
            from ..stacks import dump  # noqa: F401 - for the workers, which are forked with both
            from . import hidden  # noqa: F401
        self._import_all([*(with_torch if wants_torch else []), *(extra if forks else [])], with_torch)
        worker.set_environment(setup.env)
        self._agent.event("host_facts", **_facts(began))

    def _import_all(self, modules: List[str], with_torch: List[str]) -> None:
        """Import the modules, unless the process from which this one was forked already has (`standing.py`)."""
        self.modules = modules
        already = imported.used()
        if already is not None:
            self.imported, self.before = already.by_package, already.before
            return
        self.before = traces.before()
        garbage.keep()
        self._import(modules, with_torch)

    def _import(self, modules: List[str], with_torch: List[str]) -> None:
        """Import the modules, and those in `with_torch` once one of them has imported torch."""
        for name in modules:
            from . import hidden

            before = list(sys.modules)
            try:
                importlib.import_module(name)
                self.imported.setdefault(name.partition(".")[0], set()).update(hidden.packages(before))
                if "torch" in sys.modules:
                    modules += [more for more in with_torch if more not in modules]
            except BaseException:  # noqa: BLE001 - as above
                import traceback

                self._agent.fail("import", traceback.format_exc(), module=name)

    def _imports_torch_ahead(self) -> bool:
        """Whether to import torch in advance.

        If it is not certain that workers will, torch must be installed, and the memory limit must leave room for it.
        Of a framework other than torch, a script may have a part for torch that never runs: it must be installed, too.
        """
        program, ours = self._setup.program, load(self._setup.job["contract"]).torch
        wants = program.wants_torch()
        if wants == NO or (ours and wants == SURELY):
            return wants == SURELY
        limit = cgroup.memory_limit()
        has_room = wants == SURELY or (ours and (limit is None or limit >= _ROOM_BYTES))
        return has_room and PathFinder.find_spec("torch", [program.directory, *sys.path]) is not None


def _facts(began: float) -> Dict[str, object]:
    """Facts about the torch that was imported since `began`, if any was."""
    torch = sys.modules.get("torch")
    cached = getattr(getattr(torch, "__spec__", None), "cached", None)
    return {
        "torch_version": str(torch.__version__) if torch else None,
        "import_s": round(time.monotonic() - began, 3),
        "bytecode": bool(cached) and os.path.exists(str(cached)) if torch else None,
    }
