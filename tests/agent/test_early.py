"""Variables that a script sets before it imports torch take effect, whether or not its text shows them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from launcher.agent.forkserver.early import is_read_at_import
from launcher.agent.forkserver.program import Program
from tests.command import Cli

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.spec import Kind
    from tests.agent.harness import Runner

SET = "import os\nos.environ['TORCH_LOGS'] = 'x'\n"

FILES = {
    "first.py": SET + "import torch\n",
    "after.py": "import torch\n" + SET,
    "nested.py": (
        "try:\n    if True:\n        import os; os.environ.update({'OMP_NUM_THREADS': '3'})\n"
        "finally:\n    from torch import nn\n"
    ),
    "between.py": "import numpy\n" + SET + "import torch\n",
    "removed.py": "import os\ndel os.environ['MKL_NUM_THREADS']\nimport torch\n",
    "function.py": "def f():\n    import os\n    os.environ['TORCH_LOGS'] = 'x'\n",
    "later.py": (
        "import os\nos.environ['TORCH_NCCL_BLOCKING_WAIT'] = os.environ['CUDA_VISIBLE_DEVICES'] = '1'\nimport torch\n"
    ),
    "helped.py": "import helper\nimport torch\n",
    "late_help.py": "import torch\nimport helper\n",
    "helper.py": SET,
    "deep.py": "from pkg.sub import name\n",
    "pkg/__init__.py": "",
    "pkg/sub.py": "from . import env\nimport torch\n",
    "pkg/env.py": "import os\nos.environ.setdefault('KMP_BLOCKTIME', '0')\n",
    "pkg/__main__.py": "from .env import os\n",
    "broken.py": "def f(:\n",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts of all kinds."""
    cli = Cli(tmp_path_factory.mktemp("early"))
    for name, text in FILES.items():
        cli.write(name, text)
    return cli.directory


@pytest.mark.parametrize(
    ("target", "kind", "names"),
    [
        ("first.py", "script", ["TORCH_LOGS"]),
        ("after.py", "script", []),
        ("nested.py", "script", ["OMP_NUM_THREADS"]),
        ("between.py", "script", []),
        ("removed.py", "script", ["MKL_NUM_THREADS"]),
        ("function.py", "script", []),
        ("later.py", "script", []),
        ("helped.py", "script", ["TORCH_LOGS"]),
        ("late_help.py", "script", []),
        ("deep.py", "script", ["KMP_BLOCKTIME"]),
        ("broken.py", "script", []),
        ("pkg", "module", ["KMP_BLOCKTIME"]),
        ("pkg.sub", "module", ["KMP_BLOCKTIME"]),
        ("json.tool", "module", []),
        ("first.py", "program", []),
    ],
)
def test_variables_that_a_script_or_its_modules_set_before_torch_are_found_in_their_text(
    directory: Path, target: str, kind: Kind, names: list[str]
) -> None:
    assert Program([target], kind, str(directory)).early_variables() == names


SPY = r"""
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>
extern char **environ;
static char *said(const char *name) {
    size_t size = strlen(name);
    write(TOLD, name, size);
    write(TOLD, "\n", 1);
    for (char **each = environ; each && *each; each++)
        if (!strncmp(*each, name, size) && (*each)[size] == '=') return *each + size + 1;
    return 0;
}
char *getenv(const char *name) { return said(name); }
char *secure_getenv(const char *name) { return said(name); }
"""


READ = """
import importlib, os, sys
kind = type(os.environ)
found = kind.__getitem__
def spied(self, name):
    os.write(int(sys.argv[1]), os.fsencode(name) + b"\\n")
    return found(self, name)
kind.__getitem__ = spied
kind.__contains__ = lambda self, name: self.get(name) is not None
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


NOT_FOR_SCRIPTS = {
    "HOME",
    "PATH",
    "LC_ALL",
    "CUDA_7a3f9c2d",
    "bar",
    "PYTHONUSERBASE",
    "_PYTHON_PROJECT_BASE",
    "_PYTHON_SYSCONFIGDATA_NAME",
}
"""Locations of files, and what the build hosts of NVIDIA and Python set."""


@pytest.mark.torch
def test_every_variable_that_the_installed_torch_and_numpy_read_when_imported_is_known(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "spy.c").write_text(SPY)
    with (tmp_path / "read").open("ab", buffering=0) as told:
        fd = told.fileno()
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-w", f"-DTOLD={fd}", "-o", "spy.so", "spy.c"], check=True, cwd=tmp_path
        )

        def read(*modules: str) -> set[str]:
            told.truncate(0)
            env = {**os.environ, "LD_PRELOAD": str(tmp_path / "spy.so")}
            subprocess.run(
                [sys.executable, "-c", READ, str(fd), *modules], check=True, timeout=120, env=env, pass_fds=[fd]
            )
            return set((tmp_path / "read").read_text().split())

        nothing = read()
        for module, more in (("numpy", ()), ("torch", ("torch.distributed", "torch.distributed.nn"))):
            found = read(module, *more) - nothing - NOT_FOR_SCRIPTS
            assert len(found) > 10
            assert {name for name in found if not is_read_at_import(module, name)} == set()


LATE = """
import os, sys
assert "torch" not in sys.modules and "numpy" not in sys.modules
name = "OMP_NUM_" + "THREADS"
{sets}
import torch
print("threads", torch.get_num_threads())
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    "sets",
    [
        pytest.param("os.environ[name] = '1'", id="environ"),
        pytest.param("os.putenv(name, '1')", id="putenv"),
        pytest.param("import numpy\nos.environ[name] = '1'", id="between numpy and torch"),
        pytest.param("exec(\"os.environ[name] = '1'\\nimport torch.nn.functional\")", id="a submodule first"),
    ],
)
def test_a_variable_that_is_found_only_by_running_the_script_takes_effect_with_a_warning(
    agents: Runner, sets: str
) -> None:
    run = agents(LATE.format(sets=sets), nproc_per_node="2", env=("OMP_NUM_THREADS=2",))

    assert run.result() == "success", run.stderr
    assert list(run.stdout.values()) == [b"threads 1\n"] * 2
    (told,) = run.warnings()
    assert told == (
        "workers start again, each in its own interpreter: OMP_NUM_THREADS was set before torch was imported; "
        "use --start-method spawn to avoid the restart"
    )


