"""`distlaunch k8s --kind ...` with the real controllers of JobSet, Kubeflow and Kueue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from testbed import wait_until
from testbed.kube_watch import wait_for
from tests.k8s.conftest import KINDS, MORE_KINDS
from tests.k8s.scripts import FAILS, MEET, WAITS

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(600)]

UNTIMED = {"trainjob": MORE_KINDS["trainjobs"], "mpijob": MORE_KINDS["mpijobs"], "pods": KINDS["configmaps"]}
"""Kinds that no controller removes after their time to live, with the place of their owners."""

TTL = "distlaunch/ttl-seconds"
OPERATED = ("pytorchjob", "mpijob", "tfjob")
"""Kinds whose pods are not started again, with what their operators add to the variables of containers."""

ADDED = 'print(sorted(name for name in os.environ if name.startswith(("TF_CONFIG", "OMPI_"))), flush=True)\n'
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta1/namespaces/{}/workloads"


def test_every_kind_gives_each_node_its_rank_and_reports_a_failure(kinds: User) -> None:
    """All at once, one of them with torch."""
    kinds.write("meet.py", MEET)
    for kind in ("trainjob", "mpijob", "tfjob"):
        asked = kinds("k8s", "--dry-run=server", "--kind", kind, "--nodes", "2", "meet.py")
        assert asked.exit_code == 0, f"{kind}: {asked.stderr}"
    kinds.write("fails.py", f"import os\n{ADDED}{FAILS}")
    two = ("--nodes", "2", "--log-ranks", "all")
    brief = (*two, "--ttl", "15s")
    fails = {
        kind: kinds.detached("--kind", kind, *two, "--grace", "5s", "--nproc-per-node", "2", "fails.py")
        for kind in OPERATED
    }
    torch = kinds.follow("--kind", "pytorchjob", *brief, "reduce.py")
    meet = {kind: kinds.follow("--kind", kind, *brief, "meet.py") for kind in ("jobset", "pytorchjob", "tfjob")}
    meet |= {kind: kinds.follow("--kind", kind, *two, "--ttl", "1h", "meet.py") for kind in UNTIMED}

    for kind, follower in meet.items():
        done = follower.result()
        assert done.exit_code == 0, f"{kind}: {done.stderr}"
        assert sorted(line.partition(" on ")[0] for line in done.stdout.splitlines()) == [
            "[0:0] rank 0/2: sum 3",
            "[1:1] rank 1/2: sum 3",
        ], kind
    reduced = torch.result()
    assert reduced.exit_code == 0, reduced.stderr
    assert sorted(line.partition(" on ")[0] for line in reduced.stdout.splitlines()) == [
        "[0:0] rank 0/2",
        "[1:1] rank 1/2",
    ]
    assert reduced.stdout.count("after 3") == 2
    for kind, run in fails.items():  # no command has looked while it ran, and no operator has deleted its pods
        assert kinds("wait", run).exit_code == 1, kind
        cause = kinds.state(run)["cause"]
        assert (cause["rank"], "only on one" in cause["message"]) == (1, True), f"{kind}: {cause}"
        told = {line.partition("] ")[2] for line in kinds("logs", run).stdout.splitlines()}  # not all came that far
        assert told == {"[]"}, f"{kind}: what an operator adds is for one worker per pod"

    ends = dict.fromkeys(fails.values(), "failed")
    ends |= {follower.run: "success" for follower in (torch, *meet.values())}

    def listed_as_ended() -> bool:
        """A controller may be late, or have removed a run already; some kinds have none that removes them."""
        found = kinds("ls", "--on", "k8s", "--output", "json").json["result"]["runs"]
        states = {item["run"]: item["state"] for item in found}
        assert {meet[kind].run for kind in UNTIMED} <= states.keys() <= ends.keys()
        assert {item["nodes"] for item in found} == {"2"}
        return states.items() <= ends.items()

    wait_until("runs of all kinds to be listed as ended", listed_as_ended)
    elsewhere: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(kinds.cli.directory / "elsewhere")}
    for kind in UNTIMED:
        run = meet[kind].run
        seen = kinds("status", run, "--on", "k8s", "--output", "json", env=elsewhere).json["result"]
        assert (seen["state"], [node["host"] for node in seen["nodes"]].count("")) == ("success", 0), kind
        # Of an MPIJob that has ended, a worker's pod is deleted whose end Kubernetes does not know yet (`replaced.py`).
        least = 1 if kind == "mpijob" else 2
        assert least <= kinds("logs", run, env=elsewhere).stdout.count("sum 3") <= 2, kind

    for kind, path in UNTIMED.items():  # the next command removes these, controllers the others
        kinds("ls", "--on", "k8s", env={"DISTLAUNCH_KIND": kind})
        owner = f"{path.format(kinds.namespace)}/{meet[kind].run}"
        assert kinds.kube.api.get(owner)["metadata"]["annotations"][TTL] == "3600"
        kinds.kube.api.patch(owner, {"metadata": {"annotations": {TTL: "1"}}})
        kinds("ls", "--on", "k8s", env={"DISTLAUNCH_KIND": kind})
    assert kinds("rm", *fails.values()).exit_code == 0
    for run in (*(follower.run for follower in (*meet.values(), torch)), *fails.values()):
        kinds.wait_nothing_left(run, **MORE_KINDS)


def test_a_deleted_pod_of_a_jobset_starts_the_run_again_without_a_follower(kinds: User) -> None:
    kinds.write("waits.py", WAITS)
    run = kinds.detached("--kind", "jobset", "--nodes", "2", "--name", "a-name-of-thirty-two-characters0", "waits.py")
    kinds.wait_printed(run, "ready", 2)
    assert kinds("logs", run).stdout.count("ready") == 2, "a command has looked, and has exited"

    kinds.kube.delete_pod(kinds.namespace, kinds.pods(run)[0]["metadata"]["name"])

    wait_for(
        kinds.kube.api,
        MORE_KINDS["jobsets"].format(kinds.namespace),
        "the JobSet to be complete",
        lambda found: "Completed" in {told["type"] for told in found[0].get("status", {}).get("conditions", ())},
    )
    state = kinds.state(run)
    assert (state["state"], state["exit_code"]) == ("success", 0), state
    shown = kinds("logs", run).stdout
    assert shown.count("attempt 1 preempted") == 2
    saved = shown.count("saving with time left")
    lost = sum(b'"event":"warning"' in path.read_bytes() for path in (kinds.cli.runs / run).glob("nodes/*/stream"))
    assert (saved, shown.count("saved")) in {(2, 2), (1, 1)}, (
        "the last output of a deleted pod is lost unless a command reads it"
    )
    assert lost >= 2 - saved, "and then that is reported"


def test_a_deleted_worker_of_an_mpijob_ends_the_run_and_its_replacement_does_not_wait(kinds: User) -> None:
    kinds.write("waits.py", WAITS)
    follower = kinds.follow("--kind", "mpijob", "--nodes", "2", "--log-ranks", "all", "waits.py")
    follower.wait("two that wait", lambda: follower.stdout.count("ready") == 2)
    run = follower.run
    (worker,) = [pod for pod in kinds.pods(run) if pod["metadata"]["name"] == f"{run}-worker-0"]

    kinds.kube.delete_pod(kinds.namespace, worker["metadata"]["name"])

    done = follower.result()
    assert (done.exit_code, done.stdout.count("saved")) == (1, 2), done.stderr
    assert "preempted: the node was taken back" in done.stderr
    kinds.wait_pods(run, 1)


def test_cancel_leaves_nothing_of_any_kind(kinds: User) -> None:
    kinds.write("waits.py", WAITS)
    runs = {}
    for kind in ("jobset", "trainjob", *OPERATED):
        rules = yaml.safe_load(kinds("k8s", "--print-role", "--kind", kind).stdout)["rules"]
        runs[kind] = kinds.with_rights(f"has-{kind}", rules).detached(
            "--kind", kind, "--name", "a-name-of-thirty-two-characters0", "waits.py"
        )
    for run in runs.values():
        kinds.wait_printed(run, "ready", 1)

    for run, cancelled in zip(runs.values(), kinds.at_once(*(("cancel", run) for run in runs.values())), strict=True):
        assert cancelled.exit_code == 0, f"{run}: {cancelled.stderr}"
        assert kinds.state(run)["state"] == "cancelled"
    kinds.wait_nothing_left(**MORE_KINDS)


def test_a_refusal_by_admission_ends_a_run_of_any_kind(kinds: User) -> None:
    """The events are those of the object that creates the pods: a JobSet's or a TrainJob's Job, a PyTorchJob itself."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kinds.kube.api.patch(f"/api/v1/namespaces/{kinds.namespace}", {"metadata": {"labels": labels}})
    kinds.write("hello.py", "print('hello')\n")
    options = ("--start-timeout", "1s", "hello.py")
    runs = {kind: kinds.follow("--kind", kind, *options) for kind in ("jobset", "trainjob", *OPERATED)}
    workers = kinds.follow("--kind", "mpijob", "--nodes", "2", *options)
    fits = {kind: kinds.follow("--kind", kind, "--run-as", "1000", "hello.py") for kind in ("jobset", "trainjob")}

    for kind, follower in runs.items():
        done = follower.result()
        assert done.exit_code == 1, f"{kind}: {done.stderr}"
        assert "1 of 1 pods are not created yet: FailedCreate" in done.stderr, kind
        assert 'violates PodSecurity "restricted:latest"' in done.stderr, kind
        assert "to fix it: --run-as" in done.stderr, kind
    assert workers.result().exit_code == 1
    assert "2 of 2 pods are not created yet: MPIJobFailed: worker pod created failed" in workers.result().stderr
    for kind, follower in fits.items():
        done = follower.result()
        assert (done.exit_code, done.stdout) == (0, "hello\n"), f"{kind}: {done.stderr}"


