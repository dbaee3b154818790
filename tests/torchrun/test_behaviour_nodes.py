"""Side by side with torchrun: launchers that are started once per node and find one another."""

from __future__ import annotations

import os
import signal
import socket
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.torchrun import behaviour
from tests.torchrun.behaviour import WORKER, free_port, listened_on, of, signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torchrun.behaviour import Both, Play

    Played = Callable[[Callable[[Play], None]], Both]

pytestmark = pytest.mark.torch

RANKS = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
)


def ranks(play: Play) -> list[str]:
    """All variables about each worker's place, by round and rank."""
    return [" ".join(noted["env"][name] for name in ("TORCHELASTIC_RESTART_COUNT", *RANKS)) for noted in play.workers]


def of_world(play: Play, size: int) -> list[str]:
    """The ranks of workers that were given a world of that size."""
    return sorted(noted["env"]["RANK"] for noted in play.workers if noted["env"]["WORLD_SIZE"] == str(size))


def worlds(play: Play) -> list[str]:
    """The sizes of the world, one after the other; a late node may cause one more round of the previous size."""
    began = sorted(play.workers, key=lambda noted: float(noted["began"]))
    return [size for size, _ in groupby(noted["env"]["WORLD_SIZE"] for noted in began)]


def static(play: Play) -> None:
    """The second node first, with more workers than the other; neither has the other's output."""
    port = free_port()
    for node, workers in ((1, 2), (0, 1)):
        options = [
            f"--node_rank={node}",
            f"--nproc_per_node={workers}",
            "--master_addr=127.0.0.1",
            f"--master_port={port}",
        ]
        play.start("--nnodes=2", *options, WORKER, "say")


def test_two_nodes_have_the_ranks_that_they_were_given(played: Played) -> None:
    both = played(static)

    assert both.same(lambda play: play.codes) == [0, 0]
    assert both.same(ranks) == ["0 0 0 0 0 1 3 2 3", "0 1 0 1 1 2 3 2 3", "0 2 1 1 2 2 3 2 3"]


def test_each_launcher_shows_its_own_node(played: Played) -> None:
    found = played(static).same(lambda play: [sorted(ended.stdout.split("\n")) for ended in play.ended])

    assert found == [["", "out of 1", "out of 2"], ["", "out of 0"]]


def test_workers_of_both_nodes_have_one_address(played: Played) -> None:
    for play in played(static):
        assert len({(noted["env"]["MASTER_ADDR"], noted["env"]["MASTER_PORT"]) for noted in play.workers}) == 1


def one_static(play: Play) -> None:
    """A process on another host, which knows the address from the script, would connect to it."""
    port = free_port()
    play.start("--nnodes=1", "--master_addr=127.0.0.5", f"--master_port={port}", WORKER, "hold=x")
    play.until(1)
    socket.create_connection(("127.0.0.5", port)).close()
    assert of(play, "MASTER_PORT") == [[str(port)]]
    (play.seen / "x").touch()


def test_one_static_node_serves_its_workers_at_the_address_it_was_given(played: Played) -> None:
    both = played(one_static)

    assert both.same(lambda play: play.codes) == [0]
    assert both.same(lambda play: of(play, "MASTER_ADDR")) == [["127.0.0.5"]]


def c10d(play: Play, *options: str, steps: tuple[str, ...], nodes: int = 2) -> None:
    endpoint = f"--rdzv_endpoint=localhost:{free_port()}"
    for _ in range(nodes):
        play.start(f"--nnodes={nodes}", "--rdzv_backend=c10d", endpoint, "--rdzv_id=night", *options, WORKER, *steps)


def by_address(play: Play) -> None:
    """The node that comes first has the last address."""
    port = free_port()
    for host in (9, 8):
        options = ["--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint=localhost:{port}", "--rdzv_id=night"]
        play.start(*options, f"--local-addr=127.0.0.{host}", WORKER, f"node {host}")
        wait_until("the first node to listen", lambda: listened_on(port), limit_s=behaviour.LIMIT_S)


def test_ranks_of_c10d_are_in_the_order_of_arrival_and_not_of_addresses(played: Played) -> None:
    both = played(by_address)

    assert both.same(lambda play: play.codes) == [0, 0]
    names = [[noted["argv"][1] for noted in play.workers] for play in both]
    assert names == [["node 8", "node 9"], ["node 9", "node 8"]]


def restarted(play: Play) -> None:
    steps = ("3:hold=x", "0.0:meet=3", "0.0:see=1", "0.0:see=2", "0:fail=3")
    c10d(play, "--nproc_per_node=2", "--max_restarts=1", steps=steps)
    play.until(2, RANK="3")
    (play.seen / "x").touch()


def test_two_nodes_meet_and_start_again_after_a_failure(played: Played) -> None:
    """Both count the restart only on the node whose worker failed, as another might take part in the next round."""
    both = played(restarted)

    assert both.same(lambda play: play.codes) == [0, 0]
    assert both.same(lambda play: sorted(line.partition(" ")[2] for line in ranks(play))) == sorted(
        2 * [f"{node * 2 + rank} {rank} {node} {node * 2 + rank} 2 4 2 4" for node in range(2) for rank in range(2)]
    )
    assert both.same(lambda play: sorted(name for names in signals(play) for name in names)) == ["SIGTERM"]
    assert both.same(lambda play: {noted["env"]["TORCHELASTIC_RUN_ID"] for noted in play.workers}) == {"night"}
    assert both.same(lambda play: [line[0] for line in ranks(play)]) == ["0"] * 6 + ["1"] * 2


