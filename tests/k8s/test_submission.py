"""Submissions that are refused, interrupted or not answered, against a real API server."""

from __future__ import annotations

import json
import signal
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.k8s import proxy as proxies
from tests.k8s.conftest import KINDS, LABEL

if TYPE_CHECKING:
    from pathlib import Path

    from tests.k8s.conftest import User
    from tests.k8s.proxy import Proxy

pytestmark = pytest.mark.k8s


@pytest.mark.parametrize(("resource", "allowed"), [("services", "0"), ("configmaps", "2"), ("secrets", "0")])
def test_a_submission_that_is_refused_half_way_leaves_nothing(user: User, resource: str, allowed: str) -> None:
    """One ConfigMap is in every namespace, and a run has at least two."""
    user.kube.quota(user.namespace, **{resource: allowed})

    done = user("k8s", "--detach", "--secret", "TOKEN", "x.py", env={"TOKEN": "1"})

    assert done.exit_code == 2, done.stderr
    assert f"exceeded quota: quota, requested: {resource}=1" in done.stderr
    user.wait_nothing_left()


def test_every_object_has_the_labels_and_annotations_of_the_user(user: User) -> None:
    """A policy of the namespace may ask for them."""
    given = ("--label", "team=a", "--annotation", "cost=b")
    run = user.detached("--nodes", "2", "--secret", "TOKEN", *given, "x.py", env={"TOKEN": "1"})
    user.wait_pods(run, 2)

    for kind, path in KINDS.items():
        listed = user.kube.api.get(path.format(user.namespace), labelSelector=f"{LABEL}={run}")["items"]
        words = [(item["metadata"]["labels"]["team"], item["metadata"]["annotations"]["cost"]) for item in listed]
        assert words, kind
        assert set(words) == {("a", "b")}, kind


def test_a_refused_network_policy_is_reported_in_the_words_of_the_api_server(user: User) -> None:
    user.kube.quota(user.namespace, **{"count/networkpolicies.networking.k8s.io": "0"})

    done = user("k8s", "--detach", "--nodes", "2", "x.py")

    assert done.exit_code == 0, done.stderr
    assert "without a NetworkPolicy, which is refused: " in done.stderr
    assert "exceeded quota: quota, requested: count/networkpolicies.networking.k8s.io=1" in done.stderr


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        (["--context", "nope"], 2, "known: testbed"),
        (["--namespace", "nowhere"], 2, "there is not a namespace 'nowhere'"),
        (["--kubeconfig", "none"], 2, "kubeconfig 'none' does not exist"),
        (["--kubeconfig", "garbage"], 2, "cannot be used"),
        (["--kubeconfig", "STRANGER"], 3, "stranger may not create configmaps, create services, create jobs, get jobs"),
        (["--kubeconfig", "EXPIRED"], 3, "have expired"),
        (["--kubeconfig", "closed"], 3, "cannot be reached"),
        (["--kind", "jobset"], 3, "the cluster has no JobSet"),
        (["--kind", "trainjob"], 3, "the cluster has no TrainJob"),
        (["--kind", "pytorchjob"], 3, "the cluster has no PyTorchJob (kubeflow.org/v1)"),
        (["--kind", "mpijob"], 3, "the cluster has no MPIJob (kubeflow.org/v2beta1)"),
        (["--kind", "tfjob"], 3, "the cluster has no TFJob (kubeflow.org/v1)"),
        (["--queue", "team"], 3, "without --queue it needs no Kueue"),
        (["--patch", "breaks.yaml"], 2, 'unknown field "spec.completionz"'),
        (["--patch", "invalid.yaml"], 2, "must be greater than or equal to 0"),
        (["--patch", "labels.yaml"], 2, "cannot unmarshal array into Go struct field ObjectMeta.metadata.labels"),
    ],
)
def test_an_impossible_request_is_one_clear_error_and_leaves_nothing(
    user: User, options: list[str], exit_code: int, words: str
) -> None:
    user.write("garbage", "no: [kubeconfig\n")
    user.write("closed", user.kubeconfig.read_text().replace(":6443", ":1"))
    user.write("breaks.yaml", "kind: Job\nspec: {completionz: 3}\n")
    user.write("invalid.yaml", "kind: Job\nspec: {parallelism: -1}\n")
    user.write("labels.yaml", "kind: Job\nmetadata: {labels: {a: [b]}}\n")
    real = {"STRANGER": str(user.kube.stranger()), "EXPIRED": str(user.kube.expired())}

    done = user("k8s", "--detach", *(real.get(option, option) for option in options), "x.py")

    assert done.exit_code == exit_code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("error[") == 1
    assert "Traceback" not in done.stderr
    user.wait_nothing_left()