def test_a_pytorchjob_whose_second_pod_comes_late_is_waited_for(kinds: User) -> None:
    """Its pods are not started again, and one that was never created has not ended."""
    kinds.kube.quota(kinds.namespace, pods="1")
    kinds.write("meet.py", MEET)
    follower = kinds.follow("--kind", "pytorchjob", "--nodes", "2", "--log-ranks", "all", "meet.py")
    follower.wait_err("(5 s)")  # with one node or the other

    kinds.kube.api.delete(f"/api/v1/namespaces/{kinds.namespace}/resourcequotas/quota")

    done = follower.result()
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("/2: sum 3") == 2


def test_a_queue_of_multikueue_and_a_missing_one_are_refused_before_anything_is_created(kinds: User) -> None:
    """One would send the Job to another cluster, where nothing of what its pods mount exists; one admits nothing."""
    kueue = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
    flavors = [{"name": "far", "resources": [{"name": "cpu", "nominalQuota": "9"}]}]
    group = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]}
    check = {"controllerName": "kueue.x-k8s.io/multikueue"}
    listed: dict[str, dict[str, Any]] = {
        "old": {"admissionChecks": ["far"]},
        "new": {"admissionChecksStrategy": {"admissionChecks": [{"name": "far"}]}},
    }
    objects: list[dict[str, Any]] = [
        {**kueue, "kind": "ResourceFlavor", "metadata": {"name": "far"}},
        {**kueue, "kind": "AdmissionCheck", "metadata": {"name": "far"}, "spec": check},
    ]
    for name, checks in listed.items():
        objects += [
            {**kueue, "kind": "ClusterQueue", "metadata": {"name": f"far-{name}"}, "spec": {**group, **checks}},
            {**kueue, "kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": f"far-{name}"}},
        ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    kinds.kube.kubectl("apply", "-n", kinds.namespace, "-f", "-", stdin=text)
    kinds.write("hello.py", "print('hello')\n")

    for name in listed:
        done = kinds("k8s", "--queue", name, "hello.py")
        assert done.exit_code == 2, done.stderr
        assert f"queue {name} belongs to MultiKueue, which sends a Job to another cluster" in done.stderr
        assert "hint: name those clusters: with --on A,B" in done.stderr
    missing = kinds("k8s", "--queue", "older", "hello.py", timeout_s=60)
    assert missing.exit_code == 2, missing.stderr
    assert f"there is no LocalQueue 'older' in namespace '{kinds.namespace}'" in missing.stderr
    assert "hint: known: new, old" in missing.stderr
    assert kinds.left() == []
    kinds.write("distlaunch.toml", '[clusters.gke]\nbackend = "k8s"\nqueue = "older"\n')
    (row,) = kinds("clusters", "--output", "json").json["result"]["clusters"]
    assert row["problem"] == f"there is no LocalQueue 'older' in namespace '{kinds.namespace}'"


