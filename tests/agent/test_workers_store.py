"""The store of the workers: who serves it, from when to when, and what becomes of a run whose store is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.harness import alive

if TYPE_CHECKING:
    from tests.agent.harness import Run, Runner

ROUNDS = """
import os, sys, torch, torch.distributed as dist
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
key = "left by the first round"
print(store.check([key]), os.environ["TORCHELASTIC_USE_AGENT_STORE"], flush=True)
dist.barrier()
store.set(key, "1")
dist.barrier()
sys.exit(first)
"""

WAITS = """
import time, torch.distributed as dist
dist.init_process_group("gloo")
print("up", flush=True)
time.sleep(600)
"""


def serving(run: Run) -> list[int]:
    """The processes that serve a store for this run's workers."""
    (server,) = children(run.agent_pid())
    return [pid for pid in children(server) if b"--workers-store" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.torch
def test_every_round_has_a_port_and_a_store_of_its_own(warm_agents: Runner) -> None:
    run = warm_agents(ROUNDS, nproc_per_node="2", max_restarts=1)

    assert run.result() == "success", run.stderr
    assert {bytes(lines) for lines in run.stdout.values()} == {b"False True\nFalse True\n"}
    ports = [fields["master_port"] for fields in run.of("rendezvous")]
    assert len(set(ports)) == len(ports) == 2
    for port in ports:
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", port)), "nothing is left of it"


@pytest.mark.torch
@pytest.mark.parametrize("restarts", [0, 2])
def test_a_store_that_is_killed_ends_the_run_and_is_named(warm_agents: Runner, restarts: int) -> None:
    run = warm_agents.start(WAITS, nproc_per_node="2", max_restarts=restarts)
    run.until(lambda: len(run.stdout) == 2)
    (pid,) = serving(run)

    os.kill(pid, signal.SIGTERM)  # as a scheduler signals every process: it is for the workers alone
    os.kill(pid, signal.SIGKILL)
    run.wait()

    assert run.result() == "failed"
    message = run.cause()["message"]
    assert message.startswith("the process that serves the workers' store")
    assert "SIGKILL" in message
    assert not any(alive(pid) for pid in run.worker_pids())


def test_who_needs_no_torch_has_no_such_process(agents: Runner, tmp_path: Path) -> None:
    text = "import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
    run = agents.start(text, str(tmp_path / "go"))
    run.until(lambda: run.stdout)
    found = serving(run)
    (tmp_path / "go").touch()

    assert run.wait().result() == "success"
    assert found == []


def test_where_the_node_has_no_torch_rank_0_may_serve_a_store_of_its_own(agents: Runner) -> None:
    python = str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False, timeout=120).returncode == 0:
        pytest.skip("every Python here has torch")
    run = agents(
        "import os, socket\n"
        "with socket.socket() as server:\n"
        "    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "    server.bind(('', int(os.environ['MASTER_PORT']))), server.listen()\n"
        "print(os.environ['TORCHELASTIC_USE_AGENT_STORE'])\n",
        python=python,
    )  # fmt: skip

    assert run.result() == "success", run.stderr
    assert run.stdout[0] == b"False\n"
