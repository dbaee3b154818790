"""No Python that we start for ourselves imports from the working directory, where other users may have put modules."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from launcher.agent.environment import placing
from launcher.agent.flight import program
from launcher.agent.forkserver import prefork
from launcher.agent.forkserver.guess import SURELY
from launcher.agent.mpi import shells, world
from launcher.agent.system import processes
from launcher.backends.ansible import ssh
from launcher.backends.kubernetes import signals
from launcher.backends.local import programs
from launcher.backends.slurm import allocation
from launcher.payload import agent_archive, snapshot_files
from launcher.spec import JobSpec
from launcher.system import proc
from launcher.torchrun import workers

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
SESSION = "playbooks/roles/distlaunch/plugin_utils/distlaunch_session.py"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once a module of the working directory is imported; all standard names are modules there."""
    directory, ran = tmp_path / "shared", tmp_path / "ran"
    directory.mkdir()
    for name in sys.stdlib_module_names:
        (directory / f"{name}.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.chdir(directory)
    return ran


def probe(_: pytest.MonkeyPatch) -> None:
    spec = JobSpec(name="x", command=("-m",), kind="module", cwd="/", env={}, python=sys.executable)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "needed", lambda _: ("json", SURELY))
        assert programs.find_python(spec) == sys.executable


def call_over_ssh(_: pytest.MonkeyPatch) -> None:
    node: Any = {"ssh": ["ssh", "host"], "python": sys.executable, "agent_path": "/nowhere"}
    words = ssh.argv(node, "alive")
    done = subprocess.run(["sh", "-c", words[-1]], capture_output=True, text=True, check=False)
    assert "/nowhere does not match its name" in done.stderr


def beside_session(name: str) -> Any:
    """That file of the role, as its plugin loads it."""
    spec = importlib.util.spec_from_file_location(name, (ROOT / SESSION).with_name(f"{name}.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def session_over_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = beside_session("distlaunch_session")
    program = beside_session("distlaunch_archive").Archive(agent_archive.packed()).boot()
    sent: list[str] = []

    def popen(argv: list[str], **_: object) -> None:
        sent.extend(argv)
        raise FileNotFoundError(2, "seen", "ssh")

    monkeypatch.setattr(plugin, "subprocess", SimpleNamespace(Popen=popen, PIPE=None))
    session = plugin.Session(["ssh", "host"], sys.executable, program)
    session._open()
    session.close()
    done = subprocess.run(["sh", "-c", sent[-1]], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert "JSONDecodeError" in done.stderr  # of the request, which is empty


def signal_to_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[str]] = []
    monkeypatch.setattr(signals, "execute", lambda _cluster, _pod, _container, command: sent.append(command))
    pod = SimpleNamespace(name="pod", ended=False)
    signals.send(cast("Any", None), lambda: [[cast("Any", pod)]], "c", "python3", 0)
    program, *words = sent[0]
    assert program == "python3"
    assert words[-1].startswith(proc.WITHOUT_HERE)  # this Python has `os` before it looks into any directory
    code = words[-1].replace("os.kill(1, 0)", "os.getpid()")
    subprocess.run([sys.executable, *words[:-1], code], check=True)


def torchrun(_: pytest.MonkeyPatch) -> None:
    assert workers._ask_torch("1", sys.executable) == 1
    beside = Path(sys.executable).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "find_spec", lambda _: None)
        assert workers.own_python({"PATH": str(beside)}) == str(beside / "python3")


def stand_in(_: pytest.MonkeyPatch) -> None:
    text = (Path(world.__file__).parent / "rank.py").read_text()
    env = {**os.environ, "DISTLAUNCH_MPI_PYTHON": sys.executable, "DISTLAUNCH_MPI_RANK": text}
    done = subprocess.run(world._STAND_IN, env=env, capture_output=True, text=True, check=False)
    assert "the agent of this node is not there" in done.stderr


def read_dumps(_: pytest.MonkeyPatch) -> None:
    assert program.ask({"do": program.READ, "paths": {}}, 60) == {"dumps": "", "unreadable": {}}


def start_of_environment(_: pytest.MonkeyPatch) -> None:
    placing._check_start(sys.executable, sys.prefix)


STARTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "launcher/backends/local/programs.py": probe,
    "launcher/backends/ansible/ssh.py": call_over_ssh,
    "launcher/backends/kubernetes/signals.py": signal_to_pods,
    "launcher/torchrun/workers.py": torchrun,
    "launcher/agent/mpi/world.py": stand_in,
    "launcher/agent/flight/program.py": read_dumps,
    "launcher/agent/environment/placing.py": start_of_environment,
    SESSION: session_over_ssh,
}
IMPORTS_TORCH = "launcher/torchrun/workers.py"


@pytest.mark.parametrize(
    "where", [pytest.param(where, marks=pytest.mark.torch if where == IMPORTS_TORCH else ()) for where in STARTS]
)
def test_nothing_of_the_working_directory_is_imported(where: str, ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    STARTS[where](monkeypatch)

    assert not ran.exists()


def test_without_that_care_a_python_imports_from_the_working_directory(ran: Path) -> None:
    subprocess.run([sys.executable, "-c", "import json"], check=True)

    assert ran.exists()


def test_all_places_that_pass_code_to_python_are_tested_here() -> None:
    others = {
        Path(module.__file__ or "").name for module in (prefork, processes, allocation, snapshot_files, shells)
    }  # what a login runs; options of an interpreter; bash; git; mpirun's daemons
    texts = (
        path for directory in ("launcher", "playbooks", "slurm_templates") for path in (ROOT / directory).rglob("*.*")
    )
    found = {
        path for path in texts if path.suffix in (".py", ".j2", ".yml") and '"-c"' in path.read_text(encoding="utf-8")
    }

    assert {str(path.relative_to(ROOT)) for path in found if path.name not in others} == STARTS.keys()
