"""Another user of the same host at a real run's ports: nothing that they do there affects the run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.agent.strangers import FLOODS, OWNED, Stranger, forged, listens_at, store_port, thief

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.harness import Run, Runner

WAITS = """
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("through", flush=True)
"""


@pytest.fixture
def flood() -> Iterator[Any]:
    """Starts floods, which end with the test."""
    running: list[Stranger] = []

    def start(port: int, said: list[bytes], held: int = 300) -> None:
        running.append(Stranger(FLOODS, str(held), port, said))
        assert running[-1].next_line() == "held\n"

    yield start
    for stranger in running:
        stranger.end()


def check_unharmed(run: Run) -> None:
    """The run has ended as if undisturbed, and reports the strangers in its own words."""
    assert run.result() == "success", (run.events, run.agent_stderr())
    assert {bytes(lines).split()[-1] for lines in run.stdout.values()} == {b"through"}
    assert {fields["restarts"] for fields in run.of("done")} == {0}
    told = [fields["message"] for fields in run.of("warning") if "run's store" in fields["message"]]
    assert len(told) == 2, told
    assert told[0].startswith(
        "the run's store has refused a connection from 127.0.0.1, which does not know the run's key"
    )
    assert int(told[1].split()[5]) > 200, "each of them is counted"
    assert not any("\x1b" in path.read_text() for path in run.directory.glob("nodes/*/stream"))
    assert run.agent_stderr().strip() == ""


def test_a_stranger_has_no_say_in_a_run_with_a_fixed_number_of_nodes(
    agents: Runner, flood: Any, tmp_path: Path
) -> None:
    run = agents.start(WAITS, str(tmp_path / "go"), nodes="2")
    run.until(lambda: len(run.stdout) == 2)
    port = store_port(run)
    assert listens_at(port) == {"0100007F"}, "on the loopback alone"

    flood(port, forged(run))
    (tmp_path / "go").touch()
    run.wait()

    check_unharmed(run)


@pytest.mark.torch
def test_a_stranger_has_no_say_in_an_elastic_run_and_runs_no_code_there(
    warm_agents: Runner, flood: Any, tmp_path: Path
) -> None:
    run = warm_agents.start(WAITS, str(tmp_path / "go"), nodes="1:2")
    run.until(lambda: len(run.stdout) == 2)
    port = store_port(run)
    assert listens_at(port) == {"0100007F"}

    try:
        flood(port, forged(run))
        (tmp_path / "go").touch()
        run.wait()
        assert not OWNED.exists(), "a stranger's pickle was read"
    finally:
        OWNED.unlink(missing_ok=True)

    check_unharmed(run)


@pytest.mark.torch
def test_strangers_that_connect_first_keep_no_node_out(warm_agents: Runner, flood: Any, tmp_path: Path) -> None:
    run = warm_agents.start(WAITS, str(tmp_path / "go"), nodes="2", late=1)
    flood(store_port(run), forged(run), 600)
    (tmp_path / "go").touch()

    run.resume(1)
    run.wait()

    check_unharmed(run)


TAKEN = re.compile(r"127\.0\.0\.1|0\.0\.0\.0|::$", re.MULTILINE)
"""Addresses at which a worker would reach the listener."""


ALL_REDUCE = """
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print(dist.get_world_size(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_no_other_user_gets_the_master_port_at_any_moment(warm_agents: Runner, start: str, tmp_path: Path) -> None:
    run = warm_agents.start(ALL_REDUCE, str(tmp_path / "go"), nproc_per_node="2", start_method=start)
    run.until(lambda: len(run.stdout) == 2)
    (port,) = {fields["master_port"] for fields in run.of("rendezvous")}

    assert listens_at(port) == {"0100007F"}, "before a worker asks for it, and on the loopback alone"
    assert not TAKEN.search(thief(port))
    (tmp_path / "go").touch()
    run.until(lambda: all(b"2\n" in run.stdout[rank] for rank in range(2)))
    assert not TAKEN.search(thief(port))
    run.wait()

    assert run.result() == "success", run.stderr
    assert len(run.of("rendezvous")) == 1, "no node had to try again"
