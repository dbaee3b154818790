"""`distlaunch k8s` with real pods: machines with kubelet and containerd."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from testbed import Kube, kube_builds, kube_given, kube_image, kube_programs
from testbed.kube_watch import wait_for
from tests import large
from tests.command import Cli
from tests.k8s.conftest import shell
from tests.k8s.following import Follower
from tests.k8s.role import role_rules
from tests.k8s.scripts import EATS, FAILS, MEET, TICKS, WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.kube_node import KubeNode
    from tests.k8s.conftest import User

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
"""On two machines where there are two."""

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


def may_make_accounts(user: User) -> bool:
    """Whether this user of the cluster may give rights to others."""
    return isinstance(user.kube, Kube)


def name_of(user: User, run: str, node: int) -> str:
    """A node's only pod."""
    (found,) = [pod for pod in user.pods(run) if index_of(pod) == node]
    return str(found["metadata"]["name"])


def index_of(pod: dict[str, Any]) -> int:
    """Which node a pod is."""
    return int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])


@dataclass(frozen=True)
class CutOff:
    """A run on two machines, of which one was cut off and removed; Kubernetes takes a minute to believe it, and tests go on."""

    user: User
    run: Follower
    node: KubeNode


@pytest.fixture(scope="module")
def cut_off(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CutOff]:
    """The machine of node 1 is cut off; afterwards it is as before."""
    if kube_given.named():
        pytest.skip("what happens to machines and control planes is tested on the testbed's own only")
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


def test_a_machine_is_cut_off_while_other_runs_go_on(cut_off: CutOff) -> None:
    """Of three; how that run goes on is looked at by the last test here, as it takes a minute."""
    assert cut_off.run.process.poll() is None
    assert sorted(cut_off.run.stdout.splitlines()) == ["[0:0] ready", "[1:1] ready"]


