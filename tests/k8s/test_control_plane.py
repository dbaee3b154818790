"""`distlaunch k8s` with a real API server, controllers and scheduler; there are no nodes, so pods wait."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from testbed import kube_builds, kube_programs
from tests.k8s.conftest import KINDS
from tests.k8s.rendering import documents
from tests.k8s.role import role_rules

if TYPE_CHECKING:
    from tests.k8s.conftest import User
    from tests.k8s.proxy import Proxy

pytestmark = pytest.mark.k8s


def same(item: Any, run: str) -> Any:
    """An object of this run as it would be in any other: the run's id becomes RUN, also in the agent's request."""
    return json.loads(json.dumps(item).replace(run, "RUN"))


def test_what_is_printed_is_what_is_sent_and_what_the_cluster_has(user: User, proxy: Proxy) -> None:
    (user.cli.directory / "noise.bin").write_bytes(random.Random(1).randbytes(400_000))
    options = ("--nodes", "3", "--gpus-per-node", "2", "--env", "A=b", "--time", "1h", "x.py", "--lr", "1")
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))
    printed = documents(user("k8s", "--dry-run", *options).stdout)
    run = account.detached(*options)
    user.wait_pods(run, 3)

    sent = {(item["kind"], item["metadata"]["name"]): item for item in proxy.sent}
    assert sent.pop(("Secret", f"{run}-key"))["metadata"]["ownerReferences"], "the one thing that is not printed"
    assert len(sent) == len(proxy.sent) - 1 == len(printed) == len(user.left()) - 4 >= 6
    for item in printed:
        before = item["metadata"]["labels"]["distlaunch/run"]
        found = sent[item["kind"], item["metadata"]["name"].replace(before, run)]
        found["metadata"].pop("ownerReferences", None)
        if item["kind"] == "Job":
            assert found["spec"].pop("suspend") is True, "until all that it needs is there"
        assert same(found, run) == same(item, before)
    job = user.kube.api.get(f"/apis/batch/v1/namespaces/{user.namespace}/jobs/{run}")["spec"]
    assert (job["suspend"], job["completions"], job["backoffLimitPerIndex"]) == (False, 3, 3)


@pytest.mark.parametrize("kind", ["job", "pods"])
def test_the_commands_at_the_head_of_the_yaml_submit_to_the_runs_own_namespace_and_cluster(
    user: User, tmp_path: Path, kind: str
) -> None:
    """The context's namespace is another one, and the current context leads nowhere."""
    config = yaml.safe_load(user.kubeconfig.read_text())
    config["clusters"].append({"name": "nowhere", "cluster": {"server": "https://127.0.0.1:1"}})
    config["contexts"].append({"name": "nowhere", "context": {"cluster": "nowhere"}})
    config |= {"current-context": "nowhere"}
    there = f"../{user.write('it is.kubeconfig', yaml.dump(config)).name}"
    where = ("--kubeconfig", there, "--context", config["contexts"][0]["name"], "--namespace", user.namespace)
    options = (*where, "--kind", kind, "--nodes", "2", "--secret", "TOKEN", "x.py")
    done = user("k8s", "--dry-run", *options, env={"DISTLAUNCH_NAMESPACE": None, "KUBECONFIG": None, "TOKEN": "s3cr3t"})
    assert done.exit_code == 0, done.stderr
    (tmp_path / "run.yaml").write_text(done.stdout)
    head = dict(
        re.findall(r"^# (Run|First, as no file|First, as no output|Then)\b[^:]*: (.*)$", done.stdout, re.MULTILINE)
    )
    assert len(head) == 4
    apply = head.pop("Run").replace("FILE", "run.yaml")
    then = head.pop("Then")

    kubectl = Path(str(kube_programs.find(kube_builds.KUBERNETES, "kubectl")))
    env = {"PATH": f"{kubectl.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "TOKEN": "s3cr3t"}
    for line in (*head.values(), apply, then):
        made = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=env, timeout=120, check=False, capture_output=True)
        assert made.returncode == 0, (line, made.stderr)

    (name,) = {
        item["metadata"]["name"] for item in user.kube.api.get(KINDS["services"].format(user.namespace))["items"]
    }
    secrets = {
        item["metadata"]["name"]: item for item in user.kube.api.get(KINDS["secrets"].format(user.namespace))["items"]
    }
    assert set(secrets) == {name, f"{name}-key"}
    assert base64.b64decode(secrets[name]["data"]["TOKEN"]) == b"s3cr3t"
    owner = "job" if kind == "job" else "configmap"
    assert {item["metadata"]["ownerReferences"][0]["kind"].lower() for item in secrets.values()} == {owner}
    user.wait_pods(name, 2)
    user.kube.kubectl("delete", owner, name, "-n", user.namespace)
    user.wait_nothing_left()


