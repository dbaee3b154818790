"""Of a large run, only the logs are read that tell how it is, and those that are asked for; here two nodes are many."""

from __future__ import annotations

import signal
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.command import Cli
from tests.k8s.scripts import WAITS
from tests.k8s.test_beside import BESIDE, FOREVER, patch
from tests.k8s.test_disruptions import agent_of, name_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from testbed import Kube
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]

LARGE = """
from runpy import run_module
from launcher.backends.kubernetes import demand
from launcher.service import bringing
demand.MOST_FOLLOWED, bringing._FEW_NODES = 1, 0
run_module("launcher", run_name="__main__", alter_sys=True)
"""
TOLD = "only the logs of node 0, of ranks that are shown and of failures are followed"
FAILS = """
import os, time
print("ready", flush=True)
if os.environ["RANK"] == "2":
    print("about to fail", flush=True)
    raise ValueError("only on one")
time.sleep(600)
"""
EATS = """
import os, time
if os.environ["RANK"] == "1":
    eaten = []
    while True:
        eaten.append(b"x" * (8 << 20))
time.sleep(600)
"""
KILLS = """
import os, signal, sys, time
if os.environ.get("DISTLAUNCH_ATTEMPT"):
    sys.exit(0)
print("ready", flush=True)
signal.pause()
"""

IN_POD = BESIDE.replace("kind: Job\nspec:\n  template:\n    spec:\n", "kind: Pod\nspec:\n").replace("      ", "  ")


@dataclass(frozen=True)
class ManyNodesCli(Cli):
    """A launcher to which two nodes are many."""

    def start(self, *args: Any, **more: Any) -> subprocess.Popen[bytes]:
        """In a new interpreter."""
        return super().start(*args, **{**more, "python": ("-c", LARGE), "real": True})


@pytest.fixture
def large(pods: User) -> Iterator[User]:
    """A shell with that launcher."""
    with closing(replace(pods, cli=ManyNodesCli(pods.cli.directory), followers=[])) as user:
        yield user


def streams(user: User, run: str) -> list[str]:
    """The nodes whose logs are in the run's directory."""
    return sorted(found.parent.name for found in (user.cli.runs / run / "nodes").glob("*/stream"))


def test_a_run_succeeds_with_one_log_and_the_others_are_there_once_they_are_asked_for(large: User) -> None:
    large.write("prints.py", "import os\nprint('rank', os.environ['RANK'])\n")

    run = large.follow("--nodes", "3", "--log-ranks", "all", "prints.py")
    done = run.result()

    assert (done.exit_code, done.stdout) == (0, "[0:0] rank 0\n"), done.stderr
    assert done.stderr.count(TOLD) == 1
    assert streams(large, run.run) == ["0"]
    state = large.state(run.run)
    assert [(node["result"], node["cause"]) for node in state["nodes"]] == [("success", None)] * 3
    assert large("logs", "--rank", "2", run.run).stdout == "rank 2\n"
    assert streams(large, run.run) == ["0", "2"]
    assert sorted(large("logs", run.run).stdout.splitlines()) == [f"[{node}:{node}] rank {node}" for node in range(3)]


def test_a_rank_that_is_shown_is_followed_and_so_is_one_of_a_node_that_is_named_later(large: User) -> None:
    large.write("waits.py", WAITS)
    run = large.follow("--nodes", "3", "--log-ranks", "2", "waits.py")
    run.until("ready")
    large.wait_printed(run.run, "ready", 3)

    beside = large.cli.start("logs", "--follow", "--node", "1", run.run, env=large.env())
    try:
        assert beside.stdout is not None
        assert beside.stdout.readline() == b"[1:1] ready\n"
        assert streams(large, run.run) == ["0", "1", "2"]
        state = large.state(run.run)
        assert (state["state"], [node["workers"] for node in state["nodes"]]) == ("running", [1, 1, 1])
        assert all(node["host"] for node in state["nodes"])
        assert large("cancel", run.run).exit_code == 0
        done, rest = run.result(), beside.communicate(timeout=120)[0]
    finally:
        beside.kill()
        beside.wait()

    assert done.exit_code == 130, done.stderr
    assert [line for line in done.stdout.splitlines() if "ready" in line] == ["ready"]
    assert rest.endswith(b"saved\n"), rest
    large.wait_nothing_left(run.run)