def test_three_runs_at_once_with_files_arguments_and_secrets(pods: User) -> None:
    ours = isinstance(pods.kube, Kube)
    pods.write("data/words.txt", "from the launcher's machine")
    (pods.cli.directory / "data/noise.bin").write_bytes(os.urandom(5_000_000))
    pods.write("mine/__init__.py", "WORD = 'imported'\n")
    pods.write(
        "uses.py",
        "import os, sys, mine\nprint(mine.WORD, open('data/words.txt').read(), os.path.getsize('data/noise.bin'), sys.argv[1:],"
        " os.environ['TOKEN'], os.environ['V'])\n",
    )
    gpus = ("--gpus-per-node", "4") if ours else ()
    reduce = pods.follow("--nodes", "4", "--nproc-per-node", "2", *gpus, "--log-ranks", "all", "reduce.py")
    train = pods.follow("--nodes", "2", "train.py", "--epochs", "3")
    args = ["a b", "'\"$HOME`x`\\", "line\nbreak", "ü", "--"]
    secret: dict[str, str | None] = {"TOKEN": 's3cr3t, "quoted"'}
    pods.write("fits.py", "import pytest\nprint('fits')\n")  # of which nobody knows whether it imports torch
    little = pods.follow("--memory", "200Mi", "--shm", "10Mi", "fits.py")
    base = (f"{sys.base_prefix}/bin/python3", "--no-python", f"python3.{sys.version_info[1]}-config", "--prefix")
    beside = pods.follow("--memory", "100Mi", "--shm", "10Mi", "--python", *base) if ours else None
    uses = pods("k8s", "--secret", "TOKEN", "--env", "V=a,b 'c' $D", "uses.py", *args, env=secret)

    assert uses.exit_code == 0, uses.stderr
    assert uses.stdout == f"imported from the launcher's machine 5000000 {args!r} s3cr3t, \"quoted\" a,b 'c' $D\n"
    reduced = reduce.result()
    assert reduced.exit_code == 0, reduced.stderr
    found = re.findall(r"\[(\d):(\d)\] rank (\d)/8 on \S+-(\d): before (\d), after 36", reduced.stdout)
    assert sorted(found) == [(str(r // 2), str(r), str(r), str(r // 2), str(r + 1)) for r in range(8)]
    on = Counter(node["host"] for node in pods.state(reduce.run)["nodes"])
    assert max(on.values()) <= 2 or not ours, "machines have 8 GPUs, and each pod takes 4"
    trained = train.result()
    assert trained.exit_code == 0, trained.stderr
    accuracy = re.search(r"test accuracy ([\d.]+)%", trained.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 80
    cancelled = pods("cancel", reduce.run)
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{reduce.run}: success\n")
    assert little.result().stdout == "fits\n", little
    assert beside is None or beside.result().stdout == f"{sys.base_prefix}\n", f"{beside}"


def test_arguments_and_variables_of_hundreds_of_kilobytes_arrive(pods: User) -> None:
    pods.write("large.py", large.SCRIPT.read_text())
    done = pods("k8s", "--nodes", "2", "--log-ranks", "all", *large.OPTIONS, "large.py", *large.ARGUMENTS)

    assert done.exit_code == 0, done.stderr[-3000:]
    assert done.stdout.count(large.SAID) == 2


def test_a_deleted_pod_starts_the_run_again_and_workers_have_their_grace_time(pods: User) -> None:
    """By somebody who has the rights in the documentation and no others: logs, events and signals need them, too."""
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


def test_how_a_run_failed_is_told_once_and_nothing_goes_on(pods: User) -> None:
    """A rank that fails, one that is killed for want of memory, and an image that does not exist."""
    pods.write("fails.py", FAILS)
    pods.write("eats.py", EATS)
    fails = pods.follow("--nodes", "2", "--grace", "5s", "fails.py")
    eats = pods.follow("--memory", "200Mi", "--shm", "10Mi", "eats.py")
    absent = pods.follow("--image", "distlaunch.test/none:1", "--start-timeout", "5s", "eats.py")
    patient = pods.follow("--image", "distlaunch.test/none:1", "--start-timeout", "10m", "eats.py")

    failed, eaten, missed = fails.result(), eats.result(), absent.result()

    assert (failed.exit_code, eaten.exit_code, missed.exit_code) == (1, 1, 1), f"{fails}{eats}{absent}"
    assert failed.stderr.count("the script failed: ValueError: only on one\n") == 1
    assert failed.stderr.count("ValueError: only on one") == 2, "and below its traceback"
    assert "first failure: rank 1, " in failed.stderr
    cause = pods.state(eats.run)["cause"]
    assert cause["class"] == "out_of_memory", cause
    assert "out of memory" in eaten.stderr
    patient.wait_err("pending: 1 of 1 pods wait: ")
    patient.wait_err("ImagePull")
    patient.process.send_signal(signal.SIGINT)
    assert patient.result().exit_code == 130
    assert "ImagePull" in missed.stderr.rpartition("a node failed")[2]
    assert "distlaunch.test/none:1" in missed.stderr
    pods.wait_nothing_left(absent.run)
    pods.wait_nothing_left(patient.run)
    pods.kube.wait_pods(
        pods.namespace, "all pods to end", lambda found: all(pod["status"]["phase"] in ("Failed", "Succeeded") for pod in found)
    )


def agent_of(hostname: str) -> psutil.Process:
    """The first process of a pod on one of this host's machines."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOSTNAME") == hostname and "--node-rank-from" in process.cmdline():
                return process
    raise AssertionError(hostname)


def test_a_run_whose_agent_is_killed_starts_again(pods: User, machines: Kube) -> None:
    """Its peers notice by the connection that ends, and are started again with it."""
    pods.write("waits.py", "import signal\nprint('ready', flush=True)\nsignal.pause()\n")
    follower = pods.follow("--nodes", "2", "--grace", "2s", "waits.py")
    pods.wait_said(follower.run, "ready", 2)

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


def test_a_detached_run_is_seen_and_cancelled_from_another_shell(pods: User) -> None:
    pods.write("waits.py", WAITS)
    run = pods.detached("--nodes", "2", "waits.py")
    pods.wait_said(run, "ready", 2)

    assert pods.state(run)["state"] == "running"
    cancelled = pods("cancel", run)

    assert cancelled.exit_code == 0, cancelled.stderr
    assert pods.state(run)["state"] == "cancelled"
    shown = pods("logs", run).stdout
    assert [shown.count(text) for text in ("ready\n", "saving with time left\n", "saved\n")] == [2, 2, 2]
    pods.wait_nothing_left()


def test_workers_that_share_a_pod_have_one_thread_each_and_one_alone_is_left_alone(pods: User) -> None:
    pods.write("threads.py", "import os\nprint('threads', os.environ.get('OMP_NUM_THREADS'))\n")
    said = {workers: pods("k8s", "--nproc-per-node", workers, "--log-ranks", "0", "threads.py") for workers in ("2", "1")}

    assert {workers: done.stdout for workers, done in said.items()} == {"2": "threads 1\n", "1": "threads None\n"}


def test_the_api_server_goes_while_the_run_is_followed_and_no_line_is_lost(pods: User, machines: Kube) -> None:
    pods.write("ticks.py", TICKS)
    run = pods.follow("ticks.py")
    run.until("tick 100")

    machines.restart_api()

    known = run.stdout.count("tick")
    run.until("tick", count=known + 100)
    run.process.send_signal(signal.SIGUSR1)
    done = run.result()
    assert done.exit_code == 0, done.stderr
    *ticks, last = done.stdout.splitlines()
    assert ticks == [f"tick {number}" for number in range(len(ticks))]
    assert last == f"{len(ticks)} ticks"


def test_what_is_rendered_runs_by_itself_when_it_is_applied_by_hand(pods: User, tmp_path: Path) -> None:
    """By kubectl alone, far from the working directory, and with the secret that its first lines ask for."""
    pods.write("meet.py", MEET + 'print("the secret:", os.environ["TOKEN"], flush=True)\n')
    directory = tmp_path / "moved away"
    options = ("--nodes", "2", "--secret", "TOKEN", "meet.py")
    done = pods("k8s", "--render-to", str(tmp_path / "rendered"), *options, env={"TOKEN": "s3cr3t"})
    assert done.exit_code == 0, done.stderr
    shutil.move(tmp_path / "rendered", directory)
    shutil.rmtree(pods.cli.runs, ignore_errors=True)
    text = (directory / "run.yaml").read_text()
    assert (directory / "run.yaml").stat().st_mode & 0o777 == 0o600, "the run's key is in it"
    ((name, apply),) = re.findall(r"^# Run (\S+): (kubectl apply --server-side -f) FILE$", text, re.MULTILINE)
    (secret,) = re.findall(r"^# First, as secrets are in no file: (.*)$", text, re.MULTILINE)

    by_hand = kube_programs.find(kube_builds.KUBERNETES, "kubectl") if isinstance(pods.kube, Kube) else shutil.which("kubectl")
    env = {"PATH": f"{Path(str(by_hand)).parent}:{os.environ['PATH']}", "KUBECONFIG": str(pods.kubeconfig), "TOKEN": "s3cr3t"}
    env["HOME"] = str(tmp_path)
    for line in (secret, f"{apply} run.yaml"):
        made = subprocess.run(["sh", "-c", line], cwd=directory, env=env, timeout=120, check=False, capture_output=True)
        assert made.returncode == 0, made.stderr

    jobs = f"/apis/batch/v1/namespaces/{pods.namespace}/jobs"

    def ended(found: list[dict[str, Any]]) -> set[str]:
        kinds = {told["type"] for told in found[0].get("status", {}).get("conditions", ()) if told["status"] == "True"}
        assert "Failed" not in kinds, pods.kube.told(pods.namespace)
        return kinds & {"Complete"}

    wait_for(pods.kube.api, jobs, "the Job to be complete", ended, fieldSelector=f"metadata.name={name}")
    logs = [pods.kube.log(pods.namespace, pod["metadata"]["name"]) for pod in sorted(pods.pods(name), key=index_of)]
    for rank, log in enumerate(logs):
        assert re.search(rf"rank {rank}/2: sum 3 on {name}-{rank}$", log, re.MULTILINE), log
        assert re.search(r"the secret: s3cr3t$", log, re.MULTILINE), log


def test_runs_in_a_restricted_namespace_end_well_with_the_documented_flags(pods: User, machines: Kube) -> None:
    """As a user who is given, and as the image's own; an image whose user is root is refused by the kubelet, with that reason."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    machines.api.patch(f"/api/v1/namespaces/{pods.namespace}", {"metadata": {"labels": labels}})
    pods.write("meet.py", MEET + "print('as', os.getuid(), os.getgid(), flush=True)\nopen('written', 'w').close()\n")
    given = pods.follow("--run-as", "1001:1002", "--nodes", "2", "--log-ranks", "all", "reduce.py")
    own = pods.follow("--run-as", "image", "--image", kube_image.AS_USER, "--nodes", "2", "--log-ranks", "all", "meet.py")
    root = pods.follow("--run-as", "image", "--start-timeout", "1s", "meet.py")
    user = pods.follow("--run-as", "1001:1002", "meet.py")

    for follower, words in ((given, "after 3"), (own, "as 1000 0"), (user, "as 1001 1002")):
        done = follower.result()
        assert done.exit_code == 0, done.stderr
        assert done.stdout.count(words) == (1 if follower is user else 2), done.stdout
        assert "warning" not in done.stderr
    refused = root.result()
    assert refused.exit_code == 1, refused.stderr
    assert "image will run as root" in refused.stderr


def test_on_the_machines_own_network_two_runs_choose_free_ports(pods: User) -> None:
    pods.write("meet.py", MEET)
    gloo = pods.follow("--host-network", "--nodes", "2", "--log-ranks", "all", "reduce.py")
    plain = pods.follow("--host-network", "--nodes", "2", "--log-ranks", "all", "meet.py")

    met, reduced = plain.result(), gloo.result()

    assert (met.exit_code, reduced.exit_code) == (0, 0), met.stderr + reduced.stderr
    assert reduced.stdout.count("after 3") == 2
    assert met.stdout.count("sum 3") == 2
    ours = isinstance(pods.kube, Kube)
    assert not ours or {line.rpartition(" on ")[2] for line in met.stdout.splitlines()} <= {
        node.name for node in pods.kube.nodes
    }, "not in pods' networks"


@contextmanager
def no_room(user: User) -> Iterator[None]:
    """No new pod finds a machine, where the machines are ours."""
    with ExitStack() as stack:
        for node in user.kube.nodes if isinstance(user.kube, Kube) else ():
            if not node.status():
                continue  # removed
            node.cordon()
            stack.callback(node.cordon, on=False)
        yield


def test_an_elastic_run_goes_on_without_a_pod_that_is_evicted_and_takes_it_back(pods: User) -> None:
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
    assert after[0] == before[0], "its pod has gone on"
    assert after.get(1) != before[1]


def test_cancel_while_an_image_is_pulled_leaves_nothing(pods: User, machines: Kube) -> None:
    waits = "import socket\nserver = socket.create_server(('', 5000))\nheld = [server.accept()]\nprint('asked', flush=True)\n"
    waits += "while True: held.append(server.accept())\n"
    pipe = subprocess.PIPE
    silent = Follower(machines.controller.popen((sys.executable, "-c", waits), stdout=pipe, stderr=pipe))
    pods.write("x.py", "print(1)\n")
    run = pods.detached("--image", f"{machines.controller.address}:5000/slow:1", "x.py")
    silent.until("asked")

    cancelled = pods("cancel", run)

    assert cancelled.exit_code == 0, cancelled.stderr
    assert pods.state(run)["state"] == "cancelled"
    pods.wait_nothing_left()
    silent.close()


def test_a_run_starts_again_without_a_machine_that_is_cut_off_and_removed(cut_off: CutOff) -> None:
    done = cut_off.run.result()

    assert done.exit_code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{n}:{n}] {text}" for n in "01" for text in ("attempt 1 node", "ready")]
    assert "ending, to be started again: node 1 has not answered for 30 s" in done.stderr
    assert "attempt 1" in done.stderr
    assert cut_off.node.name not in {pod["spec"]["nodeName"] for pod in cut_off.user.pods(cut_off.run.run)}
