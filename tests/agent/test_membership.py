"""Nodes that come late, have finished or are lost: the others know, and none waits in vain."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.network import ports
from launcher.agent.ssh import run as host_run
from testbed import wait_until
from tests.agent.harness import all_exited
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.harness import Run, Runner

pytestmark = pytest.mark.torch

QUICK = "import os\nprint(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"

WAITS = """
import os, sys, time
print(os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while os.environ["NODE"] == "1" and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
"""Node 0 finishes at once, node 1 once that file exists."""

NODES = {"node_env": [{"NODE": str(node)} for node in range(3)]}
"""Variables that tell a script which node it is on."""

SOON = {"last_call_s": 1.0, "heartbeat_s": 1.0, **NODES}


def by_node(run: Run, name: str) -> dict[int, list[dict[str, Any]]]:
    """The events of that name, by node."""
    found: dict[int, list[dict[str, Any]]] = {}
    for node, event, fields in run.events:
        if event == name:
            found.setdefault(node, []).append(fields)
    return found


def test_a_node_that_comes_after_the_end_of_the_run_is_not_needed(warm_agents: Runner) -> None:
    run = warm_agents.start(QUICK, nodes="2:3", late=2, request=SOON)
    run.until(lambda: len(run.of("done")) == 2)
    run.resume(2)

    run.wait()

    assert run.result() == "success"
    assert sorted(run.stdout.values()) == [b"0 of 2\n", b"1 of 2\n"]
    assert set(by_node(run, "rendezvous")) == {0, 1}


def test_a_node_that_comes_when_another_has_finished_restarts_no_worker(warm_agents: Runner) -> None:
    run = warm_agents.start(WAITS, str(warm_agents.directory / "go"), nodes="2:3", late=2, request=SOON)
    run.until(lambda: run.of("worker_exited"))
    run.resume(2)
    run.until(lambda: 2 in by_node(run, "host_facts"))
    run.until(lambda: len(by_node(run, "heartbeat").get(2, [])) == 2)  # it waits, and the others have seen it
    (warm_agents.directory / "go").touch()

    run.wait()

    assert run.result() == "success"
    assert sorted(run.stdout.values()) == [b"0 of 2\n", b"1 of 2\n"]
    assert "the run ended before it joined" in by_node(run, "warning")[2][0]["message"]


def test_when_one_node_fails_those_that_have_finished_start_again_too(warm_agents: Runner) -> None:
    fails = WAITS + "first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
    fails += "sys.exit(3 if first and os.environ['NODE'] == '1' else 0)\n"
    options: dict[str, Any] = {"max_restarts": 1, "request": SOON}
    where = str(warm_agents.directory / "go")
    runs = [
        warm_agents.start(fails, where, nodes=nodes, late=late, **options) for nodes, late in (("2", None), ("2:3", 2))
    ]
    for run in runs:
        run.until(partial(run.of, "worker_exited"))
    (warm_agents.directory / "go").touch()
    runs[0].wait()
    runs[1].until(lambda: len(runs[1].of("done")) == 2)
    runs[1].resume(2)

    for run in runs:
        run.wait()
        assert run.result() == "success", run.events
        assert sorted(b"".join(run.stdout.values()).splitlines()) == [b"0 of 2", b"0 of 2", b"1 of 2", b"1 of 2"]


def test_a_node_that_has_finished_continues_without_a_lost_one(warm_agents: Runner) -> None:
    run = warm_agents.start(
        WAITS, str(warm_agents.directory / "go"), nodes="1:2", request={"peer_timeout_s": 3, **NODES}
    )
    run.until(lambda: run.of("worker_exited") and len(run.stdout) == 2)

    os.kill(run.agent_pid(1), signal.SIGKILL)
    run.wait()

    assert [fields["result"] for fields in run.of("done")] == ["success"]
    assert b"0 of 1" in run.stdout[0], "what the lost node had not done is done by the rest"


def test_a_node_that_is_lost_after_it_has_finished_restarts_no_worker(warm_agents: Runner) -> None:
    script = WAITS.replace('["NODE"] == "1"', '["NODE"] == "0"')
    where = warm_agents.directory / "go"
    run = warm_agents.start(script, str(where), nodes="1:2", request=NODES)
    run.until(lambda: 1 in by_node(run, "worker_exited") and len(run.stdout) == 2)

    os.kill(run.agent_pid(1), signal.SIGKILL)
    run.until(lambda: run.of("failure"))
    where.touch()
    run.wait()

    assert [fields["result"] for fields in run.of("done")] == ["success"]
    assert run.stdout[0] == b"0 of 2\n", "node 0 was writing its last checkpoint, for example"


def test_a_node_whose_agent_is_killed_leaves_at_once(warm_agents: Runner) -> None:
    """Its silence would be noticed only after ten minutes."""
    run = warm_agents.start(
        WAITS, str(warm_agents.directory / "go"), nodes="1:2", request={"peer_timeout_s": 600.0, **NODES}
    )
    run.until(lambda: len(run.stdout) == 2)

    os.kill(run.agent_pid(1), signal.SIGKILL)
    run.until(lambda: b"0 of 1" in run.stdout[0])
    (warm_agents.directory / "go").touch()
    run.wait()

    assert [fields["result"] for fields in run.of("done")] == ["success"]
    assert run.of("failure")[0]["cause"]["message"] == f"the agent (pid {run.agent_pid(1)}) was killed by SIGKILL"


def test_the_trainer_keeps_what_it_has_learnt_when_a_node_joins(warm_agents: Runner, tmp_path: Path) -> None:
    """With --resume never, which is for the first start."""
    argv = ["--data", "synthetic", "--samples", "64", "--image-shape", "1x8x8", "--batch-size", "16"]
    argv += ["--epochs", "1000000", "--checkpoint-steps", "1", "--report", "none", "--resume", "never"]
    argv += ["--out", str(tmp_path / "out")]
    run = warm_agents.start(ROOT / "train/train.py", *argv, nodes="1:2", late=1, request=SOON)
    run.until(lambda: list(tmp_path.glob("out/checkpoint-*.pt")))

    run.resume(1)

    together = re.compile(rb"^2 ranks, .*\n(.+)\n", re.MULTILINE)
    run.until(lambda: together.search(run.stdout[0]))
    assert together.findall(run.stdout[0])[0].startswith(b"resumed from ")


def test_an_elastic_run_ends_with_node_0_and_names_it(warm_agents: Runner) -> None:
    run = warm_agents.start("import time\nprint('up', flush=True)\ntime.sleep(600)\n", nodes="1:2")
    run.until(lambda: len(run.stdout) == 2)

    os.kill(run.agent_pid(0), signal.SIGKILL)
    run.wait()

    assert [fields["result"] for fields in run.of("done")] == ["failed"]
    assert run.cause()["message"] == f"the agent (pid {run.agent_pid(0)}) was killed by SIGKILL"
    assert run.cause()["node"] == 0


def at_an_address() -> dict[str, Any]:
    """Node 0 is where it is over SSH: at an address and a port that all nodes are given."""
    with ports.reserve() as sock:
        return {"rendezvous": {"addr": "127.0.0.1", "port": ports.port_of(sock)}}


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def test_over_ssh_too_a_node_that_comes_after_the_end_of_the_run_is_not_needed(warm_agents: Runner) -> None:
    place = at_an_address()
    run = warm_agents.start(QUICK, nodes="2:3", late=(1, 2), request={**SOON, **place})
    wait_until("node 0 to listen, which is started first there", lambda: listens(place["rendezvous"]["port"]))
    run.resume(1)
    run.until(lambda: len(run.of("done")) == 2)
    run.resume(2)

    run.wait()

    assert run.result() == "success"
    assert set(by_node(run, "rendezvous")) == {0, 1}


def test_over_ssh_no_node_waits_for_a_node_0_that_has_exited(warm_agents: Runner) -> None:
    run = warm_agents.start(QUICK, nodes="2", late=1, request=at_an_address())
    os.kill(run.agent_pid(0), signal.SIGKILL)
    assert all_exited(run.agent_pid(0))
    run.resume(1)

    run.wait()

    assert [fields["cause"]["message"] for fields in run.of("done")] == ["the agent of node 0 has exited"]


def test_a_start_over_ssh_in_the_same_directory_forgets_how_the_previous_one_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "nodes/0"
    own.mkdir(parents=True)
    for name in ("rendezvous.json", "rendezvous.json.end"):
        (own / name).write_text("{}")
    monkeypatch.setattr(host_run, "_spawn", lambda *_: {"pid": 1})
    monkeypatch.setattr(host_run, "_told", lambda *_: {"files": sorted(path.name for path in own.iterdir())})
    about = {"directory": str(tmp_path), "node_rank": 0, "workers": 1, "job": {}, "key": "k", "cwd": str(tmp_path)}

    answer = host_run.start(about)

    assert answer["files"] == ["key", "request.json", "spec.json"]
    assert (own / "key").stat().st_mode & 0o777 == 0o600
