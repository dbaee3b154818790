"""What tests of agents that are started ahead have in common."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.system import processes
from tests.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.command import Cli

STARTS = """
import os, sys
with open(os.environ["STARTS"], "a") as file:
    file.write(f"{os.getpid()} {' '.join(sys.orig_argv)!r}\\n")
"""
SHOWS = """
import json, os, sys
modules = sorted(sys.modules)
with open(f"/proc/{os.getppid()}/status") as file:
    agent = next(int(line.split()[1]) for line in file if line.startswith("PPid"))  # beyond the worker group's process
about = {"agent": agent, "group": os.getpgid(agent), "session": os.getsid(agent)}
with open(f"/proc/{agent}/cmdline", "rb") as file:
    about["argv"] = file.read().rstrip(b"\\0").decode().split("\\0")
with open(f"/proc/{agent}/environ", "rb") as file:
    about["env"] = file.read().decode()
about["fds"] = {
    fd: os.readlink(f"/proc/{agent}/fd/{fd}").partition(":")[0] for fd in os.listdir(f"/proc/{agent}/fd")
}
with open(f"/proc/{agent}/status") as file:
    about["state"] = [line for line in file if line.startswith(("Sig", "Umask", "NoNewPrivs", "Cpus_allowed"))]
    about["state"] = [line for line in about["state"] if not line.startswith("SigQ")]
with open(f"/proc/{agent}/limits") as file:
    about["limits"] = file.read()
about["modules"] = modules
about["cwd"] = os.readlink(f"/proc/{agent}/cwd")
print(json.dumps(about))
"""
CAPTURED: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60}
START = "from launcher.backends.local import ahead; ahead.begin([])"


@pytest.fixture(scope="module")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Python's bytecode is, and the packed agent: other tests change that of all."""
    return tmp_path_factory.mktemp("bytecode")


@pytest.fixture
def started(
    distlaunch: Cli, tmp_path: Path, bytecode: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[tuple[int, str]]]:
    """The Pythons that commands have started: their pids and command lines."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(bytecode))
    done = distlaunch("local", "--contract", "env", "--no-python", "true", real=True)  # packs the agent, if it is not
    assert done.exit_code == 0, done.stderr
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "sitecustomize.py").write_text(STARTS)
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))

    def read() -> list[tuple[int, str]]:
        lines = (tmp_path / "starts").read_text().splitlines()
        return [(int(pid), words) for pid, _, words in (line.partition(" ") for line in lines)]

    return read


def hooked(distlaunch: Cli) -> dict[str, str | None]:
    """With the module that notes all starts of Python."""
    return {"PYTHONPATH": os.pathsep.join((str(distlaunch.directory / "hooks"), str(ROOT)))}


def ended(pid: int) -> bool:
    return processes.start_ticks(pid) is None


def until_ended(pid: int) -> None:
    limit = time.monotonic() + 20
    while not ended(pid):
        assert time.monotonic() < limit, Path(f"/proc/{pid}/cmdline").read_bytes()
        time.sleep(0.02)


def the_one_ahead(started: list[tuple[int, str]]) -> int:
    (pid,) = [pid for pid, words in started if " --ahead " in words]
    return pid


def like(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The other, with the names of the one's run and scratch directory."""
    text = json.dumps(other)
    for kind in (lambda about: Path(about["argv"][4]).parent.name, scratch):
        text = text.replace(kind(other), kind(one))
    found: dict[str, Any] = json.loads(text)
    return found


def scratch(about: dict[str, Any]) -> str:
    (path,) = {str(Path(path).parent) for path in about["fds"].values() if path.endswith("/crash")}
    return path