def test_kubectl_apply_on_the_clients_side_takes_a_rendered_directory_too(user: User, tmp_path: Path) -> None:
    """Its limit is 256 KiB for an object, much less than the API server's."""
    (user.cli.directory / "noise.bin").write_bytes(os.urandom(700_000))
    rendered = user("k8s", "--render-to", str(tmp_path / "out"), "x.py")
    assert rendered.exit_code == 0, rendered.stderr

    user.kube.kubectl("apply", "-f", str(tmp_path / "out"), "-n", user.namespace)

    kinds = [name.partition(" ")[0] for name in user.left()]
    assert (kinds.count("jobs"), kinds.count("services")) == (1, 1)
    assert kinds.count("configmaps") >= 5, "much smaller ones than the API server takes"


def test_one_delete_removes_all_and_is_a_cancel(user: User) -> None:
    run = user.detached("--nodes", "3", "x.py")
    user.wait_pods(run, 3)
    assert len(user.left()) == 3 + 2 + 1 + 1 + 1 + 1

    user.kube.kubectl("delete", "job", run, "-n", user.namespace)

    user.wait_nothing_left()
    assert user.state(run)["state"] == "cancelled"
    assert "was deleted" in user.state(run)["cause"]["message"]


def test_cancel_of_a_waiting_run_leaves_nothing(user: User) -> None:
    runs = [user.detached("--nodes", "2", "--kind", kind, "x.py") for kind in ("job", "pods")]
    for run in runs:
        user.wait_pods(run, 2)

    for run in runs:
        cancelled = user("cancel", run)
        assert (cancelled.exit_code, cancelled.stdout) == (0, f"{run}: cancelled\n"), cancelled.stderr
        assert user.state(run)["state"] == "cancelled"
        user.wait_nothing_left(run)
    user.wait_nothing_left()


def test_ctrl_c_ends_a_waiting_run_and_shows_why_it_waited(user: User) -> None:
    follower = user.follow("--nodes", "2", "x.py")
    follower.wait_err("2 of 2 pods wait: no nodes available")
    follower.process.send_signal(signal.SIGINT)

    done = follower.result()

    assert done.exit_code == 130, done.stderr
    assert "\npending: 2 of 2 pods wait: no nodes available to schedule pods\n" in done.stderr
    assert "error[" not in done.stderr
    assert user.state(follower.run)["state"] == "cancelled"
    user.wait_nothing_left()


def test_runs_of_others_are_listed_by_their_label(user: User) -> None:
    none = user("ls", "--on", "k8s", "--output", "json", env={"DISTLAUNCH_RUNS_DIR": "/nowhere"}).json["result"]
    done = user("k8s", "--detach", "--name", "My Run_1", "--nodes", "2", "x.py")
    run = done.stdout.strip()
    user.wait_pods(run, 2)

    listed = user("ls", "--on", "k8s", "--output", "json", env={"DISTLAUNCH_RUNS_DIR": "/nowhere"}).json["result"][
        "runs"
    ]

    assert "name 'My Run_1' becomes 'my-run-1'" in done.stderr
    assert none["runs"] == []
    assert [(item["run"], item["state"], item["nodes"]) for item in listed] == [(run, "pending", "2")]


def test_a_quota_that_is_too_small_is_reported_and_the_run_waits(user: User) -> None:
    user.kube.quota(user.namespace, pods="1")
    follower = user.follow("--nodes", "3", "x.py")

    follower.wait_err("exceeded quota")

    state = user.state(follower.run)
    assert state["state"] == "pending"
    assert state["detail"].startswith("2 of 3 pods are not created yet")
    assert "exceeded quota" in state["detail"]


