"""torch is imported for scripts that will import it, and for no others."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import psutil
import pytest

from launcher.agent.forkserver.guess import MAYBE, NO, SURELY
from launcher.agent.forkserver.preload import Preload
from launcher.agent.forkserver.program import Program
from launcher.agent.system import cgroup
from launcher.errors import BackendUnavailableError
from testbed import wait_until
from tests.command import Cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.spec import Kind
    from tests.agent.harness import Runner

FILES = {
    "empty.py": "",
    "without.py": "try:\n    import torch\nexcept (ImportError, OSError):\n    torch = None\n",
    "suppressed.py": "from contextlib import suppress\nwith suppress(ImportError):\n    from lib import model\n",
    "tried_std.py": "try:\n    import std\nexcept ImportError:\n    pass\n",
    "needed.py": "try:\n    import torch\nfinally:\n    print('done')\n",
    "std.py": "import os, json.decoder, xml.etree.ElementTree as e\nfrom concurrent import futures\n",
    "direct.py": "import torch\n",
    "late.py": "def f():\n    from torch import nn\n",
    "by_name.py": "import importlib\nimportlib.import_module('torch.nn')\n",
    "numbers.py": "import numpy as np\nfrom mpi4py import MPI\n",
    "third.py": "import pytest\n",
    "absent.py": "import no_such_module_anywhere\n",
    "own.py": "import lib.plain\n",
    "own_torch.py": "from lib import model\n",
    "own_relative.py": "from lib.chain import x\n",
    "circle.py": "import circle\nimport std\n",
    "broken.py": "def f(:\n",
    "said.py": "# as torchrun does\nprint('no torch is needed')\n",
    "as_word.py": "BACKENDS = {'torch': 1}\n",
    "both.py": "import pytest\nfrom lib import model\n",
    "newer.py": "import torch\ndef f(:\n",
    "lib/__init__.py": "",
    "lib/plain.py": "from . import other\n",
    "lib/other.py": "from .plain import name\n",
    "lib/model.py": "import torch.nn\n",
    "lib/chain.py": "from .deep.end import x\n",
    "lib/deep/__init__.py": "",
    "lib/deep/end.py": "import torch\n",
    "tool/__init__.py": "",
    "tool/__main__.py": "import torch\n",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts of all kinds."""
    cli = Cli(tmp_path_factory.mktemp("scripts"))
    for name, text in FILES.items():
        cli.write(name, text)
    return cli.directory


@pytest.mark.parametrize(
    ("target", "kind", "wants"),
    [
        ("empty.py", "script", NO),
        ("std.py", "script", NO),
        ("direct.py", "script", SURELY),
        ("late.py", "script", SURELY),
        ("without.py", "script", MAYBE),
        ("suppressed.py", "script", MAYBE),
        ("tried_std.py", "script", NO),
        ("needed.py", "script", SURELY),
        ("by_name.py", "script", MAYBE),
        ("numbers.py", "script", NO),
        ("third.py", "script", MAYBE),
        ("absent.py", "script", NO),
        ("own.py", "script", NO),
        ("own_torch.py", "script", SURELY),
        ("own_relative.py", "script", SURELY),
        ("circle.py", "script", NO),
        ("broken.py", "script", NO),
        ("said.py", "script", NO),
        ("as_word.py", "script", MAYBE),
        ("both.py", "script", SURELY),
        ("newer.py", "script", SURELY),
        ("std", "module", NO),
        ("lib.model", "module", SURELY),
        ("lib.plain", "module", NO),
        ("tool", "module", SURELY),
        ("json.tool", "module", NO),
        ("pytest", "module", MAYBE),
        ("direct.py", "program", NO),
    ],
)
def test_a_script_wants_torch_when_it_or_its_own_modules_may_import_it(
    directory: Path, target: str, kind: Kind, wants: int
) -> None:
    loaded = set(sys.modules)

    assert Program([target], kind, str(directory)).wants_torch() == wants
    assert not {name for name in set(sys.modules) - loaded if name.split(".")[0] in ("torch", "lib", "tool")}