def failed(play: Play) -> None:
    port = free_port()
    for node in range(2):
        options = [f"--node_rank={node}", "--master_addr=127.0.0.1", f"--master_port={port}", "--nproc_per_node=2"]
        play.start("--nnodes=2", *options, WORKER, "0:hold=x", "1:hold=x", "2:meet=0", "2:meet=1", "2:exit=9", "3:hold")
    play.nodes[1].wait(behaviour.LIMIT_S)
    if play.engine == "torchrun":  # would wait for the other node for five minutes more
        play.kill()


def test_a_failure_on_one_node_ends_the_run_on_all(played: Played) -> None:
    """torchrun's other nodes continue until a collective fails; here they end at once, with the same cause."""
    both = played(failed)

    assert (both.theirs.codes, both.ours.codes) == ([-signal.SIGKILL, 1], [1, 1])
    assert signals(both.theirs)[:2] == [[], []]
    assert signals(both.ours)[:2] == [["SIGTERM"], ["SIGTERM"]]


def early(play: Play) -> None:
    """Node 1 succeeds while node 0 still works."""
    port = free_port()
    for node in range(2):
        options = [f"--node_rank={node}", "--master_addr=127.0.0.1", f"--master_port={port}"]
        play.start("--nnodes=2", *options, WORKER, "0:hold=x")
    play.until(1)
    play.until(1, what="pid", RANK="1")
    (play.seen / "x").touch()


def test_a_node_may_end_before_another(played: Played) -> None:
    both = played(early)

    assert both.same(lambda play: play.codes) == [0, 0]
    assert both.same(signals) == [[], []]


def alone(play: Play) -> None:
    conf = "--rdzv_conf=join_timeout=2,timeout=2,read_timeout=2"
    play.start("--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint=localhost:{free_port()}", conf, WORKER)


def alone_static(play: Play) -> None:
    play.start("--nnodes=2", "--rdzv_conf=timeout=2", f"--master_port={free_port()}", WORKER)


def second_alone(play: Play) -> None:
    conf = "--rdzv_conf=timeout=2,read_timeout=2,join_timeout=2"
    play.start("--nnodes=2", "--node_rank=1", conf, f"--master_port={free_port()}", WORKER)


@pytest.mark.parametrize("scene", [alone, alone_static, second_alone])
def test_nodes_that_do_not_come_are_not_waited_for_for_ever(played: Played, scene: Callable[[Play], None]) -> None:
    both = played(scene)

    assert both.same(lambda play: play.codes) == [1]
    assert both.same(ranks) == []
    assert both.ours.ended[0].stderr.strip()


def elastic(play: Play) -> None:
    """One node begins, a second joins it and leaves again; torchrun's first node only notices when its worker fails."""
    options = ["--nnodes=1:2", "--rdzv_backend=c10d", f"--rdzv_endpoint=localhost:{free_port()}", "--rdzv_id=e"]
    options += [
        "--rdzv_conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=10",
        "--max_restarts=3",
        WORKER,
    ]
    options += ["work=gone", "fail=1", "work=x"] if play.engine == "torchrun" else ["work=x"]
    # Else torchrun's later node waits for an address that is never announced.
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    play.start(*options, env=env)
    play.until(1, WORLD_SIZE="1")
    second = play.start(*options, env=env)
    for rank in range(2):
        play.until(1, WORLD_SIZE="2", RANK=str(rank))
    alone = sum(noted["env"]["WORLD_SIZE"] == "1" and "ready" in noted for noted in play.workers)
    second.send_signal(signal.SIGTERM)
    second.wait(behaviour.LIMIT_S)
    (play.seen / "gone").touch()
    play.until(alone + 1, WORLD_SIZE="1")
    (play.seen / "x").touch()


def test_a_node_joins_and_leaves(played: Played) -> None:
    both = played(elastic)

    assert both.same(lambda play: play.codes) == [0, 1]
    assert both.same(worlds) == ["1", "2", "1"]
    assert both.same(lambda play: set(of_world(play, 2))) == {"0", "1"}
    assert both.same(lambda play: set(of_world(play, 1))) == {"0"}


def replaced(play: Play) -> None:
    """One of two nodes is killed and started again; torchrun's other one only notices when its worker fails."""
    port = free_port()
    options = ["--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint=localhost:{port}", "--max_restarts=2"]
    options += ["--rdzv_conf=keep_alive_interval=1,keep_alive_max_attempt=10", WORKER]
    options += ["work=gone", "fail=1", "work=x"] if play.engine == "torchrun" else ["work=x"]
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    play.start(*options, env=env)
    wait_until("the first node to listen", lambda: listened_on(port), limit_s=behaviour.LIMIT_S)
    lost = play.start(*options, env=env)  # not the one that serves the store, whichever ranks they get
    play.until(2)
    left = next(noted for noted in play.workers if lost.pid in parents(noted["pid"]))
    lost.kill()
    lost.wait(behaviour.LIMIT_S)
    if play.engine == "torchrun":  # leaves its workers
        os.kill(left["pid"], signal.SIGKILL)
    (play.seen / "gone").touch()
    play.start(*options, env=env)
    play.until(4)
    (play.seen / "x").touch()


def parents(pid: int) -> list[int]:
    """The process and its ancestors, up to the first of all."""
    found = [pid]
    while found[-1] > 1:
        found.append(int(Path(f"/proc/{found[-1]}/stat").read_text().rpartition(")")[2].split()[1]))
    return found


def test_a_node_that_was_lost_may_be_replaced(played: Played) -> None:
    both = played(replaced)

    assert both.same(lambda play: sorted(play.codes)) == [-signal.SIGKILL, 0, 0]
    assert both.same(lambda play: of_world(play, 2)) == ["0", "0", "1", "1"]