def test_the_documented_role_is_enough(user: User) -> None:
    """Where nothing runs; logs and signals are tested with pods that do."""
    account = user.with_rights("documented", role_rules())
    run = account.detached("--nodes", "2", "--secret", "TOKEN", "x.py", env={"TOKEN": "s3cr3t"})
    user.wait_pods(run, 2)

    secret = user.kube.api.get(f"/api/v1/namespaces/{user.namespace}/secrets/{run}")
    assert secret["data"] == {"TOKEN": "czNjcjN0"}
    assert secret["immutable"] is True
    assert secret["metadata"]["ownerReferences"][0]["kind"] == "Job"
    key = user.kube.api.get(f"/api/v1/namespaces/{user.namespace}/secrets/{run}-key")
    assert len(base64.b64decode(key["data"]["key"])) == 65
    policy = user.kube.api.get(f"/apis/networking.k8s.io/v1/namespaces/{user.namespace}/networkpolicies/{run}")
    assert {item["metadata"]["ownerReferences"][0]["kind"] for item in (key, policy)} == {"Job"}
    kept = [path for path in (account.cli.runs / run).rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if b"s3cr3t" in path.read_bytes() or b"czNjcjN0" in path.read_bytes()]
    assert not [path for path in kept if base64.b64decode(key["data"]["key"]).strip() in path.read_bytes()]
    assert account.state(run)["state"] == "pending"
    assert "wait" in account.state(run)["detail"]
    assert [item["run"] for item in account("ls", "--on", "k8s", "--output", "json").json["result"]["runs"]] == [run]
    assert account("cancel", "--force", run).exit_code == 0
    user.wait_nothing_left()


def test_a_run_that_leaves_gpus_unused_is_warned_of_if_nodes_may_be_listed(user: User) -> None:
    api, lesser = user.kube.api, user.with_rights("documented", role_rules())
    options = {
        "none": [],
        "no need": ["--gpus-per-node", "0"],
        "asked": ["--gpus-per-node", "1"],
        "other": ["--gpu-resource", "amd.com/gpu"],
    }
    api.post("/api/v1/nodes", {"metadata": {"name": "with-gpus"}, "spec": {"unschedulable": True}})
    try:
        have = {"nvidia.com/gpu": "8"}
        api.patch("/api/v1/nodes/with-gpus/status", {"status": {"capacity": have, "allocatable": have}})
        done = {name: user("k8s", "-q", "--detach", *words, "x.py") for name, words in options.items()}
        done["no right"] = lesser("k8s", "-q", "--detach", "x.py")
    finally:
        api.delete("/api/v1/nodes/with-gpus")

    assert {name: run.exit_code for name, run in done.items()} == dict.fromkeys(done, 0)
    assert {name: run.stderr for name, run in done.items() if run.stderr} == {
        "none": "warning: 1 of 1 nodes have nvidia.com/gpu, and the run asks for none: --gpus-per-node N asks for some,"
        " --gpus-per-node 0 says that it needs none\n"
    }


def test_a_user_who_may_not_create_a_network_policy_is_told_and_runs_without(user: User) -> None:
    lesser = user.with_rights("lesser", [rule for rule in role_rules() if "networkpolicies" not in rule["resources"]])

    done = [
        lesser("k8s", *options, "--nodes", "2", "x.py")
        for options in (["--detach"], ["--detach", "--no-network-policy"])
    ]
    asked = lesser("k8s", "--dry-run=server", "x.py")

    assert [run.exit_code for run in (*done, asked)] == [0, 0, 0], [run.stderr for run in done]
    assert "continues without a NetworkPolicy, which you are not allowed to create here" in done[0].stderr
    assert "continues without a NetworkPolicy" in asked.stderr
    assert "NetworkPolicy" not in done[1].stderr
    for run in done:
        assert lesser("cancel", "--force", run.stdout.strip()).exit_code == 0
    user.wait_nothing_left()


def test_a_run_takes_at_most_eight_calls_and_a_large_one_no_more_than_a_small_one(user: User, proxy: Proxy) -> None:
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))
    calls = []
    for nodes in ("2", "300"):
        proxy.requests.clear()
        run = account.detached("--nodes", nodes, "--gpus-per-node", "8", "x.py")
        calls.append([re.sub(r"x-[^/]*", "RUN", request) for request in proxy.requests])
        user.wait_pods(run, int(nodes))
        proxy.requests.clear()
        account.state(run)
        assert [request.partition("/namespaces/")[2] for request in proxy.requests] == [f"{user.namespace}/pods"]

    assert len(calls[0]) == 8
    assert calls[1] == list(dict.fromkeys(calls[0])), "one ConfigMap, which is large"
    proxy.requests.clear()
    (user.cli.directory / "noise.bin").write_bytes(random.Random(1).randbytes(400_000))
    unnamed = account.detached("--nodes", "300", "x.py")
    found = [re.sub(r"x-[^/]*", "RUN", request) for request in proxy.requests]
    assert [*filter(lambda request: "/nodes" not in request, found)] == calls[1], "are there GPUs? is one more"
    assert len(found) == 8
    account.state(unnamed)