LISTS = """
import os, sys, time
print(any(name.partition(".")[0] in ("torc" + "h", "numpy") for name in sys.modules), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


@pytest.mark.parametrize("program", [False, True])
def test_a_run_that_needs_no_torch_has_none_in_any_of_its_processes(agents: Runner, program: bool) -> None:
    go = agents.directory / "go"
    if program:
        shell = f"echo False; while ! [ -e {go} ]; do sleep 0.05; done"
        run = agents.start("sh", "-c", shell, kind="program", nodes="2", nproc_per_node="2")
    else:
        run = agents.start(LISTS, str(go), nodes="2", nproc_per_node="2")
    run.until(lambda: len(run.stdout) == 4)

    agent = [psutil.Process(run.agent_pid(node)) for node in (0, 1)]
    family = [*agent, *(child for each in agent for child in each.children(recursive=True))]
    mapped = {}
    for process in family:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a sleep that has ended, or just then
            mapped[process.pid] = Path(f"/proc/{process.pid}/maps").read_text()
    go.touch()
    run.wait()

    assert run.result() == "success"
    assert len(mapped) >= 2 * 5, "an agent, a fork server, the worker group's process and two workers on each node"
    assert not [pid for pid, maps in mapped.items() if "libtorch" in maps or "_multiarray" in maps]
    assert list(run.stdout.values()) == [b"False\n"] * 4
    assert [fields["torch_version"] for fields in run.of("host_facts")] == [None] * 2


@pytest.fixture
def limited_python(tmp_path: Path) -> Iterator[str]:
    """An interpreter that may use 220 MiB of memory, including all that it starts."""
    old, unified = cgroup._own_directory("memory"), cgroup._own_directory()
    for parent, name in ((old, "memory.limit_in_bytes"), (unified, "memory.max")):
        directory = Path(parent or "/nowhere", f"distlaunch-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            directory.mkdir()
            if (directory / name).exists():
                (directory / name).write_text(str(220 << 20))
                break
            directory.rmdir()
    else:
        pytest.skip("needs root and a memory controller that can be had, to limit a run's memory")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho $$ >{directory}/cgroup.procs\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    yield str(python)
    wait_until("the run's processes to exit", lambda: not (directory / "cgroup.procs").read_text())
    directory.rmdir()


def installed(directory: Path) -> tuple[str, ...]:
    """Install a package `thing` that is not the user's own; the variable that makes it known."""
    (directory / "site-packages").mkdir()
    (directory / "site-packages/thing.py").write_text("name = 'thing'\n")
    return (f"PYTHONPATH={directory}/site-packages",)


def test_with_little_memory_torch_is_not_imported_on_suspicion(
    agents: Runner, limited_python: str, tmp_path: Path
) -> None:
    """The script imports a package of which nothing is known, and torch takes more memory than there is."""
    run = agents("import thing\nprint(thing.name)\n", python=limited_python, env=installed(tmp_path))

    assert run.result() == "success", run.cause()
    assert run.stdout[0] == b"thing\n"
    assert [fields["torch_version"] for fields in run.of("host_facts")] == [None]


def other_python(minor: int) -> str:
    """An interpreter of that version without torch."""
    for path in sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")):
        asked = subprocess.run([path, "-c", "import torch"], capture_output=True, text=True, check=False, timeout=60)
        if "ModuleNotFoundError" in asked.stderr:
            return str(path)
    return str(pytest.skip(f"there is no Python 3.{minor} without torch here"))


def test_a_node_without_torch_runs_what_needs_none(agents: Runner, tmp_path: Path) -> None:
    python = other_python(12)
    run = agents("import thing\nprint(thing.name)\n", python=python, nodes="2", env=installed(tmp_path))

    assert run.result() == "success", run.cause()
    assert list(run.stdout.values()) == [b"thing\n"] * 2
    with pytest.raises(BackendUnavailableError, match=f"no torch here: looked in {python}"):
        agents("import torch\n", python=python)


@pytest.mark.parametrize("contract", ["torchrun", "env"])
def test_a_node_without_torch_runs_what_can_do_without(agents: Runner, contract: str) -> None:
    script = "try:\n    import torch\nexcept ImportError:\n    print('without')\n"
    run = agents(script, python=other_python(12), contract=contract)

    assert run.result() == "success", run.cause()
    assert run.stdout[0] == b"without\n"


@pytest.mark.parametrize(
    ("contract", "installed", "ahead"), [("jax", True, True), ("jax", False, False), ("torchrun", False, True)]
)
def test_torch_is_imported_ahead_for_another_framework_only_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, contract: str, installed: bool, ahead: bool
) -> None:
    torch = MagicMock() if installed else None
    usual = PathFinder.find_spec
    monkeypatch.setattr(PathFinder, "find_spec", lambda name, *more: torch if name == "torch" else usual(name, *more))
    program = SimpleNamespace(wants_torch=lambda: SURELY, directory="/")
    setup: Any = SimpleNamespace(program=program, job={"contract": contract})

    assert Preload(setup, agent=None)._imports_torch_ahead() == ahead  # type: ignore[arg-type]


NEWER = 'import os, sys\ntype Pair[T] = tuple[T, T]\nprint(sys.version_info[1], f"{os.environ["RANK"]}")\n'


def test_a_script_is_read_by_the_interpreter_that_runs_it(agents: Runner) -> None:
    """Whatever the interpreters of the agent and the launcher think of its syntax."""
    newer, older = other_python(12), other_python(10)

    for options in ({"python": newer}, {"env": (f"PYTHON_EXEC={newer}",)}):
        run = agents(NEWER, nproc_per_node="2", **options)
        assert sorted(run.stdout.values()) == [b"12 0\n", b"12 1\n"], run.cause()
    run = agents(NEWER, nproc_per_node="2", python=older)
    assert run.worker_pids() == []
    assert run.cause()["message"].startswith("SyntaxError: invalid syntax (script2.py, line 2), says Python 3.10.")
    run = agents("def f(:\n", env=(f"PYTHON_EXEC={newer}",))
    assert (run.cause()["class"], run.cause()["message"]) == ("user_code", "SyntaxError: invalid syntax")
    assert 'script3.py", line 1' in run.cause()["traceback"]


@pytest.mark.torch
def test_a_script_that_imports_torch_by_a_computed_name_gets_it(agents: Runner) -> None:
    run = agents("name = 'to' 'rch'\ntorch = __import__(name)\nprint(int(torch.ones(2).sum()))\n", nproc_per_node="2")

    assert run.result() == "success"
    assert list(run.stdout.values()) == [b"2\n"] * 2
