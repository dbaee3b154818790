"""The user's script, or one that comes with distlaunch and is sent with the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import SpecError
from launcher.system import input_file, install, names
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from launcher.spec import Kind


@dataclass(frozen=True, slots=True)
class Script:
    """A script that exists."""

    path: str
    """As given for the user's script; absolute for a bundled one."""

    bundled: bool


def bundled_scripts() -> list[str]:
    """Names of the scripts that come with distlaunch."""
    return sorted(path.name for path in install.data("train").glob("*.py") if not path.name.startswith("_"))


def is_bundled(path: str | Path) -> bool:
    """Whether the script comes with distlaunch."""
    return Path(path).parent == install.data("train")


def contents() -> dict[str, bytes]:
    """The scripts that come with distlaunch, as a run's directory has them."""
    directory = install.data("train")
    paths = (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"payload/{path.relative_to(directory)}": path.read_bytes() for path in paths}


def find_script(script: str, kind: Kind, cwd: str) -> Script:
    """The script, checked; or the bundled one of that name if there is no such file in `cwd`.

    Raises `SpecError` if it is missing, a directory, or not readable. Only the interpreter on the node decides whether
    it is valid Python. Programs are looked up there, too.
    """
    if kind == "program" and os.path.dirname(script) and os.path.exists(path := os.path.join(cwd, script)):
        _check_program(script, path)
    if kind != "script":
        return Script(script, bundled=False)
    path = os.path.join(cwd, script)
    if not os.path.lexists(path) and os.path.basename(script) == script and script in bundled_scripts():
        return Script(str(install.data("train") / script), bundled=True)
    _check_script(script, path)
    return Script(script, bundled=False)


def _check_program(script: str, path: str) -> None:
    try:
        input_file.check(path)
    except OSError as error:
        raise SpecError(f"program {script!r} cannot be run: {error.strerror}") from error
    if not os.access(path, os.X_OK):
        raise SpecError(f"program {script!r} is not executable", hint="chmod +x it")


def _check_script(script: str, path: str) -> None:
    if os.path.isdir(path):
        inside = ", ".join(sorted(name for name in os.listdir(path) if name.endswith(".py"))[:5])
        raise SpecError(f"script {script!r} is a directory", hint=f"scripts in it: {inside}" if inside else None)
    try:
        source = input_file.read(path)
    except FileNotFoundError:
        directory = os.path.dirname(path)
        beside = (
            [] if not os.path.isdir(directory) else [each for each in os.listdir(directory) if each.endswith(".py")]
        )
        close = names.nearest(os.path.basename(path), [*beside, *bundled_scripts()])
        close = os.path.join(os.path.dirname(script), close) if close in beside else close
        meant = f"did you mean {close}? " if close else ""
        hint = f"{meant}scripts that come with distlaunch: {', '.join(bundled_scripts())}"
        raise SpecError(f"script {script!r} does not exist in {directory or '.'}", hint=hint) from None
    except OSError as error:
        way_out = "write its output to a file first" if "FIFO" in str(error.strerror) else None
        raise SpecError(f"script {script!r} cannot be read: {error.strerror}", hint=way_out) from error
    if b"\0" in source:
        raise SpecError(
            f"script {script!r} is not Python: it contains zero bytes", hint="programs of other kinds: --no-python"
        )
