"""Nodes that an unknown scheduler has started, each by itself: how they meet, and what happens without one of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from launcher.agent.network import ports
from launcher.agent.store import client
from launcher.agent.store.interface import StoreError
from launcher.torchrun import meeting, options, request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.torchrun.node import Node

SEEN = """
import json, os, sys
names = ("RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
seen = json.dumps([{name: os.environ.get(name) for name in names}, sys.argv[1]])
sys.stdout.write(seen + "\\n")  # in one call, as others write too
"""
GROWS = """
import os, sys, time
world = os.environ["WORLD_SIZE"]
print("world", world, flush=True)
if world == sys.argv[1]:
    sys.exit(0)
time.sleep(600)
"""
SLEEPS = "import os, time; print('key' if 'DISTLAUNCH_KEY' in os.environ else 'up', flush=True); time.sleep(600)"
WAITS = """
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""
FAILS = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('boom')\ntime.sleep(600)"


def c10d(port: int, nodes: str, host: str = "localhost", run: str = "mine") -> list[str]:
    return ["--nnodes", nodes, "--rdzv-backend=c10d", "--rdzv-endpoint", f"{host}:{port}", "--rdzv-id", run]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_static_nodes_have_the_ranks_that_they_ask_for_in_whatever_order_they_come(
    start: Callable[..., Node], port: int, host: str
) -> None:
    options = ["--nnodes=2", "--nproc-per-node=2", "--master-addr", host, "--master-port", str(port)]
    late = start(SEEN, *options, "--node-rank=1", "x.py", "b")
    late.until(lambda: "waits for node 0" in late.err)
    first = start(SEEN, *options, "--node-rank=0", "x.py", "a")

    assert [first.wait(), late.wait()] == [0, 0], (first.err, late.err)
    lines = (json.loads(line) for node in (first, late) for line in node.out.splitlines())
    seen = sorted(lines, key=lambda each: each[0]["RANK"])
    assert [(about["RANK"], about["GROUP_RANK"], name) for about, name in seen] == [
        ("0", "0", "a"), ("1", "0", "a"), ("2", "1", "b"), ("3", "1", "b"),
    ]  # fmt: skip
    names = ("MASTER_ADDR", "TORCHELASTIC_RUN_ID", "WORLD_SIZE")
    assert {tuple(about[name] for name in names) for about, _ in seen} == {(host, "none", "4")}
    assert len({about["MASTER_PORT"] for about, _ in seen}) == 1


def test_each_node_may_know_node_0_by_another_address(start: Callable[..., Node], port: int) -> None:
    hosts = ["127.0.0.1", "127.0.0.2"]
    options = ["--nnodes=2", "--master-port", str(port)]
    nodes = [
        start(SEEN, *options, "--master-addr", host, f"--node-rank={rank}", "x.py", "a")
        for rank, host in enumerate(hosts)
    ]

    assert [node.wait() for node in nodes] == [0, 0], [node.err for node in nodes]
    assert [json.loads(node.out)[0]["MASTER_ADDR"] for node in nodes] == hosts


def test_node_0_chooses_the_address_by_which_it_is_reached(start: Callable[..., Node], port: int) -> None:
    nodes = [start(SEEN, *c10d(port, "2"), "--local-addr", f"127.0.0.{number}", "x.py", "a") for number in (5, 6)]

    assert [node.wait() for node in nodes] == [0, 0], [node.err for node in nodes]
    seen = {about["RANK"]: about["MASTER_ADDR"] for about in (json.loads(node.out)[0] for node in nodes)}
    assert seen["0"] == seen["1"]
    assert seen["0"] in ("127.0.0.5", "127.0.0.6")


def test_nodes_that_ask_for_no_rank_get_one_in_the_order_in_which_they_come(
    start: Callable[..., Node], port: int
) -> None:
    """By whatever name they know the first node."""
    nodes = [
        start(SEEN, *c10d(port, "3", host), "x.py", host) for host in ("localhost", "127.0.0.1", socket.gethostname())
    ]

    assert [node.wait() for node in nodes] == [0, 0, 0], [node.err for node in nodes]
    seen = [json.loads(node.out)[0] for node in nodes]
    assert sorted(about["RANK"] for about in seen) == ["0", "1", "2"]
    assert len({(about["MASTER_ADDR"], about["MASTER_PORT"]) for about in seen}) == 1
    assert {about["TORCHELASTIC_RUN_ID"] for about in seen} == {"mine"}


def leave_connections(port: int) -> None:
    """Leave the port as a server that has just exited does, for a minute (TIME_WAIT)."""
    with ports.listening(port) as server:
        client = socket.create_connection(("127.0.0.1", port))
        server.accept()[0].close()
        assert client.recv(1) == b""
        client.close()


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_a_run_may_follow_another_at_once_on_the_same_endpoint(
    start: Callable[..., Node], port: int, backend: str
) -> None:
    leave_connections(port)
    options = ["--nnodes=2", "--rdzv-backend", backend, "--rdzv-endpoint", f"127.0.0.1:{port}"]
    options += ["--rdzv-conf=timeout=45,join_timeout=45"]  # less than the minute for which the port is left so
    nodes = [start(SEEN, *options, f"--node-rank={rank}", "x.py", "a") for rank in range(2)]

    assert [node.wait() for node in nodes] == [0, 0], [node.err for node in nodes]


@pytest.mark.torch
def test_a_node_that_waits_for_node_0_becomes_it_once_the_port_is_free(start: Callable[..., Node], port: int) -> None:
    with ports.listening(port):
        node = start(SEEN, *c10d(port, "1:2"), "--rdzv-conf=last_call_timeout=1", "x.py", "a")
        node.until(lambda: "waits for node 0" in node.err)

    assert node.wait() == 0, node.err


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_a_second_run_waits_for_the_first(start: Callable[..., Node], port: int, backend: str, tmp_path: Path) -> None:
    options = ["--nnodes=2", "--rdzv-backend", backend, "--rdzv-endpoint", f"127.0.0.1:{port}"]
    options += ["x.py", str(tmp_path / "go")]
    first = [start(WAITS, f"--node-rank={rank}", *options) for rank in range(2)]
    first[0].until(lambda: all("up" in node.out for node in first))
    second = [start(WAITS, f"--node-rank={rank}", *options) for rank in range(2)]
    second[0].until(lambda: all("distlaunch: waits for " in node.err for node in second))
    (tmp_path / "go").touch()

    assert [node.wait() for node in (*first, *second)] == [0] * 4, [node.err for node in second]
    assert all("up" in node.out for node in second)


def test_a_node_that_waits_looks_often_whether_the_port_is_free_and_once_more_at_the_end(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    other, waits = ports.listening(port), [0.0]

    class Silent:
        def __init__(self, *_: object, timeout_s: float, **__: object) -> None:
            waits.append(timeout_s)
            if sum(waits) >= 600:
                other.close()
            raise StoreError("it does not answer")

    monkeypatch.setattr(client, "Client", Silent)
    monkeypatch.setattr(meeting, "time", SimpleNamespace(monotonic=lambda: sum(waits)))
    asked = request.of(options.parse([*c10d(port, "2"), "x.py"], {}), {}, python=sys.executable, say=print)

    place = meeting.c10d(asked, print)

    os.close(place.meets["fd"])
    assert place.node_rank == 0
    assert max(waits) <= 10


def test_a_node_that_does_not_know_the_run_has_no_say_in_it(start: Callable[..., Node], port: int) -> None:
    first = start(SLEEPS, *c10d(port, "2"), "x.py", env={"DISTLAUNCH_KEY": "k" * 32})
    first.until(first.left)
    conf = ["--rdzv-conf", "join_timeout=3"]
    stranger = start(SLEEPS, *c10d(port, "2"), *conf, "x.py")
    other = start(SLEEPS, *c10d(port, "2", run="another"), *conf, "x.py")

    for node in (stranger, other):
        assert node.wait() == 1
        assert f"node 0 did not answer at localhost:{port} in 3 s" in node.err
        assert "--rdzv-id" in node.err
    friend = start(SLEEPS, *c10d(port, "2"), "x.py", env={"DISTLAUNCH_KEY": "k" * 32})
    friend.until(lambda: "up" in friend.out and "up" in first.out)


@pytest.mark.parametrize("options", [
    ["--rdzv-backend=c10d", "--rdzv-conf", "join_timeout=3"], ["--rdzv-backend=static", "--rdzv-conf=timeout=10"],
])  # fmt: skip
def test_a_node_that_does_not_come_is_waited_for_until_the_limit_and_then_named(
    start: Callable[..., Node], port: int, options: list[str]
) -> None:
    node = start(SEEN, "--nnodes=2", "--rdzv-endpoint", f"127.0.0.1:{port}", *options, "x.py", "a")

    assert node.wait() == 1
    assert "missing: node 1" in node.err
    assert node.left() == []


@pytest.mark.torch
@pytest.mark.parametrize("nodes", [["--nnodes=2:3"], ["--nnodes=2", "--max-restarts=1"]])
def test_a_node_that_others_may_join_later_also_reports_what_it_waits_for(
    start: Callable[..., Node], port: int, nodes: list[str]
) -> None:
    options = ["--rdzv-backend=c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "join_timeout=10"]
    node = start(SEEN, *nodes, *options, "x.py", "a")

    assert node.wait() == 1
    assert "waits for 2 nodes, of which 1 is there, for at most 10 s" in node.err
    assert "waited 10 s for 2 nodes: fewer have come" in node.err


def test_a_failure_on_one_node_is_reported_on_all(start: Callable[..., Node], port: int) -> None:
    nodes = [start(FAILS, *c10d(port, "2"), "x.py") for _ in range(2)]

    assert [node.wait() for node in nodes] == [1, 1]
    assert all("first failure: rank 1" in node.err and "ValueError: boom" in node.err for node in nodes)
    assert nodes[0].left() == []


def test_a_signal_to_one_node_is_reported_on_the_others_as_that_nodes(start: Callable[..., Node], port: int) -> None:
    options = ["--nnodes=2", "--master-port", str(port)]
    nodes = [start(SLEEPS, *options, f"--node-rank={rank}", "x.py") for rank in range(2)]
    nodes[0].until(lambda: all("up" in node.out for node in nodes))

    nodes[1].process.terminate()

    assert [node.wait() for node in nodes] == [1, 1]
    assert f"ended by SIGTERM on node 1, {socket.gethostname()}\n" in nodes[0].err
    assert "ended by SIGTERM\n" in nodes[1].err


def met_later(start: Callable[..., Node], port: int) -> tuple[list[str], Node, Node]:
    """A node alone, and one that has joined it; with the options of both."""
    options = [*c10d(port, "1:2"), "--rdzv-conf", "last_call_timeout=1", "x.py", "3"]
    first = start(GROWS, *options)
    first.until(lambda: "world 1" in first.out)
    second = start(GROWS, *options)
    first.until(lambda: "world 2" in first.out)
    return options, first, second


def test_a_late_node_joins_an_elastic_run_which_continues_when_it_leaves(start: Callable[..., Node], port: int) -> None:
    _, first, second = met_later(start, port)
    alone = first.out.count("world 1")  # once, or more often where the second was late to a round

    os.kill(second.process.pid, signal.SIGTERM)

    assert second.wait() == 1
    first.until(lambda: first.out.count("world 1") > alone)
    assert first.process.poll() is None


def test_a_node_too_many_waits_for_a_place_and_may_leave_again(start: Callable[..., Node], port: int) -> None:
    options, first, second = met_later(start, port)
    third = start(GROWS, *options)
    third.until(lambda: "waits for a place: the run has its 2 nodes\n" in third.err)

    os.kill(second.process.pid, signal.SIGTERM)

    third.until(lambda: "world 2" in third.out)
    alone = first.out.count("world 1")
    os.kill(third.process.pid, signal.SIGKILL)
    first.until(lambda: first.out.count("world 1") > alone)


def test_a_spare_node_of_a_run_that_ends_is_not_needed_and_says_how_it_would_be_a_run_of_its_own(
    start: Callable[..., Node], port: int, tmp_path: Path
) -> None:
    options = [*c10d(port, "2"), "--max-restarts=1", "x.py", str(tmp_path / "go")]
    nodes = [start(WAITS, *options) for _ in range(2)]
    nodes[0].until(lambda: all("up" in node.out for node in nodes))
    spare = start(WAITS, *options)
    spare.until(lambda: "waits for a place" in spare.err)
    (tmp_path / "go").touch()

    assert [node.wait() for node in (*nodes, spare)] == [0] * 3, spare.err  # torchrun's spare node exits with 1
    assert "this node is not needed" in spare.err
    assert "--rdzv-id" in spare.err
