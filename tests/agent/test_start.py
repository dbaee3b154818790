"""When workers are forked, when they are spawned instead, and what is reported of it."""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.agent.harness import AGENT_PYTHON

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.harness import Runner

SHARED = (
    "import os, sys\n"
    "there = 'mark' + 'er' in sys.modules\n"
    "print('there' if there else 'preloaded' if __import__('mark' + 'er').PID != os.getpid() else 'fresh')\n"
)


def preload(tmp_path: Path, text: str) -> str:
    (tmp_path / "marker.py").write_text(f"import os\nPID = os.getpid()\n{text}")
    return "marker"


def test_a_preloaded_module_is_imported_once_with_the_jobs_variables(agents: Runner, tmp_path: Path) -> None:
    text = "import os\nwith open('imports', 'a') as file: file.write(os.environ['READ_AT_IMPORT'] + '\\n')\n"
    run = agents(SHARED, preload=(preload(tmp_path, text),), env=("READ_AT_IMPORT=a value",), nproc_per_node="3")

    assert list(run.stdout.values()) == [b"preloaded\n"] * 3
    assert (tmp_path / "imports").read_text() == "a value\n"
    assert run.of("warning") == []


def test_a_script_may_name_modules_to_preload_in_a_comment(agents: Runner, tmp_path: Path) -> None:
    preload(tmp_path, "")
    run = agents("# distlaunch: preload marker, json\n" + SHARED)

    assert run.stdout[0] == b"preloaded\n"


def test_simulated_nodes_do_not_compete_for_the_cpus_unless_the_user_asks_for_it(agents: Runner) -> None:
    text = "import os\nprint(os.environ.get('OMP_NUM_THREADS'))\n"

    assert list(agents(text, nodes="2").stdout.values()) == [b"1\n"] * 2
    assert list(agents(text, nodes="2", env=("OMP_NUM_THREADS=3",)).stdout.values()) == [b"3\n"] * 2


def test_what_was_preloaded_is_collected_at_the_end_as_in_any_interpreter(agents: Runner, tmp_path: Path) -> None:
    text = (
        "class Cycle:\n    def __init__(self): self.me = self\n    def __del__(self): print('collected')\n"
        "cycle = Cycle()\n"
    )
    run = agents("print('end')\n", preload=(preload(tmp_path, text),))

    assert run.stdout[0] == b"end\ncollected\n"


def test_a_preloaded_module_with_a_thread_makes_the_workers_spawn_and_is_reported_once(
    agents: Runner, tmp_path: Path
) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    run = agents(SHARED, preload=(preload(tmp_path, text),), nproc_per_node="2")

    assert list(run.stdout.values()) == [b"fresh\n"] * 2
    assert [fields["message"] for fields in run.of("warning")] == [
        "workers are spawned, not forked: the preloaded modules have started 1 threads, which a fork would lose"
    ]


@pytest.mark.torch
def test_a_preloaded_module_that_initialises_cuda_makes_the_workers_spawn(agents: Runner, tmp_path: Path) -> None:
    text = "import torch\ntorch.cuda.is_initialized = lambda: True\n"  # what a host without a GPU can show of it
    run = agents(SHARED, preload=(preload(tmp_path, text),))

    assert run.stdout[0] == b"fresh\n"
    assert "initialised CUDA" in run.of("warning")[0]["message"]


@pytest.mark.torch
def test_a_script_that_sets_import_time_variables_before_torch_is_spawned(agents: Runner) -> None:
    text = "import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\nprint(torch.get_num_threads())\n"
    run = agents(text, nproc_per_node="2")

    assert list(run.stdout.values()) == [b"2\n"] * 2
    assert "OMP_NUM_THREADS" in run.of("warning")[0]["message"]


@pytest.mark.torch
def test_a_script_that_only_reads_such_variables_or_sets_them_later_is_forked(agents: Runner) -> None:
    run = agents(
        "import os\nos.environ.get('OMP_NUM_THREADS')\nimport torch\nos.environ['OMP_NUM_THREADS'] = '2'\n"
        "def f(): os.environ['LD_PRELOAD'] = 'x'\n"
    )

    assert run.result() == "success"
    assert run.of("warning") == []


def test_another_interpreter_named_by_torchruns_variable_is_spawned(agents: Runner, tmp_path: Path) -> None:
    other = tmp_path / "python-wrapper"
    other.write_text(f'#!/bin/sh\nWRAPPED=1 exec {sys.executable} "$@"\n')
    other.chmod(0o755)

    run = agents("import os\nprint(os.environ['WRAPPED'])\n", env=(f"PYTHON_EXEC={other}",))

    assert run.stdout[0] == b"1\n", run.stderr
    assert "PYTHON_EXEC" in run.of("warning")[0]["message"]


