"""A worker group is restarted as one: every node, every time, without a trace of the round before."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from launcher.agent.network import ports
from launcher.runs import status
from launcher.runs.node_report import NodeReport
from tests.agent.harness import alive, all_exited

if TYPE_CHECKING:
    from tests.agent.harness import Runner

CRASH = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(count, int(total), flush=True)
dist.barrier()  # whoever crashes takes nobody along who has not printed yet
if count < int(sys.argv[1]) and dist.get_rank() == int(sys.argv[2]):
    os._exit(7)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_a_crash_on_any_node_restarts_all_of_them_until_it_works(warm_agents: Runner) -> None:
    run = warm_agents(CRASH, "3", "3", nodes="2", nproc_per_node="2", max_restarts=3)

    assert run.result() == "success", run.stderr
    assert dict(run.stdout) == dict.fromkeys(range(4), b"0 4\n1 4\n2 4\n3 4\n")
    assert [fields["restarts"] for fields in run.of("restart")] == [1, 2, 3]
    assert {fields["restarts"] for fields in run.of("done")} == {3}
    assert {(f["cause"]["rank"], f["cause"]["exit_code"]) for f in run.of("restart")} == {(3, 7)}
    used = {fields["master_port"] for fields in run.of("rendezvous")}
    assert len(used) == 4  # a port of its own for each round


LATE = """
import os, sys, time
mine = f"{sys.argv[1]}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    sys.exit()
if os.environ["RANK"] == "0":
    open(mine, "w").write(str(os.getpid()))
    raise RuntimeError("Connection closed by peer")
if os.environ["RANK"] == sys.argv[2]:
    while not os.path.exists(mine) or os.path.exists(f"/proc/{open(mine).read() or 'self'}"):
        time.sleep(0.01)
    os._exit(7)
time.sleep(600)
"""
"""Rank 0 loses its connection and has ended before the rank that is to blame for it, as on a busy host."""


@pytest.mark.parametrize("culprit", ["1", "3"])
def test_what_follows_from_a_failure_that_is_seen_later_is_not_the_cause_of_a_restart(
    agents: Runner, culprit: str
) -> None:
    run = agents(LATE, str(agents.directory / "ended"), culprit, nodes="2", nproc_per_node="2", max_restarts=1)

    assert run.result() == "success", run.stderr
    (restart,) = run.of("restart")
    assert (restart["cause"]["rank"], restart["cause"]["exit_code"]) == (int(culprit), 7)


IGNORES = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(sys.argv[1], "w").close()
    time.sleep(600)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
sys.exit(3)
"""


def test_the_cause_of_a_restart_is_not_the_cause_of_an_end_during_the_restart(agents: Runner) -> None:
    run = agents.start(IGNORES, str(agents.directory / "ready"), nodes="2", max_restarts=1, grace="60s")
    run.until(lambda: run.of("restart"))  # node 1 still waits for its worker
    os.kill(run.agent_pid(1), signal.SIGKILL)
    run.wait()

    assert [(fields["cause"]["rank"], fields["cause"]["exit_code"]) for fields in run.of("restart")] == [(0, 3)]
    assert {fields["cause"]["node"] for fields in run.of("done")} == {1}
    assert {fields["cause"]["class"] for fields in run.of("done")} == {"killed"}


@pytest.mark.torch
def test_the_budget_of_restarts_is_the_worker_groups_not_each_nodes(warm_agents: Runner) -> None:
    script = CRASH.replace("int(sys.argv[2])", "(0 if count % 2 else 3)")

    run = warm_agents(script, "9", "-", nodes="2", nproc_per_node="2", max_restarts=2)

    assert run.result() == "failed"
    assert {fields["restarts"] for fields in run.of("done")} == {2}
    assert run.stdout[1] == b"0 4\n1 4\n2 4\n"
    assert (run.cause()["rank"], run.cause()["exit_code"]) == (3, 7)


def test_a_restart_ends_what_the_round_before_has_left(agents: Runner) -> None:
    run = agents(
        "import os, subprocess, sys, time\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    left = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    print(left.pid, flush=True)\n"
        "    os._exit(1)\n"
        "pid = int(open(sys.argv[1]).read()) if os.path.exists(sys.argv[1]) else 0\n"
        "print('again', flush=True)\n",
        "nothing", max_restarts=1,
    )  # fmt: skip

    assert run.result() == "success"
    left, again = run.stdout[0].split()
    assert again == b"again"
    assert all_exited(int(left))


@pytest.mark.slow
def test_the_given_port_is_used_and_a_taken_one_is_named(agents: Runner) -> None:
    with ports.reserve() as held:
        port = ports.port_of(held)
        taken = agents("print('never')\n", nodes="2", master_port=port)
    free = agents("import os\nprint(os.environ['MASTER_PORT'])\n", master_port=port)

    assert taken.result() == "failed"
    assert f"port {port} is in use" in taken.cause()["message"]
    named = [fields["cause"] for fields in taken.of("failure") if "in use" in fields["cause"]["message"]]
    assert {(cause["node"], cause["secondary"]) for cause in named} == {(0, False)}, (
        "the other node's end is its consequence"
    )
    assert free.stdout[0] == b"%d\n" % port