PLUGINS = {
    "works": ('echo \'{head}, "status": {{"token": "{token}"}}}}\'', 0, ""),
    "fails": (
        "echo you are not logged in >&2; exit 1",
        3,
        "its login plugin failed: process returned 1. you are not logged in",
    ),
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
    login = user.write("login.kubeconfig", yaml.dump(config))

    done = user("k8s", "--detach", "--kubeconfig", str(login), "x.py")

    assert done.exit_code == exit_code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("error[") == int(exit_code != 0)
    assert "ERROR:root" not in done.stderr
    assert [what.partition(" ")[0] for what in user.left()].count("jobs") == int(exit_code == 0)


def test_a_list_of_runs_runs_the_login_plugin_once(user: User) -> None:
    """One of a cloud takes a second."""
    version, count = "client.authentication.k8s.io/v1", user.write("count", "")
    config = yaml.safe_load(user.kubeconfig.read_text())
    given = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": config["users"][0]["user"]})
    plugin = user.write("plugin", f"#!/bin/sh\necho >> {count}\necho '{given}'\n")
    plugin.chmod(0o700)
    how = {"apiVersion": version, "command": str(plugin), "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": how}
    through = replace(user, kubeconfig=user.write("plugin.kubeconfig", yaml.dump(config)))
    runs = {through.detached("x.py") for _ in range(3)}
    before = len(count.read_text())

    listed = through("ls", "--output", "json").json["result"]["runs"]

    assert {row["run"] for row in listed if row["state"] == "pending"} == runs
    assert len(count.read_text()) - before == 1


def test_without_a_kubeconfig_it_says_where_it_looked(user: User) -> None:
    done = user("k8s", "x.py", env={"KUBECONFIG": None})

    assert done.exit_code == 3
    assert "neither --kubeconfig, nor KUBECONFIG, nor ~/.kube/config" in done.stderr


def test_the_api_server_is_asked_before_anything_is_created(user: User) -> None:
    user.write("invalid.yaml", "kind: Job\nspec: {parallelism: -1}\n")

    good = user("k8s", "--dry-run=server", "--nodes", "2", "x.py", "--dry-run=server")
    bad = user("k8s", "--dry-run", "--server-dry-run", "--patch", "invalid.yaml", "x.py")

    assert good.exit_code == 0, good.stderr
    assert good.stdout.count("--dry-run=server") == 2  # the script's own argument: in the spec, and for `adopt`
    assert bad.exit_code == 2
    assert "must be greater than or equal to 0" in bad.stderr
    assert user.left() == []


def with_the_role(user: User) -> User:
    """An account with the Role that is printed, which cannot read all that it creates."""
    return user.with_rights("role", yaml.safe_load(user("k8s", "--print-role").stdout)["rules"])


@pytest.mark.parametrize("lost", ["jobs", "configmaps", "services", "secrets", "networkpolicies"])
def test_a_lost_answer_creates_no_second_object(user: User, lost: str) -> None:
    account = with_the_role(user)
    with proxies.before(account.kubeconfig) as proxy:
        through = replace(account, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))
        runs = [through.detached("--nodes", "2", "x.py")]
        proxy.swallow = f"/{lost}"
        done = through("k8s", "--detach", "--nodes", "2", "x.py")

    assert (done.exit_code, proxy.swallow) == (0, ""), done.stderr
    assert "NetworkPolicy" not in done.stderr
    runs.append(done.stdout.strip())
    for run in runs:
        user.wait_pods(run, 2)
    usual, counts = (Counter(what.partition(" ")[0] for what in user.left(run)) for run in runs)
    assert counts == usual
    assert counts - Counter(configmaps=9) == Counter(jobs=1, pods=2, services=1, secrets=1, networkpolicies=1)