def test_kueue_admits_a_run_and_one_that_waits_reports_it(kinds: User) -> None:
    kueue = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
    objects: list[dict[str, Any]] = [{**kueue, "kind": "ResourceFlavor", "metadata": {"name": "any"}}]
    for queue, quota in (("team", "1"), ("roomy", "9")):
        flavors = [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": quota}]}]
        spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]}
        objects += [
            {**kueue, "kind": "ClusterQueue", "metadata": {"name": f"of-{queue}"}, "spec": spec},
            {**kueue, "kind": "LocalQueue", "metadata": {"name": queue}, "spec": {"clusterQueue": f"of-{queue}"}},
        ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    kinds.kube.kubectl("apply", "-n", kinds.namespace, "-f", "-", stdin=text)
    kinds.write("waits.py", WAITS)
    kinds.write("hello.py", "print('hello')\n")
    kinds.write("meet.py", MEET)
    first = kinds.follow("--queue", "team", "--cpu", "700m", "waits.py")
    again = kinds.follow("--queue", "roomy", "--cpu", "100m", "waits.py")
    two = ("--nodes", "2", "--log-ranks", "all", "--cpu", "100m", "meet.py")
    others = {
        kind: kinds.follow("--queue", "roomy", "--kind", kind, *two)
        for kind in ("jobset", "trainjob", *OPERATED, "pods")
    }
    first.until("ready")

    second = kinds.follow("--queue", "team", "--cpu", "700m", "hello.py")

    second.wait_err("it waits to be admitted")
    kinds.write("distlaunch.toml", '[clusters.gke]\nbackend = "k8s"\nqueue = "team"\n')
    (row,) = kinds("clusters", "--output", "json").json["result"]["clusters"]
    assert row["start"] == {"at": None, "how": "1 is ahead in the queue team"}
    (kinds.cli.directory / "distlaunch.toml").unlink()
    assert not kinds.pods(second.run)
    assert kinds("cancel", first.run).exit_code == 0
    assert first.result().exit_code != 0
    done = second.result()
    assert (done.exit_code, done.stdout) == (0, "hello\n"), done.stderr
    assert kinds.state(second.run)["state"] == "success"

    for kind, follower in others.items():
        done = follower.result()
        assert (done.exit_code, done.stdout.count("sum 3")) == (0, 2), f"{kind}: {done.stderr}"
    workloads = kinds.kube.api.get(WORKLOADS.format(kinds.namespace))["items"]
    owners = {item["metadata"]["ownerReferences"][0]["kind"] for item in workloads}
    kueues = {"Job", "JobSet", "TrainJob", "PyTorchJob", "MPIJob", "TFJob", "Pod"}
    assert owners == kueues, "all of them were Kueue's to admit"

    again.until("ready")
    admitted = {item["metadata"]["uid"] for item in kinds.kube.api.get(WORKLOADS.format(kinds.namespace))["items"]}
    requeued = kinds("requeue", again.run)
    assert requeued.exit_code == 0, requeued.stderr
    left = again.result()
    assert left.exit_code == 0, left.stderr
    shown = kinds("logs", again.run).stdout
    assert [shown.count(word) for word in ("saving with time left", "saved", "attempt 1 preempted")] == [1, 1, 1]
    now = kinds.kube.api.get(WORKLOADS.format(kinds.namespace))["items"]
    mine = [item for item in now if item["metadata"]["ownerReferences"][0]["name"] == again.run]
    assert [item["metadata"]["uid"] in admitted for item in mine] == [False], "it has queued again"
