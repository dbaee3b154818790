"""The workers' store: which process serves it, for how long, and what happens to a run whose store is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.harness import alive

if TYPE_CHECKING:
    from tests.agent.harness import Run, Runner

ROUNDS = """
import contextlib, os, sys, torch, torch.distributed as dist
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
key = "left by the first round"
server = os.getppid()
for pid in open(f"/proc/{server}/task/{server}/children").read().split():
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as cmdline, open(sys.argv[1], "a") as served:
        served.write(f"{pid}\\n" * ("--workers-store" in cmdline.read()))
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


EARLY = """
import operator, os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist, torch.distributed.rpc as rpc
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
others = range(1, world)

def ranks(group=None):
    ones = torch.ones(1)
    dist.all_reduce(ones, group=group)
    return int(ones)

own = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False, timedelta(seconds=600))
own.set(f"own/{rank}", str(os.getpid()))
own.wait([f"own/{r}" for r in range(world)])
dist.init_process_group("gloo", store=dist.PrefixStore("first", own), rank=rank, world_size=world)
said = [ranks()]
time.sleep(0.1)  # before torch 2.8, gloo hangs if its thread still needs the GIL (train/comm/leave.py)
dist.destroy_process_group()
dist.init_process_group("gloo")
said.append(ranks())
rpc.init_rpc(f"w{rank}", rank=rank, world_size=world)
said.append(rpc.rpc_sync(f"w{(rank + 1) % world}", operator.add, args=(rank, 1)))
dist.barrier()
if rank == 0:
    rpc.shutdown(graceful=False)
    sys.exit()
while os.path.exists(f"/proc/{int(own.get('own/0'))}"):
    time.sleep(0.02)
said.append(rpc.rpc_sync(f"w{rank % len(others) + 1}", operator.add, args=(rank, 10)))
store = dist.distributed_c10d._get_default_store()
said.append(ranks(dist.new_group(others, use_local_synchronization=True)))
store.add("through", 1)
while store.add("through", 0) < len(others):
    time.sleep(0.02)
rpc.shutdown(graceful=False)
print(rank, *said, os.environ["TORCHELASTIC_USE_AGENT_STORE"], flush=True)
"""
"""Own clients, a second group, RPC; rank 0 ends early, and the others continue with the default store."""


def serving(run: Run) -> list[int]:
    """The processes that serve a store for this run's workers."""
    (server,) = children(run.agent_pid())
    return [pid for pid in children(server) if b"--workers-store" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.torch
def test_every_round_has_a_port_and_a_store_of_its_own(warm_agents: Runner, tmp_path: Path) -> None:
    run = warm_agents(ROUNDS, str(tmp_path / "served"), nproc_per_node="2", max_restarts=1)

    assert run.result() == "success", run.stderr
    assert {bytes(lines) for lines in run.stdout.values()} == {b"False True\nFalse True\n"}
    ports = [fields["master_port"] for fields in run.of("rendezvous")]
    assert len(set(ports)) == len(ports) == 2
    served = {int(pid) for pid in (tmp_path / "served").read_text().split()}
    assert len(served) == 2
    assert not any(alive(pid) for pid in served), "nothing is left of it"  # another may listen at its port by now


@pytest.mark.torch
@pytest.mark.parametrize(
    "options",
    [
        {"nodes": "2", "nproc_per_node": "2"},
        {"nodes": "1:2", "nproc_per_node": "2"},
        {"nproc_per_node": "4", "start_method": "spawn"},
    ],
    ids=["two nodes", "elastic", "spawned"],
)
def test_any_worker_may_be_a_client_and_rank_0_may_end_before_the_others(
    warm_agents: Runner, options: dict[str, str]
) -> None:
    run = warm_agents(EARLY, request={"last_call_s": 60.0}, **options)

    assert run.result() == "success", run.stderr
    assert dict(run.stdout) == {rank: f"{rank} 4 4 {rank + 1} {rank + 10} 3 True\n".encode() for rank in (1, 2, 3)}


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


@pytest.mark.torch
@pytest.mark.parametrize("restarts", [0, 1])
def test_workers_that_wait_for_the_store_print_nothing_about_a_failure_elsewhere(
    warm_agents: Runner, restarts: int
) -> None:
    text = (
        "import os, time\nfrom torch.distributed import TCPStore\n"
        "store = TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
        "store.add('there', 1)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    if os.environ['RANK'] == '0':\n"
        "        while store.add('there', 0) < 4:\n            time.sleep(0.05)\n"
        "        raise SystemExit(3)\n"
        "    store.wait(['never'])\n"
    )

    run = warm_agents(text, nodes="2", nproc_per_node="2", max_restarts=restarts)

    assert run.result() == ("success" if restarts else "failed")
    assert {rank: bytes(said) for rank, said in run.stderr.items() if rank > 1 and said} == {}


def test_a_run_that_needs_no_torch_has_no_process_for_the_store(agents: Runner, tmp_path: Path) -> None:
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
