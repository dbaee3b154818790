"""Pods, agents, nodes and API servers that are lost while a run continues."""

from __future__ import annotations

import signal
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil
import pytest

from testbed import Kube, kube_given, wait_until
from tests.command import Cli
from tests.k8s import proxy as proxies
from tests.k8s.conftest import KINDS, index_of, may_make_accounts, shell
from tests.k8s.role import role_rules
from tests.k8s.scripts import TICKS, WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.kube_node import KubeNode
    from tests.k8s.conftest import User
    from tests.k8s.following import Follower

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]

APART = """
kind: Job
spec:
  template:
    spec:
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector: {matchLabels: {app.kubernetes.io/name: distlaunch}}
"""
"""On two hosts where there are two."""

ELASTIC = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
print("size", dist.get_world_size(), flush=True)
while True:
    again = torch.tensor(int(os.environ.get("DISTLAUNCH_ATTEMPT", "0")))
    dist.all_reduce(again)
    if again and dist.get_world_size() == 2:
        break
    time.sleep(0.1)
"""
"""Ends once it is complete again."""


def name_of(user: User, run: str, node: int) -> str:
    """A node's only pod."""
    (found,) = [pod for pod in user.pods(run) if index_of(pod) == node]
    return str(found["metadata"]["name"])


@dataclass(frozen=True)
class CutOff:
    """A run on two hosts, of which one is cut off and removed; Kubernetes acts after a minute, and other tests run."""

    user: User
    run: Follower
    node: KubeNode


@pytest.fixture(scope="module")
def cut_off(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CutOff]:
    """The host of node 1 is cut off; afterwards it is as before."""
    if kube_given.named():
        pytest.skip("failing hosts and control planes are tested only on the testbed's own cluster")
    kube_nodes: Kube = request.getfixturevalue("kube_nodes")
    cli = Cli(tmp_path_factory.mktemp("cut-off"))
    with kube_nodes.lend_namespace() as namespace, shell(cli, kube_nodes, namespace) as user:
        user.write("waits.py", WAITS)
        user.write("apart.yaml", APART)
        run = user.follow("--nodes", "2", "--patch", "apart.yaml", "--grace", "5s", "--log-ranks", "all", "waits.py")
        run.until("ready", count=2)
        places = {index_of(pod): pod["spec"]["nodeName"] for pod in user.pods(run.run)}
        assert places[0] != places[1]
        node = next(node for node in kube_nodes.nodes if node.name == places[1])
        node.host.cut_off()
        try:
            kube_nodes.api.delete(f"/api/v1/nodes/{node.name}")
            yield CutOff(user, run, node)
        finally:
            node.host.reconnect()
            node.stop_kubelet()
            node.start_kubelet()
            node.wait_ready()
            node.gpus(kube_nodes.options.gpus_per_host)


def test_a_host_is_cut_off_while_other_runs_continue(cut_off: CutOff) -> None:
    """One of three; how that run continues is checked by the last test here, as it takes a minute."""
    assert cut_off.run.process.poll() is None
    assert sorted(cut_off.run.stdout.splitlines()) == ["[0:0] ready", "[1:1] ready"]


def test_a_deleted_pod_starts_the_run_again_and_workers_have_their_grace_time(pods: User) -> None:
    """By a user who has only the documented rights: logs, events and signals need them, too."""
    pods.write("waits.py", WAITS)
    lesser = pods.with_rights("documented", role_rules()) if may_make_accounts(pods) else pods
    run = lesser.follow("--nodes", "2", "--log-ranks", "all", "waits.py")
    run.until("ready", count=2)

    run.process.send_signal(signal.SIGUSR1)
    run.until("usr1", count=2)
    pods.kube.evict(pods.namespace, name_of(pods, run.run, 1))

    done = run.result()
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    words = ("ready", "usr1", "saving with time left", "saved", "attempt 1 preempted")
    for node in "01":
        assert [line for line in lines if line.startswith(f"[{node}:")] == [f"[{node}:{node}] {text}" for text in words]
    assert "attempt 1" in done.stderr
    assert lesser.state(run.run)["state"] == "success"


