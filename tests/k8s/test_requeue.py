"""`distlaunch requeue` on Kubernetes: the next attempt of a run, and never two at once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.k8s.conftest import KINDS, LABEL, stopped_often
from tests.k8s.scripts import WAITS

if TYPE_CHECKING:
    from tests.k8s.conftest import User
    from tests.k8s.proxy import Proxy

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(600)]

AGAIN = """
import os, sys, time
attempt = os.environ.get("DISTLAUNCH_ATTEMPT", "0")
print("attempt", attempt, "after", os.environ.get("DISTLAUNCH_ATTEMPT_REASON"), flush=True)
print("secret", os.environ.get("TOKEN"), flush=True)
if attempt == sys.argv[1]:
    sys.exit()
time.sleep(1)  # the other node has started its worker by then
sys.exit(3)
"""
"""Fails until it is the attempt that its argument names."""

ELSEWHERE = "elsewhere"


def elsewhere(user: User) -> dict[str, str | None]:
    """Another machine's runs."""
    return {"DISTLAUNCH_RUNS_DIR": str(user.cli.directory / ELSEWHERE)}


def test_a_run_is_started_again_whatever_its_end_and_wherever_it_was_launched(pods: User) -> None:
    """One that failed, in its directory and from another machine; one that was cancelled; one that has a secret."""
    pods.write("again.py", AGAIN)
    two = ("--nodes", "2", "--log-ranks", "all")
    failed = pods.follow(*two, "again.py", "2")
    secret = pods.follow("--secret", "TOKEN", "again.py", "1", env={"TOKEN": "s3cret"})
    pods.write("waits.py", WAITS)
    cancelled = pods.follow(*two, "waits.py")
    cancelled.wait("two that wait", lambda: cancelled.stdout.count("ready") == 2)
    assert pods("cancel", cancelled.run).exit_code == 0
    assert (failed.result().exit_code, secret.result().exit_code) == (1, 1)

    first, unset, after_cancel = pods.at_once(
        ("requeue", failed.run, "--output", "json"), ("requeue", secret.run), ("requeue", cancelled.run)
    )
    with_it = pods("requeue", secret.run, env={"TOKEN": "other"})

    assert first.exit_code == 0, first.stdout + first.stderr
    assert first.json["result"] == {"run": failed.run, "attempt": 1}, first.stderr
    assert unset.exit_code == 2
    assert "secret TOKEN: not set in the current environment" in unset.stderr
    assert (with_it.exit_code, after_cancel.exit_code) == (0, 0), with_it.stderr + after_cancel.stderr
    assert pods("logs", "-f", secret.run).stdout.splitlines()[2:] == [
        "[0:0] attempt 1 after failed",
        "[0:0] secret other",
    ]
    shown = pods("logs", "-f", cancelled.run).stdout
    assert shown.count("saved") == shown.count("attempt 1 cancelled") == 2, shown
    assert pods("wait", failed.run).exit_code == 1

    there = pods("requeue", failed.run, "--on", "k8s", env=elsewhere(pods))
    assert there.exit_code == 0, there.stderr
    assert pods("wait", failed.run, env=elsewhere(pods)).exit_code == 0
    assert pods("logs", failed.run, env=elsewhere(pods)).stdout.count("attempt 2 after failed") == 2
    state = pods("status", failed.run, "--output", "json", env=elsewhere(pods)).json["result"]
    assert (state["state"], state["attempt"], state["cause"]) == ("success", 2, None)
    anew = pods("requeue", failed.run, "--output", "json", env=elsewhere(pods)).json
    assert anew.get("result", anew) == {"run": failed.run, "attempt": 3}, (
        "a run that has succeeded, as on other backends"
    )
    assert pods("wait", failed.run, env=elsewhere(pods)).exit_code == 1, "only attempt 2 succeeds"
    stale = pods("requeue", failed.run)
    assert (stale.exit_code, "was started again elsewhere" in stale.stderr) == (2, True)
    for run in (failed.run, secret.run, cancelled.run):
        assert (
            len(pods.kube.api.get(KINDS["jobs"].format(pods.namespace), labelSelector=f"{LABEL}={run}")["items"]) == 1
        )


