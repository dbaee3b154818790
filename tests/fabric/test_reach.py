"""Nodes find the addresses by which they reach one another, on hosts with docker bridges, dead subnets or IPv6 only."""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.group import exploring
from launcher.agent.network import reach, routes
from tests.command import ROOT

if TYPE_CHECKING:
    from tests.fabric.conftest import Nodes

SUM = """
import os, socket
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(value)
print(int(value), os.environ.get("GLOO_SOCKET_IFNAME"), os.environ["MASTER_ADDR"])
dist.destroy_process_group()
"""


def named(events: list[dict[str, Any]], name: str = "fabric") -> list[dict[str, Any]]:
    """The events of that name."""
    return [event for event in events if event["event"] == name]


def test_where_the_default_is_right_nothing_is_set(nodes: Nodes) -> None:
    for host in nodes.hosts:
        nodes.bridge(host, "docker0", "172.17.0.1/16")

    found = named(nodes.run(SUM))

    assert [event["interfaces"] for event in found] == [["eth0"]] * 3
    assert [[v["name"] for v in event["variables"] if v["source"] == "chosen"] for event in found] == [
        ["UCX_NET_DEVICES"]
    ] * 3
    assert nodes.output == [f"6 None {nodes.hosts[0].address}"] * 3


def test_docker_bridges_a_dead_subnet_and_names_that_mean_loopback(nodes: Nodes) -> None:
    for number, host in enumerate(nodes.hosts):
        nodes.bridge(host, "docker0", "172.17.0.1/16")
        # All in one subnet, none connected.
        nodes.second_link(host, "aaa0", f"10.88.0.{number + 1}/24", bridge=f"apart{number}")
        host.run(("mount", "--bind", str(nodes.hosts_file(host.name)), "/etc/hosts"), check=True, cwd="/")

    found = named(nodes.run(SUM))

    assert [event["interfaces"] for event in found] == [["eth0"]] * 3
    gloo = [next(v for v in event["variables"] if v["name"] == "GLOO_SOCKET_IFNAME") for event in found]
    assert {(v["value"], v["source"]) for v in gloo} == {("eth0", "chosen")}
    assert "all 2 peers reach this node at eth0" in gloo[0]["reason"]
    assert nodes.output == [f"6 eth0 {nodes.hosts[0].address}"] * 3

    found = named(nodes.run(SUM, "elastic", min_nodes=3, max_nodes=4, last_call_s=1))

    assert [event["interfaces"] for event in found] == [["eth0"]] * 3
    assert {v["reason"] for event in found for v in event["variables"] if v["name"] == "GLOO_SOCKET_IFNAME"} == {
        gloo[0]["reason"]
    }
    assert {line.rpartition(" ")[0] for line in nodes.output} == {"6 eth0"}
    assert {line.rpartition(" ")[2] for line in nodes.output} <= {host.address for host in nodes.hosts}


def test_torchrun_may_be_started_once_per_host(nodes: Nodes) -> None:
    """In any order, with bridges that have the same address everywhere, and names that mean loopback."""
    for host in nodes.hosts:
        nodes.bridge(host, "docker0", "172.17.0.1/16")
        host.run(("mount", "--bind", str(nodes.hosts_file(host.name)), "/etc/hosts"), check=True, cwd="/")
    first = nodes.hosts[1].address
    c10d = ["--nnodes=3", "--rdzv-backend=c10d", "--rdzv-endpoint", f"{first}:29876", "--rdzv-id=mine"]

    said = nodes.torchrun(SUM, c10d, (0, 2, 1))

    assert [line for each in said for line in each.splitlines() if line.startswith("6 ")] == [f"6 eth0 {first}"] * 3

    static = ["--nnodes=3", "--node-rank={rank}", "--master-addr", nodes.hosts[0].address]
    said = nodes.torchrun("import os; print('rank', os.environ['RANK'])", static, (2, 0, 1), name="static")

    assert [each.splitlines()[-1] for each in said] == ["rank 0", "rank 1", "rank 2"]


def test_ipv6_only(nodes: Nodes) -> None:
    nodes.only_ipv6()

    found = named(nodes.run(SUM))

    assert [event["interfaces"] for event in found] == [["eth0"]] * 3
    assert nodes.output == ["6 eth0 fd00:77::1"] * 3


def test_hosts_whose_only_address_is_one_of_lo(nodes: Nodes) -> None:
    """As with BGP on the host: links between hosts have no addresses of their own."""
    nodes.only_on_lo()

    found = named(nodes.run(SUM))

    assert [event["interfaces"] for event in found] == [["lo"]] * 3
    assert nodes.output == [f"6 None {nodes.hosts[0].address}"] * 3

    static = ["--nnodes=3", "--node-rank={rank}", "--master-addr", nodes.hosts[0].address]
    said = nodes.torchrun("import os; print('rank', os.environ['RANK'])", static, (2, 0, 1), name="static")

    assert [each.splitlines()[-1] for each in said] == ["rank 0", "rank 1", "rank 2"]


def test_an_address_of_lo_comes_after_those_of_interfaces(nodes: Nodes) -> None:
    for number, host in enumerate(nodes.hosts):
        nodes.ip(host, f"address add 10.66.0.{number + 1}/32 dev lo", "address add 10.66.9.9/32 dev lo")
        host.run(("mount", "--bind", str(nodes.hosts_file(host.name)), "/etc/hosts"), check=True, cwd="/")

    found = named(nodes.run(SUM))

    assert [event["interfaces"] for event in found] == [["eth0"]] * 3
    assert nodes.output == [f"6 eth0 {nodes.hosts[0].address}"] * 3


