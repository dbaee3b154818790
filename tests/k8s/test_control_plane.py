"""`distlaunch k8s` and a real API server, controllers and scheduler; there are no machines, so pods wait."""

from __future__ import annotations

import re
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.command import ROOT
from tests.k8s.proxy import Proxy
from tests.testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.k8s.conftest import User

pytestmark = pytest.mark.k8s


def role_rules() -> list[dict[str, Any]]:
    """The Role as the documentation prints it."""
    text = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    (block,) = [part for part in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: Role" in part]
    rules: list[dict[str, Any]] = yaml.safe_load(block)["rules"]
    return rules


def test_what_is_printed_is_what_the_cluster_gets_and_one_delete_removes_all(user: User) -> None:
    printed = list(yaml.safe_load_all(user("k8s", "--dry-run", "--nodes", "3", "x.py").stdout))
    run = user.detached("--nodes", "3", "x.py")
    wait_until("the pods", lambda: len(user.pods(run)) == 3)

    assert len(user.left()) == 3 + 2 + 1 + 1
    name = re.compile(r"x-\d{8}-\d{6}-\w{4}")
    job = user.kube.api.get(f"/apis/batch/v1/namespaces/{user.namespace}/jobs/{run}")
    sent = next(item for item in printed if item["kind"] == "Job")
    for key, value in sent["spec"].items():
        if key not in ("template", "podFailurePolicy"):
            assert job["spec"][key] == value
    container = name.sub("RUN", yaml.dump(sent["spec"]["template"]["spec"]["containers"][0]["command"]))
    assert container == name.sub("RUN", yaml.dump(job["spec"]["template"]["spec"]["containers"][0]["command"]))
    assert job["spec"]["suspend"] is False
    user.kube.kubectl("delete", "job", run, "-n", user.namespace)
    wait_until("nothing to be left", lambda: not user.left())
    assert user.state(run)["state"] == "cancelled"
    assert "was deleted" in user.state(run)["cause"]["message"]


@pytest.mark.parametrize("kind", ["job", "pods"])
def test_cancel_of_a_waiting_run_leaves_nothing(user: User, kind: str) -> None:
    run = user.detached("--nodes", "2", "--kind", kind, "x.py")
    wait_until("the pods", lambda: len(user.pods(run)) == 2)

    cancelled = user("cancel", run)

    assert cancelled.exit_code == 0, cancelled.stderr
    assert user.state(run)["state"] == "cancelled"
    wait_until("nothing to be left", lambda: not user.left())


def test_ctrl_c_ends_a_waiting_run_and_says_why_it_waited(user: User) -> None:
    follower = user.start("k8s", "--nodes", "2", "x.py")
    lines: list[bytes] = []
    assert follower.stderr is not None
    for line in follower.stderr:
        lines.append(line)
        if b"no nodes available" in line:
            follower.send_signal(signal.SIGINT)
            break

    _, rest = follower.communicate(timeout=60)

    assert follower.returncode == 130, rest
    assert b"pending: 2 of 2 pods wait: no nodes available to schedule pods\n" in lines
    wait_until("nothing to be left", lambda: not user.left())


def test_runs_of_others_are_listed_by_their_label(user: User) -> None:
    done = user("k8s", "--detach", "--name", "My Run_1", "--nodes", "2", "x.py")
    run = done.stdout.strip()
    wait_until("the pods", lambda: len(user.pods(run)) == 2)

    listed = user("ls", "--on", "k8s", "--output", "json", env={"DISTLAUNCH_RUNS_DIR": "/nowhere"}).json["result"]["runs"]

    assert "name 'My Run_1' becomes 'my-run-1'" in done.stderr
    assert [(item["run"], item["state"], item["nodes"]) for item in listed] == [(run, "pending", "2")]
    user.kube.kubectl("delete", "job", run, "-n", user.namespace)


def test_a_quota_that_is_too_small_is_told_and_the_run_waits(user: User) -> None:
    user.kube.quota(user.namespace, pods="1")
    run = user.detached("--nodes", "3", "x.py")

    wait_until("the reason", lambda: "exceeded quota" in user.state(run)["detail"], limit_s=60)

    assert user.state(run)["state"] == "pending"
    assert user.state(run)["detail"].startswith("2 of 3 pods are not made yet")
    user("cancel", run)


def test_the_documented_role_is_enough(user: User) -> None:
    account = replace(user, kubeconfig=user.kube.account(user.namespace, "documented", role_rules()))
    run = account.detached("--nodes", "2", "--secret", "TOKEN", "x.py", env={"TOKEN": "s3cr3t"})
    wait_until("the pods", lambda: len(user.pods(run)) == 2)

    secret = user.kube.api.get(f"/api/v1/namespaces/{user.namespace}/secrets/{run}")
    assert secret["data"] == {"TOKEN": "czNjcjN0"}
    assert secret["metadata"]["ownerReferences"][0]["kind"] == "Job"
    assert "s3cr3t" not in "".join(path.read_text() for path in (account.cli.runs / run).rglob("*.json"))
    assert account.state(run)["state"] == "pending"
    assert "wait" in account.state(run)["detail"]
    assert account("cancel", "--force", run).exit_code == 0
    wait_until("nothing to be left", lambda: not user.left())


@pytest.mark.parametrize(
    ("resource", "verb", "words"),
    [
        ("jobs", "create", "may not create jobs"),
        ("configmaps", "create", "may not create configmaps"),
        ("services", "create", "may not create services"),
        ("jobs", "patch", "may not patch jobs"),
    ],
)
def test_a_missing_right_is_named_and_nothing_is_left(user: User, resource: str, verb: str, words: str) -> None:
    rules = []
    for rule in role_rules():
        verbs = [item for item in rule["verbs"] if item != verb]
        kept = [item for item in rule["resources"] if item != resource]
        rules += [{**rule, "resources": kept}] if kept else []
        rules += [{**rule, "resources": [resource], "verbs": verbs}] if resource in rule["resources"] and verbs else []
    account = replace(user, kubeconfig=user.kube.account(user.namespace, "lesser", rules))

    done = account("k8s", "--detach", "x.py")

    assert done.exit_code == 3, done.stderr
    assert words in done.stderr
    assert "docs/kubernetes.md" in done.stderr
    wait_until("nothing to be left", lambda: not user.left())


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        (["--context", "nope"], 2, "known: testbed"),
        (["--namespace", "nowhere"], 2, "there is no namespace 'nowhere'"),
        (["--kubeconfig", "none"], 2, "kubeconfig 'none' does not exist"),
        (["--kubeconfig", "garbage"], 2, "cannot be used"),
        (["--kubeconfig", "STRANGER"], 3, "stranger may not create jobs"),
        (["--kubeconfig", "EXPIRED"], 3, "have expired"),
        (["--kubeconfig", "closed"], 3, "cannot be reached"),
        (["--kind", "jobset"], 3, "the cluster has no JobSet"),
        (["--kind", "trainjob"], 3, "the cluster has no TrainJob"),
        (["--kind", "pytorchjob"], 3, "the cluster has no PyTorchJob"),
        (["--queue", "team"], 3, "without --queue it needs no Kueue"),
        (["--patch", "breaks.yaml"], 2, 'unknown field "spec.completionz"'),
        (["--patch", "invalid.yaml"], 2, "must be greater than or equal to 0"),
    ],
)
def test_what_cannot_be_is_one_clear_error_and_leaves_nothing(user: User, options: list[str], exit_code: int, words: str) -> None:
    user.write("garbage", "no: [kubeconfig\n")
    user.write("closed", user.kubeconfig.read_text().replace(":6443", ":1"))
    user.write("breaks.yaml", "kind: Job\nspec: {completionz: 3}\n")
    user.write("invalid.yaml", "kind: Job\nspec: {parallelism: -1}\n")
    real = {"STRANGER": str(user.kube.stranger()), "EXPIRED": str(user.kube.expired())}

    done = user("k8s", "--detach", *(real.get(option, option) for option in options), "x.py")

    assert done.exit_code == exit_code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("error[") == 1
    assert "Traceback" not in done.stderr
    wait_until("nothing to be left", lambda: not user.left())


