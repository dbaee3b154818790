"""`distlaunch k8s` where containers are added beside ours, as by a service mesh or a log collector."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from testbed import Kube
from tests.k8s.conftest import job_ends
from tests.k8s.scripts import FAILS, MEET, WAITS

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]

BESIDE = """
kind: Job
spec:
  template:
    spec:
      containers:
      - {{name: a-mesh, image: "{image}", command: [sh, -c, "{command}"]}}
"""
"""Its status comes before ours, as they are in the order of names."""

NATIVE = """
kind: Job
spec:
  template:
    spec:
      initContainers:
      - {{name: first, image: "{image}", command: ["true"]}}
      - {{name: a-mesh, image: "{image}", restartPolicy: Always, command: [sh, -c, "{command}"]}}
"""

FOREVER = "trap 'exit 0' TERM; echo from the mesh; while true; do sleep 0.1; done"
FAILING = "echo from the mesh; exit 3"
STUBBORN = "trap 'exit 7' TERM; while true; do sleep 0.1; done"


def patch(user: User, name: str, command: str, text: str = BESIDE) -> tuple[str, str]:
    """The options that put such a container into each pod."""
    user.write(name, text.format(image=user.image, command=command))
    return "--patch", name


def test_a_second_container_changes_nothing_whether_it_succeeds_fails_or_never_ends(pods: User) -> None:
    """All at once: the run's output, its result, and the end of its Job."""
    pods.write("meet.py", MEET)
    pods.write("fails.py", FAILS)
    two = ("--nodes", "2", "--log-ranks", "all")
    beside = {"forever": FOREVER, "failing": FAILING, "stubborn": STUBBORN, "brief": "true"}
    runs = {
        name: pods.follow(*two, *patch(pods, f"{name}.yaml", command), "meet.py") for name, command in beside.items()
    }
    runs["native"] = pods.follow(*two, *patch(pods, "native.yaml", FOREVER, NATIVE), "meet.py")
    failed = pods.follow(*two, "--grace", "5s", *patch(pods, "again.yaml", FOREVER), "fails.py")

    for name, run in runs.items():
        done = run.result()
        assert done.exit_code == 0, f"{name}: {done.stderr}"
        said = sorted(line.partition(" on ")[0] for line in done.stdout.splitlines())
        assert said == ["[0:0] rank 0/2: sum 3", "[1:1] rank 1/2: sum 3"], name
        assert "from the mesh" not in done.stderr
        assert "attempt" not in done.stderr, name
        assert pods.state(run.run)["state"] == "success", name
        assert job_ends(pods, run.run) <= (
            {"Complete"} if name in ("forever", "native", "brief") else {"Complete", "Failed"}
        ), name
    ended = failed.result()
    assert ended.exit_code == 1, ended.stderr
    assert "first failure: rank 1, " in ended.stderr
    assert job_ends(pods, failed.run) == {"Failed"}


def test_a_run_with_a_second_container_is_signalled_starts_again_and_is_seen_by_others(pods: User) -> None:
    pods.write("waits.py", WAITS)
    run = pods.follow("--nodes", "2", "--log-ranks", "all", *patch(pods, "forever.yaml", FOREVER), "waits.py")
    run.until("ready", count=2)
    run.process.send_signal(signal.SIGUSR1)
    run.until("usr1", count=2)
    (name,) = [
        pod["metadata"]["name"] for pod in pods.pods(run.run) if pod["metadata"]["name"].startswith(f"{run.run}-1-")
    ]

    pods.kube.delete_pod(pods.namespace, name)

    done = run.result()
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("attempt 1 preempted") == 2
    assert job_ends(pods, run.run) == {"Complete"}


def test_a_run_with_a_second_container_that_is_not_followed_is_ended_by_the_next_look(pods: User) -> None:
    pods.write("meet.py", MEET)
    run = pods.detached("--nodes", "2", *patch(pods, "forever.yaml", FOREVER), "meet.py")
    fails = pods.detached("--nodes", "2", *patch(pods, "failing.yaml", FAILING), "meet.py")

    def ended(found: list[dict[str, Any]]) -> bool:
        states = [{item["name"]: item["state"] for item in pod["status"].get("containerStatuses", ())} for pod in found]
        return len(states) == 2 and all("terminated" in each.get("node", ()) for each in states)

    pods.kube.wait_pods(pods.namespace, "ours to end", ended, selector=f"distlaunch/run={run}")

    assert pods.state(run)["state"] == "success"
    assert "sum 3" in pods("logs", run).stdout
    job_ends(pods, fails)
    assert pods.state(fails)["state"] == "success", "whatever is left of its pods"


def test_an_init_container_that_fails_is_named(pods: User) -> None:
    """Its program, and its image."""
    if not isinstance(pods.kube, Kube):
        pytest.skip("registries of other clusters have images of any name")
    first = NATIVE.partition("      - {{name: a-mesh")[0]
    texts = {
        "container first ended with exit code 4": first.replace('["true"]', '[sh, -c, "exit 4"]'),
        "ImagePull": first.replace("{image}", "distlaunch.test/none:1"),
    }
    pods.write("x.py", "print(1)\n")
    runs = {
        words: pods.follow("--start-timeout", "3s", *patch(pods, f"first-{number}.yaml", "", text), "x.py")
        for number, (words, text) in enumerate(texts.items())
    }
    for words, run in runs.items():
        done = run.result()
        assert done.exit_code == 1, done.stderr
        assert words in done.stderr.rpartition("a node failed")[2]