def test_peers_try_no_addresses_of_an_interface_that_is_down(nodes: Nodes) -> None:
    """As where kube-proxy puts the addresses of all services."""
    host = nodes.hosts[0]
    services = [f"address add 10.96.{number // 256}.{number % 256}/32 dev kube-ipvs0" for number in range(300)]
    nodes.ip(host, "link add kube-ipvs0 type bridge", *services)
    code = "from launcher.agent.network import routes; print(*routes.candidates('localhost'))"

    told = host.run((sys.executable, "-c", code), check=True, cwd=str(ROOT)).stdout.split()

    assert told == [host.address]


def test_what_the_user_set_is_not_touched(nodes: Nodes) -> None:
    for number, host in enumerate(nodes.hosts):
        nodes.second_link(host, "rail0", f"10.99.0.{number + 1}/24", bridge="rail")

    found = named(nodes.run(SUM, env={"GLOO_SOCKET_IFNAME": "rail0"}))

    assert [line.split()[1] for line in nodes.output] == ["rail0"] * 3
    assert [v for event in found for v in event["variables"] if v["name"] == "GLOO_SOCKET_IFNAME"] == [
        {"name": "GLOO_SOCKET_IFNAME", "value": "rail0", "source": "--env", "reason": "set by you"}
    ] * 3
    assert {name for event in found for name in event["interfaces"]} == {"eth0", "rail0"}


@pytest.mark.parametrize("count", [2, 3, 64, 65, 66, 1000])
def test_every_node_is_tried_by_another_and_none_tries_too_many(count: int) -> None:
    tried = [reach.partners(rank, count) for rank in range(count)]

    assert all(rank not in peers for rank, peers in enumerate(tried))
    assert {peer for peers in tried for peer in peers} == set(range(count))
    assert max(map(len, tried)) <= 64
    assert all(0 in peers for peers in tried[1:])


def test_a_host_that_answers_with_another_token_is_not_the_peer() -> None:
    answerer = reach.Answerer(b"right")
    try:
        right = reach.Target(1, "127.0.0.1", answerer.port, b"right")
        wrong = reach.Target(2, "127.0.0.1", answerer.port, b"other")
        six = reach.Target(3, "::1", answerer.port, b"right")
        absent = reach.Target(4, "127.0.0.1", 1, b"right")
        found = reach.attempt([right, wrong, absent, *([six] if socket.has_ipv6 else [])], limit_s=30, settle_s=30)
    finally:
        answerer.close()

    assert right in found
    assert not {wrong, absent} & found


def test_a_peer_is_never_sought_at_an_address_of_our_own() -> None:
    about = {"addresses": ["10.0.0.2", "172.17.0.1"], "port": 5, "token": "t"}

    assert [target.address for target in reach.targets({1: about}, ["10.0.0.1", "172.17.0.1"])] == ["10.0.0.2"]
    same_host = reach.targets({1: about}, ["10.0.0.2", "172.17.0.1"])
    assert [target.address for target in same_host] == ["10.0.0.2", "172.17.0.1"]


def test_the_best_address_is_one_that_all_reach_else_one_that_most_reach() -> None:
    assert exploring.common(["a", "b", "c"], [[1, 0], [1], [1, 2]]) == ["b"]
    assert exploring.common(["y", "x"], [[], [1], [1, 0]]) == ["x"]
    assert exploring.common(["z"], [[], []]) == []


def test_the_first_that_is_reached_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_CONNECT_S", 3600.0)
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        for addresses in (["127.0.0.9", "127.0.0.1"], ["127.0.0.1", "127.0.0.9"]):
            assert routes.first_reachable(addresses, port) == addresses[0]
    with socket.socket() as closed:  # no other process listens there meanwhile
        closed.bind(("127.0.0.1", 0))
        assert routes.first_reachable(["127.0.0.1"], closed.getsockname()[1]) is None


def test_an_answer_that_comes_while_the_agent_is_stopped_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as peers:
        clock = itertools.count(0.0, 3600.0)

        def stopped() -> float:
            """Until the connection is made; then all limits are over."""
            now = next(clock)
            if not now:
                peers.enter_context(server.accept()[0])
            return now

        monkeypatch.setattr(reach, "time", SimpleNamespace(monotonic=stopped))
        assert routes.first_reachable(["127.0.0.1"], server.getsockname()[1]) == "127.0.0.1"


def test_a_starved_peer_is_waited_for_once_a_connection_to_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_STARVED_S", 3600.0)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        target = reach.Target(1, "127.0.0.1", server.getsockname()[1], b"right")
        found = pool.submit(reach.attempt, [target], limit_s=1.0)
        peer, _ = server.accept()
        with peer:
            assert wait([found], 2.0).not_done, "longer than its limit"
            peer.sendall(b"right")
        assert found.result() == {target}


def test_an_address_that_does_not_answer_is_not_waited_for_once_another_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_CONNECT_S", 3600.0)  # waiting for it would run into the test's own limit
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_server(("127.0.0.9", port), backlog=0), contextlib.ExitStack() as clients:
            for _ in range(8):  # its queue is full: the kernel drops what else comes
                client = clients.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.9", port))
            assert routes.first_reachable(["127.0.0.9", "127.0.0.1"], port) == "127.0.0.1"


def test_a_node_answers_again_once_it_has_files_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scarce(socket.socket):
        """A listener whose process has no file descriptor left at first."""

        left = 2

        def accept(self) -> tuple[socket.socket, Any]:
            Scarce.left -= 1
            if Scarce.left >= 0:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    listener = Scarce()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    monkeypatch.setattr(socket, "create_server", lambda *_, **__: listener)
    answerer = reach.Answerer(b"token")
    target = reach.Target(1, "127.0.0.1", answerer.port, b"token")

    assert reach.attempt([target], limit_s=30) == {target}
    answerer.close()