PLUGINS = {
    "works": ('echo \'{head}, "status": {{"token": "{token}"}}}}\'', 0, ""),
    "fails": ("echo you are not logged in >&2; exit 1", 3, "its login plugin failed: process returned 1. you are not logged in"),
    "prints no JSON": ("echo hello", 3, "its login plugin failed: failed to decode process output"),
    "is missing": ("", 3, "its login plugin failed: [Errno 2] No such file or directory"),
    "gives an old token": ('echo \'{head}, "status": {{"token": "old", {expired}}}}}\'', 3, "have expired"),
}
"""Shell lines of login plugins, exit code and words of a submission."""


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_login_plugin_is_run_and_one_that_fails_is_one_clear_error(user: User, plugin: str) -> None:
    line, exit_code, words = PLUGINS[plugin]
    config = yaml.safe_load(user.kubeconfig.read_text())
    token = config["users"][0]["user"].pop("token")
    version = "client.authentication.k8s.io/v1"
    head = f'{{"apiVersion": "{version}", "kind": "ExecCredential"'
    expired = '"expirationTimestamp": "2020-01-01T00:00:00Z"'
    login = user.write("login", "#!/bin/sh\n" + line.format(head=head, token=token, expired=expired) + "\n")
    login.chmod(0o700)
    command = str(login) if line else "/nonexistent/login"
    config["users"][0]["user"] = {"exec": {"apiVersion": version, "command": command, "interactiveMode": "Never"}}
    user.write("login.kubeconfig", yaml.dump(config))

    done = user("k8s", "--detach", "--kubeconfig", "login.kubeconfig", "x.py")

    assert done.exit_code == exit_code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("error[") == int(exit_code != 0)
    assert "ERROR:root" not in done.stderr
    user.kube.kubectl("delete", "jobs", "--all", "-n", user.namespace)


