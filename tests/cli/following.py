"""Real runs on this host that a test follows: their processes, what they print, how they ended."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

import psutil
import pytest

from launcher.system.proc import Identity

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.command import Cli

WAITS = "import signal\nprint('ready', flush=True)\nwhile True:\n    signal.pause()\n"


@pytest.fixture(autouse=True)
def nothing_is_left(distlaunch: Cli) -> Iterator[None]:
    """No process of a test's runs is left at its end, recorded or not."""
    yield
    _, left = psutil.wait_procs(processes(distlaunch), timeout=60)
    about = [process.as_dict(["pid", "cmdline", "cwd", "create_time"]) for process in left]
    for process in left:
        process.kill()
    assert not about


def processes(distlaunch: Cli) -> list[psutil.Process]:
    """Those of a test: they have its directory in their command line, or as their working directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        where = " ".join([*(process.info["cmdline"] or ()), process.info["cwd"] or ""])
        if str(distlaunch.directory) in where:
            found.append(process)
    return found


def agents(distlaunch: Cli) -> list[Identity]:
    """The agents of all runs so far."""
    handles = [json.loads(path.read_text())["handle"] for path in distlaunch.runs.glob("*/run.json")]
    return [Identity(agent["pid"], agent["start_ticks"]) for handle in handles if handle for agent in handle["agents"]]


def recorded(distlaunch: Cli) -> dict[str, Any]:
    """The only run's result."""
    (path,) = distlaunch.runs.glob("*/result.json")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """What the process writes to stdout, up to a line with that text."""
    assert process.stdout
    seen, found = _read_until(process.stdout, text)
    assert found, f"{text!r} was not printed: {seen!r}, {process.stderr.read() if process.stderr else b''!r}"
    return seen


def until_stderr(process: subprocess.Popen[bytes], text: bytes) -> None:
    """Read its stderr up to a line with that text."""
    assert process.stderr
    seen, found = _read_until(process.stderr, text)
    assert found, f"{text!r} was not printed on stderr: {seen!r}"


def _read_until(stream: IO[bytes], text: bytes) -> tuple[bytes, bool]:
    """What a stream has up to a line with that text, and whether there was one."""
    seen = b""
    for line in stream:
        seen += line
        if text in line:
            return seen, True
    return seen, False


def end(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit code and stderr."""
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr.decode()