def agent_of(hostname: str) -> psutil.Process:
    """The first process of a pod on one of the testbed's hosts."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOSTNAME") == hostname and "--node-rank-from" in process.cmdline():
                return process
    raise AssertionError(hostname)


def test_a_run_whose_agent_is_killed_starts_again(pods: User, own_kube: Kube) -> None:
    """Its peers notice by the connection that ends, and are started again with it."""
    pods.write("waits.py", "import signal\nprint('ready', flush=True)\nsignal.pause()\n")
    follower = pods.follow("--nodes", "2", "--grace", "2s", "waits.py")
    pods.wait_printed(follower.run, "ready", 2)

    agent_of(f"{follower.run}-1").kill()

    follower.wait_err("started again by the scheduler after a lost node, attempt 1")
    follower.wait("the second rendezvous", lambda: follower.stderr.count("started: 2 nodes") == 2)
    cancelled = pods("cancel", follower.run)
    done = follower.result()
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{follower.run}: cancelled\n"), cancelled.stderr
    assert done.exit_code == 130
    assert "stopping: cancelled" in done.stderr
    assert "preempted" not in done.stderr, "though Kubernetes takes the pods back"
    state = pods.state(follower.run)
    assert (state["state"], [node["result"] for node in state["nodes"]]) == ("cancelled", ["cancelled"] * 2)
    assert "preempted" not in str(state)


def test_a_run_that_was_nearly_given_up_later_ends_for_its_own_reason(pods: User, own_kube: Kube) -> None:
    """Its image was missing, and the API server away when the run was to be ended for that."""
    pods.write("waits.py", WAITS)
    maps = KINDS["configmaps"].format(pods.namespace)
    with proxies.before(own_kube.kubeconfig) as proxy:
        through = replace(pods, kubeconfig=pods.write("proxy.kubeconfig", proxy.kubeconfig()))
        proxy.dropped = f"DELETE {maps}"
        missing = ("--kind", "pods", "--image", "distlaunch.test/none:1", "--start-timeout", "2s")
        run = through.detached(*missing, "waits.py")
        given_up = lambda: through("status", run) and f"DELETE {maps}/{run}" in proxy.requests  # noqa: E731
        wait_until("it to be given up", given_up, limit_s=120)
        image = {"spec": {"containers": [{"name": "node", "image": pods.image}]}}
        path = f"{KINDS['pods'].format(pods.namespace)}/{run}-0"
        own_kube.api.patch(path, image, kind="strategic")
        pods.wait_printed(run, "ready", 1)
        assert through.state(run)["state"] == "running"

        agent_of(f"{run}-0").kill()

        assert through("wait", run).exit_code == 1
        cause = through.state(run)["cause"]
        assert cause["class"] == "killed", cause


def test_no_line_is_lost_when_the_api_server_restarts_while_the_run_is_followed(pods: User, own_kube: Kube) -> None:
    pods.write("ticks.py", TICKS)
    run = pods.follow("ticks.py")
    run.until("tick 100")

    own_kube.restart_api()

    known = run.stdout.count("tick")
    run.until("tick", count=known + 100)
    run.process.send_signal(signal.SIGUSR1)
    done = run.result()
    assert done.exit_code == 0, done.stderr
    *ticks, last = done.stdout.splitlines()
    assert ticks == [f"tick {number}" for number in range(len(ticks))]
    assert last == f"{len(ticks)} ticks"


@contextmanager
def no_room(user: User) -> Iterator[None]:
    """No new pod finds a host, if the hosts are ours."""
    with ExitStack() as stack:
        for node in user.kube.nodes if isinstance(user.kube, Kube) else ():
            if not node.status():
                continue  # removed
            node.cordon()
            stack.callback(node.cordon, on=False)
        yield


def test_an_elastic_run_continues_without_a_pod_that_is_evicted_and_takes_it_back(pods: User) -> None:
    pods.write("elastic.py", ELASTIC)
    run = pods.follow("--nodes", "1:2", "--max-restarts", "5", "--log-ranks", "all", "elastic.py")
    run.until("size 2", count=2)
    before = {index_of(pod): pod["metadata"]["uid"] for pod in pods.pods(run.run)}

    with no_room(pods):
        pods.kube.evict(pods.namespace, name_of(pods, run.run, 1))
        if isinstance(pods.kube, Kube):  # elsewhere the other may come back before the rest have met
            run.until("size 1")

    done = run.result()
    assert done.exit_code == 0, done.stderr
    sizes = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    assert [size for size in sizes if size != "size 1"] == ["size 2"] * 4
    assert sizes.count("size 1") == 1 or not isinstance(pods.kube, Kube)
    assert "attempt 1" in done.stderr
    after = {index_of(pod): pod["metadata"]["uid"] for pod in pods.pods(run.run)}
    assert after[0] == before[0], "its pod has continued"
    assert after.get(1) != before[1]


def test_a_run_starts_again_without_a_host_that_is_cut_off_and_removed(cut_off: CutOff) -> None:
    done = cut_off.run.result()

    assert done.exit_code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{n}:{n}] {text}" for n in "01" for text in ("attempt 1 node", "ready")
    ]
    assert "ending, to be started again: node 1 has not answered for 30 s" in done.stderr
    assert "attempt 1" in done.stderr
    assert cut_off.node.name not in {pod["spec"]["nodeName"] for pod in cut_off.user.pods(cut_off.run.run)}