@pytest.mark.torch
def test_two_runs_at_once_on_one_host_do_not_meet(warm_agents: Runner) -> None:
    runs = [warm_agents.start(CRASH, "1", "1", nproc_per_node="2", max_restarts=1) for _ in range(2)]

    for run in runs:
        assert run.wait().result() == "success", run.stderr
        assert run.stdout[0] == b"0 2\n1 2\n"


@pytest.mark.torch
def test_an_elastic_run_continues_without_a_node_that_dies(warm_agents: Runner) -> None:
    run = warm_agents.start(
        "import os, sys, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if os.environ['GROUP_WORLD_SIZE'] == '1' and not os.path.exists(sys.argv[1]):\n"
        "    time.sleep(600)  # the other comes later\n"
        "print(os.environ['GROUP_WORLD_SIZE'], flush=True)\n"
        "if os.environ['GROUP_WORLD_SIZE'] == '2':\n"
        "    open(sys.argv[1], 'w').close()\n"
        "    for _ in range(600):\n        dist.all_reduce(torch.ones(1)); time.sleep(0.1)\n"
        "dist.destroy_process_group()\n",
        str(warm_agents.directory / "met"), nodes="1:2", max_restarts=3, request={"peer_timeout_s": 3},
    )  # fmt: skip
    run.until(lambda: len(run.stdout) == 2)

    os.kill(run.agent_pid(1), signal.SIGKILL)
    # It counts as a restart or not, by what is seen first: that the node has left, or its peer's failure.
    run.wait()

    assert [fields["result"] for fields in run.of("done")] == ["success"]
    assert run.stdout[0] == b"2\n1\n", (run.stderr, run.events)
    assert not any(alive(pid) for pid in run.worker_pids())


@pytest.mark.torch
@pytest.mark.parametrize("script", ["loses a connection", "only waits"])
def test_a_node_that_lost_another_one_asks_to_be_started_again_where_that_helps(
    warm_agents: Runner, script: str
) -> None:
    text = "import time, torch, torch.distributed as dist\ndist.init_process_group('gloo')\nprint('up', flush=True)\n"
    text += "while True: dist.all_reduce(torch.ones(1))\n" if script == "loses a connection" else "time.sleep(600)\n"
    run = warm_agents.start(text, nodes="2", request={"replaces_lost": True, "peer_timeout_s": 3})
    run.until(lambda: len(run.stdout) == 2)

    os.kill(run.agent_pid(1), signal.SIGKILL)
    run.wait()

    assert [(fields["result"], fields["exit_code"]) for fields in run.of("done")] == [("lost", 75)], run.events


@pytest.mark.slow
def test_a_node_that_never_comes_is_named_when_the_limit_is_over(agents: Runner) -> None:
    run = agents.start("print('never')\n", nodes="2", rdzv_timeout="2s", preload=())
    os.kill(run.agent_pid(1), signal.SIGKILL)

    run.wait()

    assert [fields["result"] for fields in run.of("done")] == ["failed"]
    assert "missing: node 1" in run.cause()["message"]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_reserved_port_is_outside_the_ephemeral_range_and_no_other_socket_gets_it(family: int) -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low, high = map(int, file.read().split())
    with ports.reserve() as held:
        port = ports.port_of(held)
        assert not low <= port <= high
        with pytest.raises(ports.PortTakenError):
            ports.reserve(port)
        with socket.socket(family) as other:  # as torch's TCPStore binds it
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(("", port))
    with ports.lent() as held, socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", ports.port_of(held)))
        server.listen()


LOUD = """
import os, time
for number in range(300):
    print(str(number) * 500, flush=True)
assert os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
while not os.path.exists("go"):
    time.sleep(0.01)
"""
"""Much output in both rounds, which hides from readers of a stream's ends what is between them."""


def test_the_end_of_a_long_stream_tells_the_restarts_and_the_master(agents: Runner) -> None:
    run = agents.start(LOUD, max_restarts=1, request={"heartbeat_s": 0.1})
    run.until(lambda: run.stdout[0].count(b"299299\n") == 2)  # in both rounds
    before = len(run.of("heartbeat"))
    run.until(lambda: len(run.of("heartbeat")) > before)

    node = NodeReport(0)
    for record in status.ends(run.directory / "nodes/0/stream"):
        node.add(record)
    (agents.directory / "go").touch()

    first, second = run.wait().of("rendezvous")
    assert run.result() == "success", run.agent_stderr()
    assert node.restarts == 1
    assert node.master == f"{second['master_addr']}:{second['master_port']}"
    assert first["master_port"] != second["master_port"]