def test_a_failure_on_another_node_is_reported_with_its_traceback_and_lines(large: User) -> None:
    large.write("fails.py", FAILS)

    run = large.follow("--nodes", "3", "--grace", "2s", "--log-ranks", "all", "fails.py")
    done = run.result()

    assert done.exit_code == 1, done.stderr
    assert "first failure: rank 2, " in done.stderr
    assert "the script failed: ValueError: only on one" in done.stderr
    assert 'raise ValueError("only on one")' in done.stderr
    assert "[2:2] about to fail\n" in done.stdout
    cause = large.state(run.run)["cause"]
    assert (cause["class"], cause["rank"], cause["node"]) == ("user_code", 2, 2)


def test_an_end_without_a_follower_is_known_by_the_next_command(large: User) -> None:
    large.write("fails.py", FAILS)
    large.write("prints.py", "import os\nprint('rank', os.environ['RANK'])\n")
    failing, well = (large.detached("--nodes", "3", "--grace", "2s", name) for name in ("fails.py", "prints.py"))

    ended = [large("wait", "--timeout", "120s", run) for run in (failing, well)]

    assert [done.exit_code for done in ended] == [1, 0], ended
    cause = large.state(failing)["cause"]
    assert (cause["class"], cause["rank"], cause["node"]) == ("user_code", 2, 2)
    assert streams(large, well) == ["0"]
    assert [node["result"] for node in large.state(well)["nodes"]] == ["success"] * 3


def test_an_agent_that_is_killed_for_lack_of_memory_ends_the_run_with_that(large: User) -> None:
    large.write("eats.py", EATS)

    run = large.follow("--nodes", "2", "--grace", "2s", "--memory", "200Mi", "--shm", "10Mi", "eats.py")
    done = run.result()

    assert done.exit_code == 1, done.stderr
    assert "out of memory" in done.stderr
    cause = large.state(run.run)["cause"]
    assert (cause["class"], cause["node"]) == ("out_of_memory", 1)


def test_a_run_whose_agent_is_killed_or_whose_pod_is_deleted_starts_again(large: User, own_kube: Kube) -> None:
    large.write("kills.py", KILLS)
    killed, deleted = (large.follow("--nodes", "2", "--grace", "2s", "kills.py") for _ in range(2))
    for run in (killed, deleted):
        large.wait_printed(run.run, "ready", 2)

    agent_of(name_of(large, killed.run, 1).rpartition("-")[0]).send_signal(signal.SIGKILL)
    own_kube.evict(large.namespace, name_of(large, deleted.run, 1))

    for run in (killed, deleted):
        done = run.result()
        assert done.exit_code == 0, done.stderr
        assert "attempt 1" in done.stderr
        assert large.state(run.run)["state"] == "success"


def test_pods_that_a_second_container_holds_start_again_and_end_though_their_logs_are_not_read(large: User) -> None:
    large.write("waits.py", WAITS)
    large.write("prints.py", "print('done')\n")
    beside = patch(large, "forever.yaml", FOREVER)
    bare = patch(large, "bare.yaml", FOREVER, IN_POD)
    again = large.follow("--nodes", "2", "--rdzv-timeout", "60s", *beside, "waits.py")
    ends = large.follow("--kind", "pods", "--nodes", "2", *bare, "prints.py")
    again.until("ready")

    large.kube.delete_pod(large.namespace, name_of(large, again.run, 0))

    done, ended = again.result(), ends.result()
    assert (done.exit_code, ended.exit_code) == (0, 0), done.stderr + ended.stderr
    assert "attempt 1" in done.stderr
    assert streams(large, ends.run) == ["0"]
    assert all("deletionTimestamp" in pod["metadata"] for pod in large.pods(ends.run)), "none holds its host"


def test_what_needs_the_logs_of_other_nodes_reads_them(large: User) -> None:
    """Fetching files, which a node's agent offers in its log, and asking all ranks where they are."""
    large.write("waits.py", WAITS)
    large.write("writes.py", "import os\nopen('out-' + os.environ['RANK'], 'w').write('x')\n")
    waiting = large.detached("--nodes", "2", "waits.py")

    fetched = large("k8s", "--nodes", "2", "--fetch", "out-*", "--fetch-node", "1", "--output", "json", "writes.py")
    large.wait_printed(waiting, "ready", 2)
    stacks = large("stacks", waiting, "--output", "json")

    assert fetched.exit_code == 0, fetched.stderr
    assert [file["path"] for file in fetched.json["result"]["fetched"]["files"]] == ["out-1"]
    assert streams(large, fetched.json["result"]["run"]) == ["0", "1"]
    assert stacks.exit_code == 0, stacks.stderr
    assert sorted(rank for group in stacks.json["result"]["groups"] for rank in group["ranks"]) == [0, 1]
    assert large("cancel", waiting).exit_code == 0
