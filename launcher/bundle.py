"""What is shipped to the nodes with each run: the agent as one file, and the scripts that come with distlaunch."""

from __future__ import annotations

import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import launcher
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


def agent_archive() -> bytes:
    """The agent as a zipapp; the same bytes for the same sources."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _EPOCH), _MAIN)
        for source in sorted((_ROOT / "agent").glob("*.py")):
            about = zipfile.ZipInfo(f"{_AGENT_PACKAGE}/{source.name}", _EPOCH)
            archive.writestr(about, source.read_bytes(), zipfile.ZIP_DEFLATED)  # a ZipInfo says "stored" by itself
    return buffer.getvalue()


def find_script(script: str, kind: Kind, cwd: str) -> Script:
    """The script, checked; or the bundled one of that name where there is no such file in `cwd`.

    Raises `SpecError` when it is missing, a folder, not readable, or no Python that this interpreter can compile.
    """
    if kind == "module":
        return Script(script, bundled=False)
    if kind == "program":
        _check_program(script, cwd)
        return Script(script, bundled=False)
    path = os.path.join(cwd, script)
    if not os.path.lexists(path) and os.path.basename(script) == script and script in bundled_scripts():
        return Script(str(data("train") / script), bundled=True)
    _check_python(script, path)
    return Script(script, bundled=False)


def _check_program(script: str, cwd: str) -> None:
    import shutil

    if shutil.which(script if os.path.dirname(script) == "" else os.path.join(cwd, script)) is None:
        raise SpecError(f"program {script!r} is not on PATH, or not executable", hint="chmod +x it, or give its path")


def _check_python(script: str, path: str) -> None:
    if os.path.isdir(path):
        inside = ", ".join(sorted(name for name in os.listdir(path) if name.endswith(".py"))[:5])
        raise SpecError(f"script {script!r} is a folder", hint=f"scripts in it: {inside}" if inside else None)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except FileNotFoundError:
        known = ", ".join(bundled_scripts())
        raise SpecError(
            f"script {script!r} does not exist in {os.path.dirname(path) or '.'}",
            hint=f"scripts that come with distlaunch: {known}",
        ) from None
    except OSError as error:
        raise SpecError(f"script {script!r} cannot be read: {error.strerror}") from error
    try:
        compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = script if error.lineno is None else f"{script}:{error.lineno}"
        raise SpecError(f"{where}: {error.msg}", hint=(error.text or "").strip() or None) from error
    except ValueError as error:
        raise SpecError(f"script {script!r} is no Python: {error}", hint="programs of other kinds: --no-python") from error
