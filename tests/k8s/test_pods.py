"""`distlaunch k8s` with real pods: two machines with kubelet and containerd."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.testbed import Kube, wait_until

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]

WAITS = """
import os, signal, sys, time
def save(*_):
    if not os.path.exists(os.environ["DISTLAUNCH_DEADLINE_FILE"]):
        sys.exit(143)
    left = float(open(os.environ["DISTLAUNCH_DEADLINE_FILE"]).read()) - time.time()
    print("saving with", "time" if left > 5 else "no time", "left", flush=True)
    time.sleep(0.5)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
attempt = os.environ.get("DISTLAUNCH_ATTEMPT")
if attempt:
    print("attempt", attempt, os.environ["DISTLAUNCH_ATTEMPT_REASON"], flush=True)
    sys.exit(0)
print("ready", flush=True)
while True:
    time.sleep(0.2)
"""

TICKS = """
import sys, time
for number in range(int(sys.argv[1])):
    print("tick", number, flush=True)
    time.sleep(0.01)
"""


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


def stream(user: User, run: str, node: int = 0) -> bytes:
    """What is kept of a node's stream."""
    path = user.cli.runs / run / "nodes" / str(node) / "stream"
    return path.read_bytes() if path.exists() else b""


def wait_ready(user: User, run: str, nodes: int) -> None:
    """Until all workers of WAITS run, as a detached run's logs tell."""
    wait_until(f"{run} to run", lambda: user("logs", run).stdout.count("ready") == nodes, limit_s=120, every_s=0.5)


def the_run(user: User) -> str:
    """The only run's id, once it was submitted."""
    (path,) = wait_until("the run", lambda: list(user.cli.runs.glob("*/run.json")), limit_s=60)
    return path.parent.name