@pytest.mark.torch
def test_a_variable_that_a_modules_function_sets_takes_effect(agents: Runner) -> None:
    package = agents.directory / "tool"
    package.mkdir()
    (package / "__init__.py").write_text("from .env import prepare\nprepare('KMP_' + 'X', OMP_NUM_THREADS='1')\n")
    (package / "env.py").write_text("import os\ndef prepare(*names, **more):\n    os.environ.update(more)\n")
    (package / "__main__.py").write_text(
        "import torch, sys\nprint(torch.get_num_threads(), __spec__.name, sys.argv[1:])\n"
    )

    run = agents("tool", "a b", kind="module", env=("OMP_NUM_THREADS=2",))

    assert run.result() == "success", run.stderr
    assert run.stdout[0] == b"1 tool.__main__ ['a b']\n"
    assert len(run.warnings()) == 1


@pytest.mark.torch
def test_variables_that_no_import_reads_restart_nothing(agents: Runner) -> None:
    text = (
        "import os\n"
        "for name in ('TORCH_NCCL_BLOCKING_WAIT', 'CUDA_VISIBLE_DEVICES', 'TOKENIZERS_PARALLELISM', 'MASTER_PORT'):\n"
        "    os.environ[name] = '1'\n"
        "print('once')\nimport torch\nos.environ['OMP_' + 'NUM_THREADS'] = '3'\nimport numpy\n"
    )

    run = agents(text)

    assert (run.result(), bytes(run.stdout[0]), run.warnings()) == ("success", b"once\n", [])


AGAIN = """
import json, os, signal, subprocess, sys, time
def seen():
    with open("/proc/self/status") as status:
        kernel = dict(line.split(":", 1) for line in status)
    return {
        "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "cwd": os.getcwd(),
        "umask": kernel["Umask"].strip(),
        "signals": [int(kernel[key], 16) & 0x7FFFFFFF for key in ("SigBlk", "SigIgn", "SigCgt")],
        "fds": sorted(os.listdir("/proc/self/fd")), "env": dict(os.environ), "sid": os.getsid(0),
        "parent": os.getppid(), "pid": os.getpid(), "timer": signal.getitimer(signal.ITIMER_REAL),
        "niceness": os.nice(0), "path": sys.path,
        "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
    }
print(json.dumps(seen()))
if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "1":
    print("restarted")
import threading
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
subprocess.Popen(["sleep", "600"], start_new_session=True)
os.chdir("/")
os.umask(0o77)
file = open("/dev/null")
os.set_inheritable(file.fileno(), True)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signal.alarm(600)
os.environ["OMP_" + "NUM_THREADS"] = "3"
import torch
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""


@pytest.mark.torch
def test_the_second_start_of_the_interpreter_is_like_the_first_and_a_restart_has_only_one(agents: Runner) -> None:
    run = agents(AGAIN, max_restarts=1)

    assert run.result() == "success", run.stderr
    lines = run.stdout[0].decode().splitlines()
    assert len(lines) == 4
    first, second, third = (json.loads(lines[number]) for number in (0, 1, 2))
    first["fds"].remove("1023")  # where a forked worker writes its stacks
    assert second == first
    assert (third["pid"] != first["pid"], lines[3]) == (True, "restarted")
    assert len(run.warnings()) == 1


@pytest.mark.torch
def test_a_variable_set_in_a_forked_child_has_no_effect_and_a_message_says_so(agents: Runner) -> None:
    text = (
        "import os\npid = os.fork()\nif not pid:\n    os.environ['OMP_' + 'NUM_THREADS'] = '3'\n    import torch\n"
        "    os._exit(7)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )

    run = agents(text)

    assert (run.result(), bytes(run.stdout[0])) == ("success", b"7\n")
    assert (
        b"distlaunch: OMP_NUM_THREADS was set before torch was imported, in a forked process, where it has no effect; "
        b"do it before the process is forked, or use --start-method spawn\n" in run.stderr[0]
    )
