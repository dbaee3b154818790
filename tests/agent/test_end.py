"""A worker ends like an interpreter: with the same output, hooks and exit code as `python -u script.py`."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.harness import AGENT_PYTHON

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.harness import Runner

ROOT = Path(__file__).parents[2]

HOOKS = """
import atexit, sys, threading, weakref
class Thing: pass
thing = Thing()
weakref.finalize(thing, print, "finalised")
atexit.register(print, "first registered")
atexit.register(lambda: print("last registered", file=sys.stderr))
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread done"))).start()
threading.Thread(target=threading.Event().wait, daemon=True).start()
unflushed = open(1, "w", closefd=False)
unflushed.write("flushed at the end\\n")
"""

ENDINGS = {
    "end": "",
    "exit 3": "sys.exit(3)",
    "exit with a message": "sys.exit('a message')",
    "exit none": "sys.exit()",
    "exit true": "raise SystemExit(True)",
    "exception": "def f():\n    raise ValueError('broken\\nin two')\nf()",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('after') from e",
    "group": "raise ExceptionGroup('many', [ValueError('a'), KeyError('b')])",
    "interrupt": "raise KeyboardInterrupt",
    "own excepthook": "sys.excepthook = lambda t, v, tb: print('my hook', t.__name__, v)\nraise ValueError('x')",
    "failing hook": "atexit.register(lambda: 1 / 0)",
    "syntax error of an import": "exec(compile('a b', 'gen.py', 'exec'))",
    "destructor of a global": "class T:\n    def __del__(self): print('destroyed', thing is not None)\nt = T()",
    "destructor of a cycle": "class T:\n    def __del__(self): print('destroyed')\nt = T()\nt.me = t",
    "destructor in a function's default": "class T:\n    def __del__(self): print('destroyed')\ndef f(x=T()): pass",
    "object held by torch": (
        "import torch\nclass T:\n    def __del__(self): print('destroyed')\ntorch.mine = T()\nt = T()"
    ),
    "unflushed stdout of its own": (
        "import io\nsys.stdout = io.TextIOWrapper(open(1, 'wb', closefd=False))\nprint('late')"
    ),
    "exit 256": "sys.exit(256)",
    "exit -1": "sys.exit(-1)",
    "exit in a hook": "atexit.register(sys.exit, 5)",
    "os exit": "import os\nos._exit(9)",
    "killed": "import os\nos.kill(os.getpid(), 11)",
    "abort": "import os\nos.abort()",
}


@pytest.fixture(params=["without torch", pytest.param("with torch", marks=pytest.mark.torch)])
def either(request: pytest.FixtureRequest) -> Runner:
    """Agents whose workers are forked from a process without torch, or with it, which is not torn down at the end."""
    found: Runner = request.getfixturevalue("agents" if request.param == "without torch" else "warm_agents")
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], subprocess.CompletedProcess[bytes]]:
    """How `python -u` ends with a script; each runs once."""
    directory = tmp_path_factory.mktemp("plain")

    @functools.cache
    def run(text: str) -> subprocess.CompletedProcess[bytes]:
        script = directory / "ending.py"
        script.write_text(text)
        argv = [AGENT_PYTHON, "-u", "ending.py"]
        return subprocess.run(
            argv, capture_output=True, timeout=120, stdin=subprocess.DEVNULL, cwd=directory, check=False
        )

    return run


@pytest.mark.parametrize(
    "ending",
    [pytest.param(name, marks=[pytest.mark.torch] * ("import torch" in code)) for name, code in ENDINGS.items()],
)
def test_a_worker_ends_like_an_interpreter(
    either: Runner, plain: Callable[[str], subprocess.CompletedProcess[bytes]], ending: str
) -> None:
    if ending == "group" and b"NameError" in plain("ExceptionGroup").stderr:
        pytest.skip("exception groups came with Python 3.11")
    text = HOOKS + ENDINGS[ending] + "\n"
    (either.directory / "ending.py").write_text(text)
    like = plain(text)

    run = either("ending.py")

    # The order in which an interpreter destroys objects at its end is not guaranteed.
    assert sorted(run.stdout[0].splitlines()) == sorted(like.stdout.splitlines())
    changes = re.compile(rb'0x[0-9a-f]+|File "[^"]*/(?=ending.py")')  # addresses and directories
    assert changes.sub(b"", run.stderr[0]) == changes.sub(b"", like.stderr)
    exited = run.of("worker_exited")[0]
    code = exited["exit_code"] if exited.get("signal") is None else -signal.Signals[exited["signal"]]
    assert code == like.returncode
    assert run.result() == ("success" if like.returncode == 0 else "failed")


DAEMONS = """
import threading, time
class Slow:
    def __del__(self, sleep=time.sleep): sleep(0.1)
