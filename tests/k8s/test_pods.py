"""`distlaunch k8s` with real pods: nodes with a kubelet and containerd."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testbed import Kube, kube_builds, kube_image, kube_programs
from testbed.kube_watch import wait_for
from tests import large
from tests.k8s.conftest import index_of
from tests.k8s.following import Follower
from tests.k8s.scripts import EATS, FAILS, MEET, WAITS
from tests.unused_gpus import besides

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]


def test_three_runs_at_once_with_files_arguments_and_secrets(pods: User) -> None:
    ours = isinstance(pods.kube, Kube)
    pods.write("data/words.txt", "from the launcher's host")
    (pods.cli.directory / "data/noise.bin").write_bytes(os.urandom(5_000_000))
    pods.write("mine/__init__.py", "WORD = 'imported'\n")
    pods.write(
        "uses.py",
        "import os, sys, mine\nsize = os.path.getsize('data/noise.bin')\n"
        "print(mine.WORD, open('data/words.txt').read(), size, sys.argv[1:], os.environ['TOKEN'], os.environ['V'])\n",
    )
    gpus = ("--gpus-per-node", "4") if ours else ()
    reduce = pods.follow("--nodes", "4", "--nproc-per-node", "2", *gpus, "--log-ranks", "all", "reduce.py")
    train = pods.follow("--nodes", "2", "train.py", "--epochs", "3")
    args = ["a b", "'\"$HOME`x`\\", "line\nbreak", "ü", "--"]
    secret: dict[str, str | None] = {"TOKEN": 's3cr3t, "quoted"'}
    pods.write("fits.py", "import pytest\nprint('fits')\n")  # it is not known whether it imports torch
    little = pods.follow("--memory", "200Mi", "--shm", "10Mi", "fits.py")
    base = (f"{sys.base_prefix}/bin/python3", "--no-python", f"python3.{sys.version_info[1]}-config", "--prefix")
    beside = pods.follow("--memory", "100Mi", "--shm", "10Mi", "--python", *base) if ours else None
    uses = pods("k8s", "--secret", "TOKEN", "--env", "V=a,b 'c' $D", "uses.py", *args, env=secret)

    assert uses.exit_code == 0, uses.stderr
    assert uses.stdout == f"imported from the launcher's host 5000000 {args!r} s3cr3t, \"quoted\" a,b 'c' $D\n"
    reduced = reduce.result()
    assert reduced.exit_code == 0, reduced.stderr
    found = re.findall(r"\[(\d):(\d)\] rank (\d)/8 on \S+-(\d): before (\d), after 36", reduced.stdout)
    assert sorted(found) == [(str(r // 2), str(r), str(r), str(r // 2), str(r + 1)) for r in range(8)]
    on = Counter(node["host"] for node in pods.state(reduce.run)["nodes"])
    assert max(on.values()) <= 2 or not ours, "hosts have 8 GPUs, and each pod takes 4"
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
    assert done.stdout.count(large.PRINTED) == 2


def test_how_a_run_failed_is_reported_once_and_nothing_continues(pods: User) -> None:
    """A rank that fails, one that is killed for lack of memory, and an image that does not exist."""
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
        pods.namespace,
        "all pods to end",
        lambda found: all(pod["status"]["phase"] in ("Failed", "Succeeded") for pod in found),
    )


def test_a_detached_run_is_seen_and_cancelled_from_another_shell(pods: User) -> None:
    pods.write("waits.py", WAITS)
    run = pods.detached("--nodes", "2", "waits.py")
    pods.wait_printed(run, "ready", 2)

    assert pods.state(run)["state"] == "running"
    cancelled = pods("cancel", run)

    assert cancelled.exit_code == 0, cancelled.stderr
    assert pods.state(run)["state"] == "cancelled"
    shown = pods("logs", run).stdout
    assert [shown.count(text) for text in ("ready\n", "saving with time left\n", "saved\n")] == [2, 2, 2]
    pods.wait_nothing_left()


def test_workers_that_share_a_pod_have_one_thread_each_and_a_single_one_keeps_its_default(pods: User) -> None:
    pods.write("threads.py", "import os\nprint('threads', os.environ.get('OMP_NUM_THREADS'))\n")
    alone = ("--log-ranks", "0", "threads.py")
    shared, single = pods.at_once(*(("k8s", "--nproc-per-node", workers, *alone) for workers in ("2", "1")))

    assert (shared.stdout, single.stdout) == ("threads 1\n", "threads None\n"), shared.stderr + single.stderr


def test_rendered_yaml_runs_by_itself_when_it_is_applied_by_hand(pods: User, tmp_path: Path) -> None:
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
    (secret,) = re.findall(r"^# First, as no file contains the secrets: (.*)$", text, re.MULTILINE)

    by_hand = (
        kube_programs.find(kube_builds.KUBERNETES, "kubectl")
        if isinstance(pods.kube, Kube)
        else shutil.which("kubectl")
    )
    env = {
        "PATH": f"{Path(str(by_hand)).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(pods.kubeconfig),
        "TOKEN": "s3cr3t",
    }
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


def test_runs_in_a_restricted_namespace_succeed_with_the_documented_flags(pods: User, own_kube: Kube) -> None:
    """As a given user and as the image's own; the kubelet refuses an image whose user is root, for that reason."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    own_kube.api.patch(f"/api/v1/namespaces/{pods.namespace}", {"metadata": {"labels": labels}})
    pods.write("meet.py", MEET + "print('as', os.getuid(), os.getgid(), flush=True)\nopen('written', 'w').close()\n")
    given = pods.follow("--run-as", "1001:1002", "--nodes", "2", "--log-ranks", "all", "reduce.py")
    own = pods.follow(
        "--run-as", "image", "--image", kube_image.AS_USER, "--nodes", "2", "--log-ranks", "all", "meet.py"
    )
    root = pods.follow("--run-as", "image", "--start-timeout", "1s", "meet.py")
    user = pods.follow("--run-as", "1001:1002", "meet.py")

    for follower, words in ((given, "after 3"), (own, "as 1000 0"), (user, "as 1001 1002")):
        done = follower.result()
        assert done.exit_code == 0, done.stderr
        assert done.stdout.count(words) == (1 if follower is user else 2), done.stdout
        assert "warning" not in besides(done.stderr)
    refused = root.result()
    assert refused.exit_code == 1, refused.stderr
    assert "image will run as root" in refused.stderr


def test_two_runs_on_the_hosts_network_choose_free_ports(pods: User) -> None:
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


def test_cancel_while_an_image_is_pulled_leaves_nothing(pods: User, own_kube: Kube) -> None:
    waits = "import socket\nserver = socket.create_server(('', 5000))\nheld = [server.accept()]\n"
    waits += "print('asked', flush=True)\nwhile True: held.append(server.accept())\n"
    pipe = subprocess.PIPE
    silent = Follower(own_kube.controller.popen((sys.executable, "-c", waits), stdout=pipe, stderr=pipe))
    pods.write("x.py", "print(1)\n")
    run = pods.detached("--image", f"{own_kube.controller.address}:5000/slow:1", "x.py")
    silent.until("asked")

    cancelled = pods("cancel", run)

    assert cancelled.exit_code == 0, cancelled.stderr
    assert pods.state(run)["state"] == "cancelled"
    pods.wait_nothing_left()
    silent.close()
