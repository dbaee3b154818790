"""What is shipped to the nodes with each run: the agent as one file, and the scripts that come with distlaunch."""

from __future__ import annotations

import io
import marshal
import os
import sys
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

import launcher
from launcher import input_file, names
from launcher.errors import SpecError

if TYPE_CHECKING:
    from launcher.spec import Kind

_ROOT = Path(launcher.__file__).parent
_AGENT_PACKAGE = "distlaunch_agent"  # no script's own module has this name
_MAIN = f"from {_AGENT_PACKAGE}.__main__ import main\n\nmain()\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Script:
    """A script that exists."""

    path: str
    """As the user gave it where it is the user's; absolute where it is one of ours."""

    bundled: bool


def data(folder: str) -> Path:
    """`train`, `playbooks` or `slurm_templates`: inside the installed package, or at the top of a checkout."""
    installed = _ROOT / "_data" / folder
    return installed if installed.is_dir() else _ROOT.parent / folder


def bundled_scripts() -> list[str]:
    """Names of the scripts that come with distlaunch."""
    return sorted(path.name for path in data("train").glob("*.py"))


@cache
def agent_archive(*, byte_code: bool = True) -> bytes:
    """The agent as a zipapp; the same bytes for the same sources and Python.

    `byte_code` of this Python saves nodes that have the same one a third of the agent's start; others take the source.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.comment = str(sys.implementation.cache_tag).encode()  # whose byte-code it is: another Python may unpack it
        archive.writestr(zipfile.ZipInfo("__main__.py", _EPOCH), _MAIN)
        for source in sorted((_ROOT / "agent").glob("*.py")):
            name = f"{_AGENT_PACKAGE}/{source.name}"
            _add(archive, name, source.read_bytes())
            if byte_code:
                _add(archive, f"{name}c", _byte_code(source, f"agent.pyz/{name}"))
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)  # a ZipInfo says "stored" by itself


def _byte_code(source: Path, name: str) -> bytes:
    """A .pyc that is not checked against the source (PEP 552), from Python's own cache where that has it.

    Marshal's second version has no references, which depend on what else the process has done.
    """
    loader = SourceFileLoader(source.stem, str(source))
    code = loader.get_code(source.stem)
    assert code is not None
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(_named(code, name), 2)


def _named(code: CodeType, name: str) -> CodeType:
    """The code, and all within it, as of that file."""
    constants = tuple(_named(item, name) if isinstance(item, CodeType) else item for item in code.co_consts)
    return code.replace(co_filename=name, co_consts=constants)


def find_script(script: str, kind: Kind, cwd: str) -> Script:
    """The script, checked; or the bundled one of that name where there is no such file in `cwd`.

    Raises `SpecError` when it is missing, a folder, or not readable. Whether it is Python is for the interpreter that runs it to
    say, on the node; a program, too, is looked for there.
    """
    if kind == "program" and os.path.dirname(script) and os.path.exists(path := os.path.join(cwd, script)):
        _check_program(script, path)
    if kind != "script":
        return Script(script, bundled=False)
    path = os.path.join(cwd, script)
    if not os.path.lexists(path) and os.path.basename(script) == script and script in bundled_scripts():
        return Script(str(data("train") / script), bundled=True)
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
        raise SpecError(f"script {script!r} is a folder", hint=f"scripts in it: {inside}" if inside else None)
    try:
        source = input_file.read(path)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        beside = [] if not os.path.isdir(folder) else [each for each in os.listdir(folder) if each.endswith(".py")]
        close = names.nearest(os.path.basename(path), [*beside, *bundled_scripts()])
        close = os.path.join(os.path.dirname(script), close) if close in beside else close
        meant = f"did you mean {close}? " if close else ""
        hint = f"{meant}scripts that come with distlaunch: {', '.join(bundled_scripts())}"
        raise SpecError(f"script {script!r} does not exist in {folder or '.'}", hint=hint) from None
    except OSError as error:
        way_out = "write what comes out of it to a file first" if "FIFO" in str(error.strerror) else None
        raise SpecError(f"script {script!r} cannot be read: {error.strerror}", hint=way_out) from error
    if b"\0" in source:
        raise SpecError(f"script {script!r} is no Python: it has bytes of zero", hint="programs of other kinds: --no-python")