def test_without_a_kubeconfig_it_says_where_it_looked(user: User) -> None:
    done = user("k8s", "x.py", env={"KUBECONFIG": None})

    assert done.exit_code == 3
    assert "neither --kubeconfig, nor KUBECONFIG, nor ~/.kube/config" in done.stderr


def test_the_api_server_is_asked_before_anything_is_made(user: User) -> None:
    user.write("invalid.yaml", "kind: Job\nspec: {parallelism: -1}\n")

    good = user("k8s", "--dry-run=server", "--nodes", "2", "x.py", "--dry-run=server")
    bad = user("k8s", "--dry-run", "--server-dry-run", "--patch", "invalid.yaml", "x.py")

    assert good.exit_code == 0, good.stderr
    assert good.stdout.count("--dry-run=server") == 1  # the script's own argument
    assert bad.exit_code == 2
    assert "must be greater than or equal to 0" in bad.stderr
    assert user.left() == []


@pytest.fixture
def proxy(user: User) -> Iterator[Proxy]:
    server = Proxy(user.kubeconfig)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("lost", ["jobs", "configmaps", "services"])
def test_an_answer_that_is_lost_makes_no_second_object(user: User, proxy: Proxy, lost: str) -> None:
    proxy.swallow = f"/{lost}"
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))

    run = account.detached("--nodes", "2", "x.py")

    assert proxy.swallow == ""
    wait_until("the pods", lambda: len(user.pods(run)) == 2)
    assert len([item for item in user.left() if item.startswith("jobs")]) == 1
    user("cancel", run)


def test_the_number_of_calls_does_not_depend_on_the_number_of_nodes(user: User, proxy: Proxy) -> None:
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))
    calls = []
    for nodes in ("1", "20"):
        proxy.requests.clear()
        run = account.detached("--nodes", nodes, "x.py")
        calls.append([re.sub(r"x-[^/]*", "RUN", request) for request in proxy.requests])
        wait_until("the pods", lambda run=run, nodes=nodes: len(user.pods(run)) == int(nodes))  # type: ignore[misc]
        proxy.requests.clear()
        account.state(run)
        assert [request.partition("/namespaces/")[2] for request in proxy.requests] == [f"{user.namespace}/pods"]
        user("cancel", run)

    assert calls[0] == calls[1]
    assert len(calls[0]) == 5