def test_reduce_gives_36_on_four_pods_with_two_workers_each(pods: User) -> None:
    ours = isinstance(pods.kube, Kube)
    gpus = ("--gpus-per-node", "4") if ours else ()
    done = pods("k8s", "--nodes", "4", "--nproc-per-node", "2", *gpus, "--log-ranks", "all", "reduce.py")

    assert done.exit_code == 0, done.stderr
    found = re.findall(r"\[(\d):(\d)\] rank (\d)/8 on \S+-(\d): before (\d), after 36", done.stdout)
    assert sorted(found) == [(str(r // 2), str(r), str(r), str(r // 2), str(r + 1)) for r in range(8)]
    (run,) = [path.parent.name for path in pods.cli.runs.glob("*/run.json")]
    assert {node["host"] for node in pods.state(run)["nodes"]} == {"n1", "n2"} or not ours
    cancelled = pods("cancel", run)
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{run}: success\n")


def test_two_runs_at_once_and_files_of_5_mb_that_we_ship(pods: User) -> None:
    pods.write("data/words.txt", "from the launcher's machine")
    (pods.cli.folder / "data/noise.bin").write_bytes(os.urandom(5_000_000))
    pods.write("mine/__init__.py", "WORD = 'imported'\n")
    pods.write(
        "uses.py",
        "import os, sys, mine\nprint(mine.WORD, open('data/words.txt').read(), os.path.getsize('data/noise.bin'), sys.argv[1:],"
        " os.environ['TOKEN'], os.environ['V'])\n",
    )
    other = pods.start("k8s", "--nodes", "2", "train.py", "--epochs", "3")
    args = ["a b", "'\"$HOME`x`\\", "line\nbreak", "ü", "--"]
    secret: dict[str, str | None] = {"TOKEN": 's3cr3t, "quoted"'}
    done = pods("k8s", "--secret", "TOKEN", "--env", "V=a,b 'c' $D", "uses.py", *args, env=secret)

    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"imported from the launcher's machine 5000000 {args!r} s3cr3t, \"quoted\" a,b 'c' $D\n"
    stdout, stderr = other.communicate(timeout=150)
    assert other.returncode == 0, stderr
    accuracy = re.search(rb"test accuracy ([\d.]+)%", stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 80


def test_a_deleted_pod_starts_the_run_again_and_workers_have_their_grace_time(pods: User) -> None:
    pods.write("waits.py", WAITS)
    follower = pods.start("k8s", "--nodes", "2", "--log-ranks", "all", "waits.py")
    run = the_run(pods)
    wait_until("the workers", lambda: b"ready" in stream(pods, run, 0) and b"ready" in stream(pods, run, 1), limit_s=90)

    follower.send_signal(signal.SIGUSR1)
    wait_until("the signal", lambda: b"usr1" in stream(pods, run, 0) and b"usr1" in stream(pods, run, 1), limit_s=60)
    pods.kube.evict(pods.namespace, pods.pods(run)[1]["metadata"]["name"])

    stdout, stderr = follower.communicate(timeout=150)
    assert follower.returncode == 0, stderr
    lines = stdout.decode().splitlines()
    for node in "01":
        assert [line for line in lines if line.startswith(f"[{node}:")] == [
            f"[{node}:{node}] {text}" for text in ("ready", "usr1", "saving with time left", "attempt 1 preempted")
        ]
    assert b"attempt 1" in stderr
    assert pods.state(run)["state"] == "success"


def test_a_failure_is_told_once_and_all_pods_end(pods: User) -> None:
    pods.write(
        "fail.py",
        "import torch.distributed as dist, time\ndist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1: raise ValueError('only on one')\ntime.sleep(600)\n",
    )
    done = pods("k8s", "--nodes", "2", "fail.py")

    assert done.exit_code == 1
    assert "rank 1" in done.stderr
    assert done.stderr.count("ValueError: only on one") <= 2
    wait_until("the pods' end", lambda: all(p["status"]["phase"] != "Running" for p in pods.pods(the_run(pods))), limit_s=60)


def test_out_of_memory_is_told_from_the_container(pods: User) -> None:
    pods.write("eats.py", "import os, signal\nblocks = []\nwhile True: blocks.append(bytearray(50_000_000))\n")

    done = pods("k8s", "--memory", "700Mi", "--shm", "10Mi", "eats.py")

    assert done.exit_code == 1, done.stderr
    assert "out of memory" in done.stderr


def test_an_image_that_does_not_exist_is_told_and_the_run_is_ended(pods: User) -> None:
    pods.write("x.py", "print(1)\n")

    done = pods("k8s", "--image", "distlaunch.test/none:1", "--start-timeout", "5s", "x.py")

    assert done.exit_code == 1, done.stderr
    assert "pending: 1 of 1 pods wait: " in done.stderr
    assert "ImagePull" in done.stderr.rpartition("a node failed")[2]
    assert "distlaunch.test/none:1" in done.stderr
    wait_until("nothing to be left", lambda: not pods.left(), limit_s=60)


def test_a_detached_run_is_seen_and_cancelled_from_another_shell(pods: User) -> None:
    pods.write("waits.py", WAITS)
    run = pods.detached("--nodes", "2", "waits.py")
    wait_ready(pods, run, 2)

    assert pods.state(run)["state"] == "running"
    cancelled = pods("cancel", run)

    assert cancelled.exit_code == 0, cancelled.stderr
    assert pods.state(run)["state"] == "cancelled"
    assert pods("logs", run).stdout.count("saving with time left") == 2
    wait_until("nothing to be left", lambda: not pods.left(), limit_s=60)


def test_the_api_server_goes_while_the_run_is_followed_and_no_line_is_lost(pods: User, machines: Kube) -> None:
    pods.write("ticks.py", TICKS)
    follower = pods.start("k8s", "ticks.py", "1500")
    run = the_run(pods)
    wait_until("some lines", lambda: b"tick 100" in stream(pods, run), limit_s=90)

    machines.restart_api()

    stdout, stderr = follower.communicate(timeout=150)
    assert follower.returncode == 0, stderr
    assert stdout.decode().splitlines() == [f"tick {number}" for number in range(1500)]


def test_what_is_printed_runs_by_itself_when_it_is_applied_by_hand(pods: User) -> None:
    script = "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint('hello', dist.get_world_size())\n"
    pods.write("hello.py", script)
    text = pods("k8s", "--dry-run", "--nodes", "2", "hello.py").stdout

    pods.kube.kubectl("apply", "-n", pods.namespace, "-f", "-", stdin=text)

    name = re.search(r"^# Run (\S+):", text, re.MULTILINE)
    assert name is not None
    phases = {"Succeeded"}
    run = name[1]
    wait_until("the pods to succeed", lambda: {pod["status"]["phase"] for pod in pods.pods(run)} == phases, limit_s=90)
    logs = [pods.kube.log(pods.namespace, pod["metadata"]["name"]) for pod in pods.pods(run)]
    assert [log.count(" hello 2\n") for log in logs] == [1, 1]


def test_on_the_machines_own_network_two_runs_choose_free_ports(pods: User) -> None:
    other = pods.start("k8s", "--host-network", "--nodes", "2", "--log-ranks", "all", "reduce.py")
    done = pods("k8s", "--host-network", "--nodes", "2", "--log-ranks", "all", "reduce.py")

    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("after 3") == 2
    stdout, stderr = other.communicate(timeout=120)
    assert other.returncode == 0, stderr
    assert stdout.count(b"after 3") == 2


def test_a_run_starts_again_without_a_machine_that_is_cut_off_and_removed(pods: User, machines: Kube) -> None:
    pods.write("waits.py", WAITS)
    pods.write("apart.yaml", APART)
    follower = pods.start("k8s", "--nodes", "2", "--patch", "apart.yaml", "--grace", "5s", "--log-ranks", "all", "waits.py")
    run = the_run(pods)
    wait_until("the workers", lambda: b"ready" in stream(pods, run, 0) and b"ready" in stream(pods, run, 1), limit_s=90)
    lost = next(pod for pod in pods.pods(run) if pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "1")
    node = next(node for node in machines.nodes if node.name == lost["spec"]["nodeName"])
    node.host.cut_off()
    try:
        machines.api.delete(f"/api/v1/nodes/{node.name}")
        stdout, stderr = follower.communicate(timeout=240)
    finally:
        node.host.reconnect()
        node.stop_kubelet()
        node.start_kubelet()
        node.wait_ready()
        node.gpus(machines.options.gpus_per_host)

    assert follower.returncode == 0, stderr
    assert sorted(stdout.decode().splitlines()) == [f"[{n}:{n}] {text}" for n in "01" for text in ("attempt 1 node", "ready")]
    assert b"ending, to be started again: node 1 was not heard of" in stderr
    assert b"attempt 1" in stderr


def test_an_elastic_run_goes_on_without_a_pod_that_is_evicted_and_takes_it_back(pods: User) -> None:
    pods.write(
        "elastic.py",
        "import os, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "print('size', dist.get_world_size(), flush=True)\n"
        "while True:\n"
        "    again = torch.tensor(int(os.environ['TORCHELASTIC_RESTART_COUNT'] != '0'))\n"
        "    dist.all_reduce(again)\n"
        "    if again and dist.get_world_size() == 2: break\n"
        "    time.sleep(0.1)\n",
    )
    follower = pods.start("k8s", "--nodes", "1:2", "--max-restarts", "5", "--log-ranks", "all", "elastic.py")
    run = the_run(pods)
    wait_until("both", lambda: all(b"size 2" in stream(pods, run, node) for node in (0, 1)), limit_s=120)

    pods.kube.evict(pods.namespace, pods.pods(run)[1]["metadata"]["name"])

    stdout, stderr = follower.communicate(timeout=170)
    assert follower.returncode == 0, stderr
    assert stdout.count(b"size 1") <= 1, "none where the other comes back before the rest have met"
    assert stdout.rstrip().endswith(b"size 2")
    assert b"attempt 1" in stderr


def test_cancel_while_an_image_is_pulled_leaves_nothing(pods: User, machines: Kube) -> None:
    connected = pods.cli.folder / "connected"
    waits = "import socket, sys\nserver = socket.create_server(('', 5000))\nheld = [server.accept()]\nopen(sys.argv[1], 'w')\n"
    waits += "while True: held.append(server.accept())\n"
    silent = machines.controller.daemon((sys.executable, "-c", waits, str(connected)), pods.cli.folder / "silent.log")
    pods.write("x.py", "print(1)\n")
    run = pods.detached("--image", f"{machines.controller.address}:5000/slow:1", "x.py")
    wait_until("the pull", connected.exists, limit_s=60)

    cancelled = pods("cancel", run)

    assert cancelled.exit_code == 0, cancelled.stderr
    assert pods.state(run)["state"] == "cancelled"
    wait_until("nothing to be left", lambda: not pods.left(), limit_s=90)
    silent.kill()
