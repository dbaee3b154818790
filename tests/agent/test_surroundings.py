"""What a launcher was started with reaches its workers as under torchrun: Python's variables, what is inherited."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.system.processes import ASKS_FOR_STACKS
from tests.agent.harness import SCRIPTS
from tests.agent.test_census import default_signals, differences

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.command import Cli

pytestmark = pytest.mark.torch

__all__ = ["default_signals"]

INHERITED = """
import os, resource, signal, sys
os.umask(0o027)
os.nice(3)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for kind in (resource.RLIMIT_CORE, resource.RLIMIT_STACK):
    resource.setrlimit(kind, (2**22, resource.getrlimit(kind)[1]))
for name, value in (("oom_score_adj", "300"), ("coredump_filter", "0x11")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(value)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
os.dup2(os.open(os.devnull, os.O_RDWR), 9, inheritable=True)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""A program that sets all of this, and becomes the one that its arguments name."""

PLAIN = "import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
TORCHRUN = """
import json, os, sys
os.environ.update(json.loads(sys.argv.pop(1)))
from torch.distributed.run import main
main()
"""
"""torchrun with Python's variables for its workers alone: its own import of torch in development mode takes long."""

CASES: dict[str, tuple[str, dict[str, str | None]]] = {
    "variables": (
        PLAIN,
        {
            "PYTHONBREAKPOINT": "os.getcwd",
            "PYTHONDONTWRITEBYTECODE": "x",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONHASHSEED": "7",
            "PYTHONINTMAXSTRDIGITS": "5000",
            "PYTHONIOENCODING": "latin-1:replace",
            "PYTHONNODEBUGRANGES": "1",
            "PYTHONNOUSERSITE": "1",
            "PYTHONOPTIMIZE": "1",
            "PYTHONPYCACHEPREFIX": "/nowhere",
            "PYTHONSAFEPATH": "1",
            "PYTHONSTARTUP": "/nowhere.py",
            "PYTHONUNBUFFERED": "1",
            "PYTHONUTF8": "1",
            "PYTHONWARNINGS": "ignore::DeprecationWarning,error::BytesWarning:math",
            "TZ": "Asia/Kolkata",
        },
    ),
    "development mode": (
        PLAIN,
        {
            "LC_ALL": "C",
            "LANG": "de_DE.UTF-8",
            "ODD": "\udcff",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONDEVMODE": "1",
            "PYTHONTRACEMALLOC": "2",
            "PYTHONUTF8": "0",
            "PYTHONWARNINGS": "ignore::ResourceWarning",
        },
    ),
    "inherited": (INHERITED, {"LC_ALL": None, "LANG": None, "LC_CTYPE": None, "PYTHONOPTIMIZE": "2"}),
    "options of a python that is a script": (PLAIN, {"PYTHONHASHSEED": "0"}),
}
WAYS = {
    "forked": ("-m", "launcher", "local"),
    "spawned": ("-m", "launcher", "local", "--start-method=spawn"),
    "ours": ("-m", "launcher", "torchrun", "--standalone", "--nproc-per-node=1"),
    "torchrun": ("-c", TORCHRUN, "--standalone", "--nproc-per-node=1"),
}

Seen = dict[str, Any]


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with options of its own, and a variable."""
    path = tmp_path_factory.mktemp("wrapper") / "python"
    options = "-X int_max_str_digits=6000 -X dev -Wignore::FutureWarning -O -s -X tracemalloc"
    path.write_text(f'#!/bin/sh\nODD=wrapped\nexport ODD\nexec {sys.executable} {options} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def theirs() -> dict[str, Seen]:
    """What torchrun's worker has, by case; each is started once."""
    return {}


@pytest.fixture
def seen(distlaunch: Cli, wrapper: Path) -> Callable[[str, str], Seen]:
    """What a worker has in a case, started in a way."""

    def run(case: str, way: str) -> Seen:
        program, variables = CASES[case]
        argv, out = list(WAYS[way]), distlaunch.directory / way
        if case.startswith("options") and "local" in argv:
            argv.append(f"--python={wrapper}")
        elif case.startswith("options"):
            variables = {**variables, "PYTHON_EXEC": str(wrapper)}
        env = distlaunch.env({"OMP_NUM_THREADS": "1", **variables})
        if way == "torchrun":
            for_workers = {
                name: value for name, value in env.items() if name.startswith("PYTHON") and name != "PYTHONPATH"
            }
            argv.insert(2, json.dumps(for_workers))
            env = {name: value for name, value in env.items() if name not in for_workers}
        argv = [sys.executable, "-c", program, *argv, "surroundings.py", "x y", str(out)]
        done = subprocess.run(
            argv, env=env, cwd=SCRIPTS, stdin=subprocess.DEVNULL, capture_output=True, timeout=150, check=False
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        told: Seen = json.loads(out.read_text())
        return told

    return run


@pytest.mark.parametrize("way", ["forked", "spawned", "ours"])
@pytest.mark.parametrize("case", list(CASES))
def test_a_worker_has_what_its_launcher_was_started_with(
    seen: Callable[[str, str], Seen], theirs: dict[str, Seen], case: str, way: str
) -> None:
    if case not in theirs:
        theirs[case] = seen(case, "torchrun")
    found = differences(theirs[case], seen(case, way))
    if way == "forked" or (way == "ours" and not case.startswith("options")):
        (before, after), (caught, now) = found.pop("/fds"), found.pop("/status/SigCgt")
        assert after == [*before, 511 if case == "inherited" else 1023]
        assert int(caught, 16) ^ int(now, 16) == 1 << (ASKS_FOR_STACKS - 1)
    assert found == {}
