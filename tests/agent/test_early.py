"""What a script sets before it imports torch counts, wherever it does so: torch is out of its sight until then."""

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
        "try:\n    if True:\n        import os; os.environ.update({'OMP_NUM_THREADS': '3'})\nfinally:\n    from torch import nn\n"
    ),
    "between.py": "import numpy\n" + SET + "import torch\n",
    "removed.py": "import os\ndel os.environ['MKL_NUM_THREADS']\nimport torch\n",
    "function.py": "def f():\n    import os\n    os.environ['TORCH_LOGS'] = 'x'\n",
    "later.py": "import os\nos.environ['TORCH_NCCL_BLOCKING_WAIT'] = os.environ['CUDA_VISIBLE_DEVICES'] = '1'\nimport torch\n",
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
def test_what_a_script_or_its_own_modules_set_before_torch_is_read_from_their_text(
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
"""Where files are, and what NVIDIA's and Python's own build machines set."""


@pytest.mark.torch
def test_every_variable_that_the_installed_torch_and_numpy_read_when_imported_is_known(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "spy.c").write_text(SPY)
    with (tmp_path / "read").open("ab", buffering=0) as told:
        fd = told.fileno()
        subprocess.run(["cc", "-shared", "-fPIC", "-w", f"-DTOLD={fd}", "-o", "spy.so", "spy.c"], check=True, cwd=tmp_path)

        def read(*modules: str) -> set[str]:
            told.truncate(0)
            env = {**os.environ, "LD_PRELOAD": str(tmp_path / "spy.so")}
            subprocess.run([sys.executable, "-c", READ, str(fd), *modules], check=True, timeout=120, env=env, pass_fds=[fd])
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


def warnings(run: object) -> list[str]:
    return [str(fields["message"]) for fields in run.of("warning")]  # type: ignore[attr-defined]


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
def test_a_variable_that_only_running_the_script_shows_counts_and_is_told(agents: Runner, sets: str) -> None:
    run = agents(LATE.format(sets=sets), nproc_per_node="2", env=("OMP_NUM_THREADS=2",))

    assert run.result() == "success", run.stderr
    assert list(run.stdout.values()) == [b"threads 1\n"] * 2
    (told,) = warnings(run)
    assert told == (
        "workers start again, each in its own interpreter: OMP_NUM_THREADS was set before torch was imported; "
        "--start spawn does so at once"
    )


@pytest.mark.torch
def test_a_module_that_sets_variables_in_a_function_counts(agents: Runner) -> None:
    package = agents.directory / "tool"
    package.mkdir()
    (package / "__init__.py").write_text("from .env import prepare\nprepare('KMP_' + 'X', OMP_NUM_THREADS='1')\n")
    (package / "env.py").write_text("import os\ndef prepare(*names, **more):\n    os.environ.update(more)\n")
    (package / "__main__.py").write_text("import torch, sys\nprint(torch.get_num_threads(), __spec__.name, sys.argv[1:])\n")

    run = agents("tool", "a b", kind="module", env=("OMP_NUM_THREADS=2",))

    assert run.result() == "success", run.stderr
    assert run.stdout[0] == b"1 tool.__main__ ['a b']\n"
    assert len(warnings(run)) == 1


@pytest.mark.torch
def test_the_torch_that_a_script_puts_on_its_path_is_the_one_that_it_gets(agents: Runner) -> None:
    own = agents.directory / "own" / "torch"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("answer = 42\n")

    run = agents("import sys\nsys.path.insert(0, 'o' + 'wn')\nimport torch\nprint(torch.answer)\n")

    assert run.result() == "success", run.stderr
    assert run.stdout[0] == b"42\n"
    assert f"torch was to be imported from {own}/__init__.py, not " in warnings(run)[0]


@pytest.mark.torch
def test_variables_that_nobody_reads_at_import_start_nothing_again(agents: Runner) -> None:
    text = (
        "import os\n"
        "for name in ('TORCH_NCCL_BLOCKING_WAIT', 'CUDA_VISIBLE_DEVICES', 'TOKENIZERS_PARALLELISM', 'MASTER_PORT'):\n"
        "    os.environ[name] = '1'\n"
        "print('once')\nimport torch\nos.environ['OMP_' + 'NUM_THREADS'] = '3'\nimport numpy\n"
    )

    run = agents(text)

    assert (run.result(), bytes(run.stdout[0]), warnings(run)) == ("success", b"once\n", [])


AGAIN = """
import json, os, signal, subprocess, sys, time
def seen():
    with open("/proc/self/status") as status:
        kernel = dict(line.split(":", 1) for line in status)
    return {
        "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "cwd": os.getcwd(), "umask": kernel["Umask"].strip(),
        "signals": [int(kernel[key], 16) & 0x7FFFFFFF for key in ("SigBlk", "SigIgn", "SigCgt")],
        "fds": sorted(os.listdir("/proc/self/fd")), "env": dict(os.environ), "sid": os.getsid(0), "parent": os.getppid(),
        "pid": os.getpid(), "timer": signal.getitimer(signal.ITIMER_REAL), "niceness": os.nice(0), "path": sys.path,
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
def test_the_second_beginning_is_like_the_first_and_a_restart_has_only_one(agents: Runner) -> None:
    run = agents(AGAIN, max_restarts=1)

    assert run.result() == "success", run.stderr
    lines = run.stdout[0].decode().splitlines()
    assert len(lines) == 4
    first, second, third = (json.loads(lines[number]) for number in (0, 1, 2))
    assert second == first
    assert (third["pid"] != first["pid"], lines[3]) == (True, "restarted")
    assert len(warnings(run)) == 1


@pytest.mark.torch
def test_in_a_process_that_the_script_forks_it_is_said_that_nothing_comes_of_it(agents: Runner) -> None:
    text = (
        "import os\npid = os.fork()\nif not pid:\n    os.environ['OMP_' + 'NUM_THREADS'] = '3'\n    import torch\n"
        "    os._exit(7)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )

    run = agents(text)

    assert (run.result(), bytes(run.stdout[0])) == ("success", b"7\n")
    assert b"distlaunch: OMP_NUM_THREADS was set before torch was imported, in a process that was forked" in run.stderr[0]


@pytest.mark.torch
def test_what_is_hidden_looks_as_in_a_new_interpreter(agents: Runner) -> None:
    text = (
        "import importlib.util, sys\n"
        "def told():\n"
        "    spec = importlib.util.find_spec('torch')\n"
        "    return spec.name, spec.origin, spec.submodule_search_locations, spec.cached, spec.loader.get_filename('torch')\n"
        "print(told())\n"
        "print([name for name in ('torch', 'numpy', 'torch.nn', 'sympy') if name in sys.modules])\n"
        "import torch.nn as nn\n"
        "print(told())\n"
        "torch = sys.modules['torch']\n"
        "print(nn is sys.modules['torch.nn'] is torch.nn, [type(each) for each in sys.meta_path])\n"
        "import pickle, numpy\n"
        "print(pickle.loads(pickle.dumps(torch.ones(2))).sum().item(), numpy.ones(2).sum())\n"
    )
    path = agents.directory / "look.py"
    path.write_text(text)
    alone = subprocess.run([sys.executable, str(path)], check=True, capture_output=True, text=True, timeout=120)

    run = agents("look.py")

    assert run.result() == "success", run.stderr
    assert run.stdout[0].decode() == alone.stdout


@pytest.mark.torch
def test_a_script_that_does_not_import_torch_in_the_end_ends_as_ever(agents: Runner) -> None:
    text = (
        "import atexit, os, sys\n"
        "if os.environ.get('NEVER'):\n    import torch\n"
        "atexit.register(lambda: print('hook', 'torch' in sys.modules))\nos.environ['OMP_' + 'NUM_THREADS'] = '3'\nsys.exit(3)\n"
    )

    run = agents(text)

    assert run.result() == "failed"
    assert (run.cause()["exit_code"], bytes(run.stdout[0]), warnings(run)) == (3, b"hook False\n", [])


FINDER = """
import sys
from importlib.machinery import PathFinder, SourceFileLoader
seen = []
class Loader(SourceFileLoader):
    def exec_module(self, module):
        seen.append(module.__name__)
        super().exec_module(module)
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name.startswith("torch") else None
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec
sys.meta_path.insert(0, Finder)
import torch
print(seen[:2])
"""

STAND_IN = "import sys\nsys.modules['num' + 'py'] = None\nimport torch\nprint(sys.modules['numpy'])\n"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "out"),
    [
        pytest.param(FINDER, "['torch', 'torch._utils']\n", id="a finder"),
        pytest.param(STAND_IN, "None\n", id="a stand-in for numpy"),
    ],
)
def test_a_torch_that_comes_in_another_way_or_finds_other_modules_is_loaded_so(agents: Runner, text: str, out: str) -> None:
    run = agents(text)

    assert run.result() == "success", run.stderr
    assert run.stdout[0].decode() == out
    assert "came into sys.modules in another way than by import" in warnings(run)[0]


IN_A_THREAD = """
import os, resource, signal, sys, threading
timers = [signal.getitimer(kind) for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
print(os.getpriority(os.PRIO_PROCESS, 0), soft, len(os.sched_getaffinity(0)), timers, signal.getsignal(signal.SIGUSR1).name)
signal.setitimer(signal.ITIMER_PROF, 60)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
os.nice(1)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
def work():
    import torch
    print(torch.get_num_threads())
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.torch
def test_how_and_on_which_processors_libraries_are_loaded_counts_and_a_thread_may_begin_again(agents: Runner) -> None:
    if os.geteuid():
        pytest.skip("needs root, to be as nice as before")
    run = agents(IN_A_THREAD)

    assert run.result() == "success", run.stderr
    first, second, threads = run.stdout[0].decode().splitlines()
    assert first == second
    assert threads == "1"
    assert "sys.setdlopenflags() was called before torch was imported" in warnings(run)[0]


LOGS = """
import io, logging.config, sys, warnings
warnings.resetwarnings()
logging.config.dictConfig({"version": 1})
sys.stderr = io.StringIO()
import torch
from torch.fx.passes.utils import matcher_utils
matcher_utils.logger.warning("heard")
print(sys.stderr.getvalue().count("heard"), logging.getLogger("torch._dynamo").disabled, len(warnings.filters))
"""


@pytest.mark.torch
def test_loggers_and_warning_filters_are_as_the_import_makes_them_when_it_is_executed(agents: Runner) -> None:
    path = agents.directory / "logs.py"
    path.write_text(LOGS)
    alone = subprocess.run([sys.executable, str(path)], check=True, capture_output=True, text=True, timeout=120)

    run = agents("logs.py")

    assert run.result() == "success", run.stderr
    assert run.stdout[0].decode() == alone.stdout
    assert alone.stdout.startswith("1 False")


def test_files_beside_the_script_may_have_the_names_of_modules_that_we_use(agents: Runner) -> None:
    for name in ("queue", "secrets", "hmac", "traceback", "platform"):
        (agents.directory / f"{name}.py").write_text(f"print('{name}')\n")

    run = agents("import queue\nimport secrets\nimport hmac\nimport traceback\nimport platform\n", nproc_per_node="2")

    assert run.result() == "success", (run.stderr, run.agent_stderr())
    assert set(map(bytes, run.stdout.values())) == {b"queue\nsecrets\nhmac\ntraceback\nplatform\n"}


@pytest.mark.torch
def test_a_file_beside_the_script_that_torch_imports_is_executed_in_each_worker(agents: Runner) -> None:
    real = subprocess.run(
        [sys.executable, "-c", "import typing_extensions as t; print(t.__file__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    text = f"import os\nprint('mine', os.environ.get('RANK'))\nexec(open({real!r}).read())\n"
    (agents.directory / "typing_extensions.py").write_text(text)

    run = agents("import torch\n")

    assert run.result() == "success", run.stderr
    assert run.stdout[0] == b"mine 0\n"
    assert "typing_extensions.py has the name of a module that was imported before the script" in warnings(run)[0]