def test_a_run_that_tells_others_is_started_again_from_a_machine_that_does_not_know_them(pods: User) -> None:
    pods.write("again.py", AGAIN)
    run = pods.follow("--notify", "http://127.0.0.1:9/x", "again.py", "1")
    assert run.result().exit_code == 1

    again = pods("requeue", run.run, "--on", "k8s", env=elsewhere(pods))

    assert again.exit_code == 0, again.stderr
    assert pods("wait", run.run, env=elsewhere(pods)).exit_code == 0
    assert "this attempt sends no notices" in again.stderr
    assert "attempt 1 after failed" in pods("logs", run.run, env=elsewhere(pods)).stdout


def test_a_run_that_runs_is_stopped_by_the_contract_and_its_followers_stay(pods: User) -> None:
    pods.write("waits.py", WAITS)
    run = pods.follow("--nodes", "2", "--log-ranks", "all", "waits.py")
    run.wait("two that wait", lambda: run.stdout.count("ready") == 2)

    asked = pods("requeue", run.run)

    assert asked.exit_code == 0, asked.stderr
    done = run.result()
    assert done.exit_code == 0, done.stderr
    assert [done.stdout.count(word) for word in ("saving with time left", "saved", "attempt 1 preempted")] == [2, 2, 2]
    assert "after preemption, attempt 1" in done.stderr
    state = pods.state(run.run)
    assert (state["state"], state["attempt"]) == ("success", 1)


def test_a_run_that_was_stopped_often_is_started_again_once_its_pods_have_ended(pods: User) -> None:
    """Kubernetes keeps pods that have ended until it makes their successors: after five stops, 320 s."""
    pods.write("waits.py", WAITS)
    run = pods.detached("--nodes", "2", "--grace", "1s", "waits.py")
    pods.wait_printed(run, "ready", 2)
    stopped_often(pods, run)

    asked = pods("requeue", run)

    assert asked.exit_code == 0, asked.stderr
    assert asked.stdout.startswith(f"{run}: attempt 1"), asked.stdout
    assert [pod["status"]["phase"] for pod in pods.pods(run)] == ["Failed"] * 2
    state = pods.state(run)
    assert (state["state"], state["detail"].partition(" later")[0]) == (
        "pending",
        "2 of 2 pods have ended: Kubernetes starts them again 320 s",
    )
    assert pods("cancel", run).exit_code == 0


def test_a_run_that_another_machine_has_started_again_is_cancelled_from_here(pods: User) -> None:
    """Bare pods are created anew, with other uids than those that are known here."""
    pods.write("forever.py", "import time; print('ready', flush=True); time.sleep(1000)\n")
    run = pods.detached("--kind", "pods", "--grace", "1s", "forever.py")
    pods.wait_printed(run, "ready", 1)
    (before,) = pods.pods(run)

    again = pods("requeue", run, "--on", "k8s", env=elsewhere(pods))
    assert again.exit_code == 0, again.stderr
    assert {pod["metadata"]["uid"] for pod in pods.wait_pods(run, 1)} != {before["metadata"]["uid"]}
    pods.wait_printed(run, "ready", 1)

    ended = pods("cancel", run)
    assert ended.exit_code == 0, ended.stderr
    pods.wait_nothing_left(run)