slow = Slow()
def work():
    while True:
        time.sleep(0.001)
        helper()
def helper(): pass
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
"""


@pytest.mark.torch
def test_daemon_threads_that_run_when_the_interpreter_exits_print_nothing(warm_agents: Runner) -> None:
    run = warm_agents(DAEMONS, nproc_per_node="2")

    assert (run.result(), dict(run.stderr)) == ("success", {})


def test_the_cause_has_the_scripts_own_traceback_without_our_frames(agents: Runner, tmp_path: Path) -> None:
    for start in ("fork", "spawn"):
        run = agents("def f():\n    raise ValueError('broken')\nf()\n", start_method=start)

        cause = run.cause()
        lines = [f'File "{tmp_path}/script{len(agents.runs) - 1}.py", line {n}, in ' for n in (3, 2)]
        assert cause["class"] == "user_code"
        assert cause["message"] == "ValueError: broken"
        assert [line.strip() for line in cause["traceback"].splitlines() if "File" in line] == [
            lines[0] + "<module>", lines[1] + "f",
        ]  # fmt: skip
        assert cause["traceback"].endswith("ValueError: broken\n")


def test_a_script_that_executes_itself_again_with_other_variables_runs(agents: Runner) -> None:
    run = agents(
        "import os, sys\n"
        "if 'AGAIN' not in os.environ:\n"
        "    os.environ['AGAIN'] = '1'\n"
        "    os.execv(sys.executable, [sys.executable, *sys.argv])\n"
        "print(os.environ['AGAIN'], os.environ['RANK'], sys.argv[1:])\n",
        "an arg",
    )

    assert run.result() == "success", run.stderr
    assert run.stdout[0] == b"1 0 ['an arg']\n"


def test_a_program_that_is_not_python_runs_with_the_workers_variables(agents: Runner, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$RANK of $WORLD_SIZE: $1"\nexit $RANK\n')
    os.chmod(program, 0o755)

    run = agents(program, "a b", kind="program", nproc_per_node="2")

    assert run.stdout[1] == b"1 of 2: a b\n"
    assert run.cause()["exit_code"] == 1
    assert run.cause()["rank"] == 1


def test_a_program_that_cannot_be_executed_is_reported(agents: Runner, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/nowhere/sh\n")
    program.chmod(0o755)

    run = agents(program, kind="program")

    assert run.result() == "failed"
    assert f"cannot execute {program}: No such file or directory".encode() in run.stderr[0]
    assert run.cause()["exit_code"] == 127


def test_with_ld_preload_the_interpreter_itself_ends_the_worker(agents: Runner, tmp_path: Path) -> None:
    script = tmp_path / "ending.py"
    script.write_text(HOOKS + "sys.exit(4)\n")
    plain = subprocess.run(
        [sys.executable, "-u", str(script)], capture_output=True, timeout=120, stdin=subprocess.DEVNULL
    )

    run = agents(script, env=("LD_PRELOAD=libm.so.6",))

    assert sorted(run.stdout[0].splitlines()) == sorted(plain.stdout.splitlines())
    assert run.of("worker_exited")[0]["exit_code"] == 4


OPERATORS = """
import torch, weakref
mine = torch.library.Library("mine", "DEF")
found = weakref.finalize._registry.items()
known = [each for each, about in found if about.func.__module__ == "torch.library"]
class Last:
    def __del__(self): print(len(known), "were known,", sum(each.alive for each in known), "are left")
last = Last()
"""


@pytest.mark.torch
@pytest.mark.parametrize(("env", "own"), [((), 1), (("LD_PRELOAD=libm.so.6",), None)])
def test_operators_that_torch_has_registered_stay_if_it_is_not_torn_down(
    warm_agents: Runner, env: tuple[str, ...], own: int | None
) -> None:
    run = warm_agents(OPERATORS, env=env)

    (line,) = run.stdout[0].decode().splitlines()
    known, left = map(int, re.findall(r"\d+", line))
    assert known > 1
    assert left == (0 if own is None else known - own)


@pytest.mark.torch
def test_no_module_that_torch_imports_counts_as_the_users_own() -> None:
    code = (
        "import sys, torch, torch.distributed, torch.distributed.nn\n"
        "known = set(sys.modules)\n"
        "from launcher.agent.forkserver import ending\n"
        "sys.exit([name for name in known if not ending._is_installed(sys.modules[name])])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, cwd=ROOT)
    assert done.stderr == b"[]\n"