@pytest.mark.torch
def test_another_interpreter_may_be_named_as_on_a_command_line_and_runs_the_workers_alone(
    agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers' store is the agent's: a profiler or debugger around the workers is not put around it."""
    other = tmp_path / "bin/python-wrapper"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/wrapped\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:{os.environ['PATH']}")

    run = agents(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint(dist.get_world_size())\n",
        nproc_per_node="2", env=("PYTHON_EXEC=python-wrapper",),
    )  # fmt: skip

    assert run.result() == "success", run.cause()
    assert run.stdout[0] == b"2\n"
    assert [line.split()[0] for line in (tmp_path / "wrapped").read_text().splitlines()] == ["-u", "-u"]


def test_a_module_that_cannot_be_imported_is_named_with_its_interpreter(agents: Runner, tmp_path: Path) -> None:
    broken = agents(SHARED, preload=(preload(tmp_path, "raise OSError('libx.so: not found')\n"),))
    absent = agents(SHARED, preload=("no_such_module",))

    assert broken.cause()["message"] == f"{AGENT_PYTHON} cannot import marker: OSError: libx.so: not found"
    assert absent.cause()["message"].endswith("ModuleNotFoundError: No module named 'no_such_module'")
    assert {run.cause()["class"] for run in (broken, absent)} == {"node"}


@pytest.mark.torch
def test_a_broken_torch_is_reported_with_its_reason_on_every_node(agents: Runner, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")

    run = agents("import torch\n", nodes="2")

    assert run.result() == "failed"
    assert run.cause()["message"].endswith(
        "cannot import torch: ImportError: libcudart.so.12: cannot open shared object file"
    )


def test_a_syntax_error_is_reported_once_and_starts_no_worker(agents: Runner) -> None:
    run = agents("print('x')\ndef f(:\n", nproc_per_node="4")

    assert run.result() == "failed"
    assert run.worker_pids() == []
    assert run.cause()["message"].startswith("SyntaxError: invalid syntax (script0.py, line 2), says Python 3.")
    assert run.cause()["class"] == "user_code"


@pytest.mark.torch
def test_forked_workers_share_the_memory_of_the_imports(warm_agents: Runner) -> None:
    run = warm_agents.start("import torch, time\nprint('ready', flush=True)\ntime.sleep(600)\n", nproc_per_node="4")
    run.until(lambda: len(run.stdout) == 4)

    own = [psutil.Process(pid).memory_full_info().uss for pid in run.worker_pids()]
    run.backend.cancel(run.handle)
    run.wait()

    assert max(own) < 60 << 20, own  # a process that imported torch itself has over 200 MB of its own


LIMIT = "import resource, time\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)\ntime.sleep(600)\n"


def test_workers_keep_their_limit_of_files_and_the_runs_store_has_room_for_all_nodes(agents: Runner) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    python = agents.directory / "limited"  # this process may have more open itself
    python.write_text(f'#!/bin/sh\nulimit -Sn 256\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    run = agents.start(LIMIT, nodes="2", python=str(python))
    run.until(lambda: len(run.stdout) == 2)

    assert list(run.stdout.values()) == [b"256\n"] * 2
    limits = [sorted(process.rlimit(psutil.RLIMIT_NOFILE)[0] for process in run.processes(node)) for node in (0, 1)]
    assert limits[0] == [256, 256, 2 + 258 + 64, hard], "fork server, worker, the process that serves the store, agent"
    assert limits[1] == [256, 256, 256, hard]


ALL_AT_ONCE = """
import glob, os, resource, time
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
open("up" + os.environ["RANK"], "w").close()
while len(glob.glob("up*")) < 32:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("hard", [40, 4096])
def test_an_agent_that_lacks_file_descriptors_for_its_workers_reports_it_itself(agents: Runner, hard: int) -> None:
    (agents.directory / "says.py").write_text(ALL_AT_ONCE)
    python = agents.directory / "limited"
    python.write_text(f'#!/bin/sh\nulimit -Sn 40\nulimit -Hn {hard}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    run = agents(agents.directory / "says.py", nproc_per_node="32", python=str(python))

    if hard > 40:
        assert run.result() == "success"
        assert list(run.stdout.values()) == [b"40\n"] * 32
    else:
        assert run.result() == "failed"
        assert run.cause()["class"] == "node"
        assert "no file descriptors are left" in run.cause()["message"]


def test_one_rule_sets_the_threads_for_any_number_of_workers_and_is_reported(agents: Runner) -> None:
    text = "import os\nprint(os.environ.get('OMP_NUM_THREADS'))\n"

    one, two = agents(text), agents(text, nproc_per_node="2")
    given = agents(text, nproc_per_node="2", env=("OMP_NUM_THREADS=3",))

    assert [run.stdout[0] for run in (one, two, given)] == [b"None\n", b"1\n", b"3\n"]
    told = [run.of("host_facts")[0]["threads"] for run in (one, two, given)]
    assert [each["value"] for each in told] == [None, "1", "3"]
    assert [each["reason"].rpartition(": ")[2] for each in told] == [
        "torchrun's rule",
        "torchrun's rule",
        "as it was set",
    ]