def test_what_cannot_be_started_again_is_one_error(user: User) -> None:
    """On a control plane without nodes, where pods wait."""
    run = user.detached("--nodes", "2", "x.py")
    user.wait_pods(run, 2)
    said = user("requeue", run)
    assert (said.exit_code, f"{run} waits already: " in said.stderr) == (2, True)

    once = user.detached("--name", "once", "x.py")
    user.wait_pods(once, 1)
    assert user("cancel", "--force", once).exit_code == 0
    assert user("requeue", once).exit_code == 0
    user.wait_pods(once, 1)
    there = user("requeue", once, "--on", "k8s", env=elsewhere(user))
    assert f"{once} waits already: " in there.stderr, "attempt 1, of which no node has told that other machine"
    assert (there.exit_code, user("cancel", "--force", once).exit_code) == (2, 0)

    adopted = user("adopt", run, "--on", "k8s", env=elsewhere(user))
    assert adopted.exit_code == 0, adopted.stderr
    assert user("cancel", "--force", run).exit_code == 0
    user.wait_nothing_left(run)
    gone = user("requeue", run, env=elsewhere(user))
    assert gone.exit_code == 2
    assert "was started elsewhere, and its objects are no longer in the cluster" in gone.stderr

    nobody = user.with_rights("nobody", [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]}])
    record = user.cli.runs / run / "run.json"
    own = json.loads(record.read_text())
    record.write_text(json.dumps({**own, "handle": {**own["handle"], "kubeconfig": str(nobody.kubeconfig)}}))
    forbidden = nobody("requeue", run)
    assert forbidden.exit_code == 3
    assert "may not list pods" in forbidden.stderr
    silent = user.write(
        "silent.kubeconfig", nobody.kubeconfig.read_text().replace(user.kube.server, "https://127.0.0.1:9")
    )
    record.write_text(json.dumps({**own, "handle": {**own["handle"], "kubeconfig": str(silent)}}))
    unanswered = user("requeue", run)
    assert unanswered.exit_code == 3
    assert "the API server cannot be reached" in unanswered.stderr
    assert user.left(run) == [], "and nothing was created"


def test_a_requeue_that_is_killed_at_any_request_can_be_repeated_and_starts_one_attempt(
    user: User, proxy: Proxy
) -> None:
    """Killed once each of its requests has taken effect, before the answer arrives."""
    through = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))
    run = through.detached("--nodes", "2", "x.py")
    jobs, maps = KINDS["jobs"].format(user.namespace), KINDS["configmaps"].format(user.namespace)
    user.kube.api.delete(f"{jobs}/{run}", propagationPolicy="Background")
    user.wait_nothing_left(run)
    for cut in (f"POST {jobs}", f"DELETE {jobs}/{run}", f"POST {maps}", f"PATCH {jobs}/{run}"):
        proxy.held = cut
        proxy.holds.clear()
        proxy.released.clear()
        with user.cli.start("requeue", run, env=through.env()) as process:
            assert proxy.holds.wait(120), cut
            process.kill()
            process.communicate()
        proxy.released.set()
        assert len(user.kube.api.get(jobs)["items"]) <= 1, cut
        pods = user.wait_pods(run, 2) if cut.startswith("PATCH") else user.pods(run)
        assert cut.startswith("PATCH") or all("deletionTimestamp" in pod["metadata"] for pod in pods), cut
        assert len({pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods}) <= 1, cut
        assert through("status", run).exit_code == 0

    last = through("requeue", run)

    assert last.exit_code == 0, last.stderr
    pods = user.wait_pods(run, 2)
    (job,) = user.kube.api.get(jobs)["items"]
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods} == {job["metadata"]["uid"]}


def test_runs_of_every_kind_are_started_again(kinds: User) -> None:
    """All at once: by their launcher, then by another one, which reads them back from the cluster."""
    kinds.write("again.py", AGAIN)
    runs = {
        kind: kinds.follow("--kind", kind, "--nodes", "2", "again.py", "2")
        for kind in ("jobset", "trainjob", "pytorchjob", "mpijob", "tfjob", "pods")
    }
    assert {kind: follower.result().exit_code for kind, follower in runs.items()} == dict.fromkeys(runs, 1)
    for number, env in enumerate(({}, elsewhere(kinds)), start=1):
        names = {kind: follower.run for kind, follower in runs.items()}
        for kind, run in names.items():
            begun = kinds("requeue", run, "--on", "k8s", env=env)
            assert begun.exit_code == 0, f"{kind}: {begun.stderr}"
        ended = kinds.at_once(*(("wait", run) for run in names.values()), env=env)
        assert [done.exit_code for done in ended] == [2 - number] * len(runs), ended
        for kind, follower in runs.items():
            shown = kinds("logs", follower.run, env=env).stdout
            # One of two: the controller deletes the pods of a Job that fails, whose lines no one may have read yet.
            assert f"attempt {number} after " in shown, f"{kind}: {shown}"
            state = kinds("status", follower.run, "--output", "json", env=env).json["result"]
            assert state["attempt"] == number, kind
