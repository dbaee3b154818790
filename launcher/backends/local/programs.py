"""The programs that local workers run: the user's own, or an interpreter."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from launcher.agent.forkserver.guess import NO, SURELY
from launcher.backends._interpreter import needed
from launcher.errors import BackendUnavailableError, SpecError
from launcher.system import install, proc

if TYPE_CHECKING:
    from launcher.spec import JobSpec


def find_program(spec: JobSpec, python: str) -> None:
    """Raise `SpecError` if it is a program, and not on this machine; on other hosts the agents report it."""
    if spec.kind != "program":
        return
    name = spec.command[0]
    directories = [
        *([os.path.dirname(python)] if spec.python else []),
        spec.env.get("PATH") or os.environ.get("PATH") or os.defpath,
    ]
    path = os.path.join(spec.cwd, name) if os.path.dirname(name) else name
    if os.path.isfile(path) and os.access(path, os.X_OK) and os.path.dirname(name):
        return
    import shutil

    if shutil.which(path, path=os.pathsep.join(directories)) is None:
        raise SpecError(f"program {name!r} is not on PATH, or not executable", hint="chmod +x it, or give its path")


def find_python(spec: JobSpec) -> str:
    """The interpreter for the workers: the named one, ours if it has the framework, else the one on PATH if that does.

    If no framework is needed, ours is used unchecked; if it may be needed, an interpreter without it is accepted.
    """
    module, wants = needed(spec)
    if not spec.python and wants == NO:
        return sys.executable
    import shutil
    from importlib.util import find_spec

    if spec.python:
        named = shutil.which(spec.python)
        if named is None:
            raise SpecError(f"python {spec.python!r} is not on PATH, or not executable")
        candidates = [os.path.join(spec.cwd, named)]
        if wants != SURELY:
            return candidates[0]
    else:
        if find_spec(module) is not None:
            return sys.executable
        candidates = list(filter(None, [shutil.which("python3") or shutil.which("python")]))
    probe = f"{proc.WITHOUT_HERE}import importlib.util; sys.exit(importlib.util.find_spec({module!r}) is None)"
    for candidate in candidates:
        if proc.run([candidate, "-c", probe], timeout_s=20).returncode == 0:
            return candidate
    if wants != SURELY:
        return sys.executable
    looked = " and ".join(dict.fromkeys([*([] if spec.python else [sys.executable]), *candidates]))
    raise BackendUnavailableError(
        f"no {module} here: looked in {looked}",
        hint=(f"{install.command('train')}, or " if module == "torch" else "")
        + "name an interpreter that has it: --python PATH",
    )