@pytest.mark.parametrize(
    ("how", "lost"),
    [
        ("--detach", "/selfsubjectrulesreviews"),
        ("--detach", "/selfsubjectaccessreviews"),
        ("--dry-run=server", "/jobs"),
    ],
)
def test_a_question_whose_answer_is_lost_is_asked_again(user: User, proxy: Proxy, how: str, lost: str) -> None:
    """About rights, and whether an object would be taken: it changes nothing."""
    proxy.swallow = lost
    proxy.hidden = "/selfsubjectrulesreviews" if "access" in lost else ""
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))

    done = account("k8s", how, "x.py")

    assert (done.exit_code, proxy.swallow) == (0, ""), done.stderr


def test_an_attempt_of_which_an_answer_is_lost_is_started(user: User) -> None:
    """The former one is deleted by then."""
    account = with_the_role(user)
    run = account.detached("--nodes", "2", "x.py")
    user.kube.api.delete(f"{KINDS['jobs'].format(user.namespace)}/{run}", propagationPolicy="Background")
    user.wait_nothing_left(run)
    with proxies.before(account.kubeconfig) as proxy:
        proxy.swallow = "/configmaps"
        account.kubeconfig.write_text(proxy.kubeconfig())
        done = account("requeue", run)

    assert (done.exit_code, proxy.swallow) == (0, ""), done.stderr
    user.wait_pods(run, 2)


def test_a_run_whose_release_was_not_answered_has_not_ended_and_is_ended_by_cancel(user: User, proxy: Proxy) -> None:
    """The API server does not answer until the launcher has given up; the pods are created."""
    proxy.away = "PATCH /apis/batch/"
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))

    done = account("k8s", "--nodes", "2", "x.py")
    (directory,) = user.cli.runs.iterdir()
    ended = (directory / "result.json").exists()
    silent = account.state(directory.name)
    refused = account("cancel", directory.name)
    user.write("proxy.kubeconfig", user.kubeconfig.read_text())  # it is back
    user.wait_pods(directory.name, 2)
    state = account.state(directory.name)
    cancelled = account("cancel", "--force", directory.name)

    assert done.exit_code == 3, done.stderr
    assert "parts of the run may still be running: the API server cannot be reached: " in done.stderr
    assert f"to end it: distlaunch cancel --force {directory.name}" in done.stderr
    assert not ended
    assert (silent["exit_code"], refused.exit_code) == (None, 3), (silent, refused.stderr)
    assert state["state"] == "pending"
    assert state["detail"].startswith("its submission failed, and what exists may lack nodes: the API server")
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{directory.name}: cancelled\n"), cancelled.stderr
    user.wait_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("held", ["jobs", "configmaps"])
def test_nothing_is_left_of_a_launcher_that_ends_while_it_creates_objects(
    user: User, proxy: Proxy, tmp_path: Path, held: str, number: signal.Signals
) -> None:
    """The objects exist, but the launcher has had no answer; a command from elsewhere does not know the kubeconfig."""
    proxy.held = f"/{held}"
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))
    launcher = account.follow("--nodes", "2", "x.py")
    assert proxy.holds.wait(120)
    if held == "configmaps":
        assert user.left()

    launcher.process.send_signal(number)
    code = launcher.process.wait(120)
    proxy.released.set()

    there = partial(user, env={"KUBECONFIG": None}, cwd=tmp_path)
    state = there("status", "last", "--output", "json").json["result"]
    if number == signal.SIGINT:
        assert (code, state["state"]) == (130, "cancelled")
    else:
        assert (code, state["exit_code"]) == (-signal.SIGKILL, None)
        done = there("cancel", "last")
        assert (done.exit_code, done.stdout) == (0, f"{state['run']}: cancelled\n"), done.stderr
    user.wait_nothing_left()
