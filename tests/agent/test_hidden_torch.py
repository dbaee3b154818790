"""torch, which the fork server has imported, is hidden from a script until its own import, which then looks real."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.agent.harness import Runner


def printed_as_in_a_new_interpreter(agents: Runner, name: str, text: str) -> str:
    """What that script prints, by itself as well as in a run."""
    path = agents.directory / name
    path.write_text(text)
    alone = subprocess.run([sys.executable, str(path)], check=True, capture_output=True, text=True, timeout=120)

    run = agents(name)

    assert run.result() == "success", run.stderr
    assert run.stdout[0].decode() == alone.stdout
    return alone.stdout


@pytest.mark.torch
def test_the_torch_that_a_script_puts_on_its_path_is_the_one_that_it_gets(agents: Runner) -> None:
    own = agents.directory / "own" / "torch"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("answer = 42\n")

    run = agents("import sys\nsys.path.insert(0, 'o' + 'wn')\nimport torch\nprint(torch.answer)\n")

    assert run.result() == "success", run.stderr
    assert run.stdout[0] == b"42\n"
    assert f"torch was to be imported from {own}/__init__.py, not " in run.warnings()[0]


@pytest.mark.torch
def test_hidden_torch_looks_as_in_a_new_interpreter(agents: Runner) -> None:
    text = (
        "import importlib.util, sys\n"
        "def told():\n"
        "    spec = importlib.util.find_spec('torch')\n"
        "    name = spec.loader.get_filename('torch')\n"
        "    return spec.name, spec.origin, spec.submodule_search_locations, spec.cached, name\n"
        "print(told())\n"
        "print([name for name in ('torch', 'numpy', 'torch.nn', 'sympy') if name in sys.modules])\n"
        "import torch.nn as nn\n"
        "print(told())\n"
        "torch = sys.modules['torch']\n"
        "print(nn is sys.modules['torch.nn'] is torch.nn, [type(each) for each in sys.meta_path])\n"
        "import pickle, numpy\n"
        "print(pickle.loads(pickle.dumps(torch.ones(2))).sum().item(), numpy.ones(2).sum())\n"
    )
    assert printed_as_in_a_new_interpreter(agents, "look.py", text)


@pytest.mark.torch
def test_a_script_that_never_reaches_its_import_of_torch_ends_as_usual(agents: Runner) -> None:
    text = (
        "import atexit, os, sys\n"
        "if os.environ.get('NEVER'):\n    import torch\n"
        "atexit.register(lambda: print('hook', 'torch' in sys.modules))\n"
        "os.environ['OMP_' + 'NUM_THREADS'] = '3'\nsys.exit(3)\n"
    )

    run = agents(text)

    assert run.result() == "failed"
    assert (run.cause()["exit_code"], bytes(run.stdout[0]), run.warnings()) == (3, b"hook False\n", [])


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


OLD_FINDER = """
import sys
class Finder:
    def find_module(self, name, path=None):
        return None
sys.meta_path.insert(0, Finder())
import torch
print(torch.__name__)
"""


@pytest.mark.torch
def test_a_finder_of_an_old_library_is_asked_nothing_that_it_does_not_know(agents: Runner) -> None:
    run = agents(OLD_FINDER)

    assert run.result() == "success", run.stderr
    assert run.stdout[0] == b"torch\n"
    assert run.warnings() == []


STAND_IN = "import sys\nsys.modules['num' + 'py'] = None\nimport torch\nprint(sys.modules['numpy'])\n"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "out"),
    [
        pytest.param(FINDER, "['torch', 'torch._utils']\n", id="a finder"),
        pytest.param(STAND_IN, "None\n", id="a stand-in for numpy"),
    ],
)
def test_torch_loaded_by_a_custom_finder_or_beside_a_stand_in_is_loaded_that_way(
    agents: Runner, text: str, out: str
) -> None:
    run = agents(text)

    assert run.result() == "success", run.stderr
    assert run.stdout[0].decode() == out
    assert "came into sys.modules in another way than by import" in run.warnings()[0]


IN_A_THREAD = """
import os, resource, signal, sys, threading
timers = [signal.getitimer(kind) for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
cpus, action = len(os.sched_getaffinity(0)), signal.getsignal(signal.SIGUSR1).name
print(os.getpriority(os.PRIO_PROCESS, 0), soft, cpus, timers, action)
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
def test_flags_and_cpus_for_loading_libraries_take_effect_and_a_thread_may_import_torch(agents: Runner) -> None:
    if os.geteuid():
        pytest.skip("needs root, to be as nice as before")
    run = agents(IN_A_THREAD)

    assert run.result() == "success", run.stderr
    first, second, threads = run.stdout[0].decode().splitlines()
    assert first == second
    assert threads == "1"
    assert "sys.setdlopenflags() was called before torch was imported" in run.warnings()[0]


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
def test_loggers_and_warning_filters_are_as_a_real_import_leaves_them(agents: Runner) -> None:
    assert printed_as_in_a_new_interpreter(agents, "logs.py", LOGS).startswith("1 False")


def test_files_beside_the_script_may_have_the_names_of_modules_that_the_agent_uses(agents: Runner) -> None:
    for name in ("queue", "secrets", "hmac", "traceback", "platform"):
        (agents.directory / f"{name}.py").write_text(f"print('{name}')\n")

    run = agents("import queue\nimport secrets\nimport hmac\nimport traceback\nimport platform\n", nproc_per_node="2")

    assert run.result() == "success", (run.stderr, run.agent_stderr())
    assert set(map(bytes, run.stdout.values())) == {b"queue\nsecrets\nhmac\ntraceback\nplatform\n"}


@pytest.mark.torch
def test_a_file_beside_the_script_that_torch_imports_is_executed_in_each_worker(agents: Runner) -> None:
    real = subprocess.run(
        [sys.executable, "-c", "import typing_extensions as t; print(t.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    text = f"import os\nprint('mine', os.environ.get('RANK'))\nexec(open({real!r}).read())\n"
    (agents.directory / "typing_extensions.py").write_text(text)

    run = agents("import torch\n")

    assert run.result() == "success", run.stderr
    assert run.stdout[0] == b"mine 0\n"
    assert "typing_extensions.py has the name of a module that was imported before the script" in run.warnings()[0]
