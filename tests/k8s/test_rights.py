"""Missing rights are named before anything is created, and a run asks for no more rights than it needs."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from launcher.backends.kubernetes import rights as kube_rights
from launcher.backends.kubernetes import sidecars
from launcher.backends.kubernetes.options import KINDS, KubernetesOptions
from launcher.backends.kubernetes.watch import RunWatch
from testbed import wait_until
from tests.command import ROOT
from tests.k8s import proxy as proxies
from tests.k8s.conftest import index_of

if TYPE_CHECKING:
    from tests.command import Cli
    from tests.k8s.conftest import User
    from tests.k8s.proxy import Proxy

pytestmark = pytest.mark.k8s

RIGHTS: list[tuple[str, str, str]] = [
    ("batch", "jobs", "create"),
    ("batch", "jobs", "get"),
    ("batch", "jobs", "patch"),
    ("batch", "jobs", "delete"),
    ("", "configmaps", "create"),
    ("", "services", "create"),
    ("", "secrets", "create"),
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("", "pods/log", "get"),
    ("", "events", "list"),
]
"""All rights that a run with a secret takes, unless it is signalled or ended by force."""


def rules(rights: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    return [{"apiGroups": [group], "resources": [resource], "verbs": [verb]} for group, resource, verb in rights]


def test_each_missing_right_is_named_before_anything_is_created(user: User) -> None:
    cases: list[list[tuple[str, str, str]]] = [*([right] for right in RIGHTS), RIGHTS]
    for number, missing in enumerate(cases):
        account = user.with_rights(f"lesser-{number}", rules([right for right in RIGHTS if right not in missing]))
        with proxies.before(account.kubeconfig) as server:
            through = replace(account, kubeconfig=user.write("proxy.kubeconfig", server.kubeconfig()))
            # the namespace is that of the context, which an administrator's is not
            done = through(
                "k8s", "--detach", "--secret", "TOKEN", "x.py", env={"TOKEN": "1", "DISTLAUNCH_NAMESPACE": None}
            )

        named = {f"{verb} {resource}" for _, resource, verb in missing}
        assert done.exit_code == 3, done.stderr
        role, _, told = done.stderr.partition("error[")
        first = f"error[{told}".partition("\n")[0]
        who = f"system:serviceaccount:{user.namespace}:lesser-{number}"
        assert first.startswith(f"error[backend_unavailable]: {who} may not ")
        assert set(first.partition(" may not ")[2].partition(" in namespace ")[0].split(", ")) == named
        assert server.sent == [], "nothing was created that would have to be removed"
        (shown,) = yaml.safe_load_all(role)
        assert (shown["kind"], shown["metadata"]["namespace"]) == ("Role", user.namespace)
        assert f"# what `distlaunch k8s --print-role --kind job --namespace {user.namespace}` prints:" in role
        assert f"rolebinding distlaunch --role=distlaunch --user={who} --namespace={user.namespace}" in done.stderr


@pytest.mark.parametrize(("words", "exit_code"), [(("k8s", "--fetch", "*"), 3), (("run", "--on", "a,b"), 4)])
def test_the_right_to_reach_a_pods_files_is_checked_where_the_run_needs_it(
    user: User, words: tuple[str, ...], exit_code: int
) -> None:
    """To fetch them at the end, and to tell a pod that its cluster has the run."""
    account = user.with_rights("lesser", rules(RIGHTS))
    with proxies.before(account.kubeconfig) as server:
        path = user.write("proxy.kubeconfig", server.kubeconfig())
        here = f'kubeconfig = "{path}"\nnamespace = "{user.namespace}"\nimage = "i"\nbackend = "k8s"\n'
        user.cli.write("system.toml", f"[clusters.a]\n{here}[clusters.b]\n{here}")
        done = replace(account, kubeconfig=path)(*words, "x.py")

    assert done.exit_code == exit_code, done.stderr
    assert "may not create pods/exec, get pods/exec in namespace" in done.stderr
    assert server.sent == []


def test_the_rights_that_are_checked_are_enough_and_no_more_are_checked(user: User) -> None:
    """A single node without secrets needs no right to create them, and a queued run none to release it."""
    least = user.with_rights("least", rules([right for right in RIGHTS if right[1] != "secrets"]))
    follower = least.follow("x.py")
    follower.wait_err("no nodes available")
    follower.process.send_signal(signal.SIGINT)

    assert follower.result().exit_code == 130
    assert "may not create secrets" not in follower.stderr
    user.wait_nothing_left()
    assert least("k8s", "--dry-run=server", "x.py").exit_code == 0
    queued = kube_rights.needed(KubernetesOptions(image="i", queue="q"), [])
    assert ("batch", "jobs", "patch") not in queued
    assert ("batch", "jobs", "delete") in queued


BESIDE = "kind: Job\nspec: {template: {spec: {containers: [{name: a-mesh, image: i}]}}}\n"


def test_a_user_who_may_not_delete_a_pod_that_another_container_holds_is_told_once_and_sees_the_state(
    user: User, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That right is not checked before. The test plays the nodes: node 0 has ended, and node 1 does not report."""
    user.write("beside.yaml", BESIDE)
    least = user.with_rights("least", rules(RIGHTS))
    run = least.detached("--nodes", "2", "--patch", "beside.yaml", "x.py")
    for pod in user.wait_pods(run, 2):
        node = index_of(pod)
        over = {"terminated": {"exitCode": 75, "finishedAt": "2026-01-01T00:00:00Z"}}
        about = {"image": "i", "imageID": "i", "ready": False, "restartCount": 0}
        own = [
            {"name": "node", "state": {"running": {}} if node else over, **about},
            {"name": "a-mesh", "state": {"running": {}}, **about},
        ]
        doubted = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
        status = {"phase": "Running", "containerStatuses": own, "conditions": doubted if node else []}
        path = f"/api/v1/namespaces/{user.namespace}/pods/{pod['metadata']['name']}/status"
        user.kube.api.patch(path, {"status": status})
        user.cli.write(f"runs/{run}/nodes/{node}/log.json", json.dumps({"complete": [pod["metadata"]["uid"]]}))

    told = least("status", run, "--output", "json")
    assert "node 1 (pod " in told.json["result"]["detail"], told.json["result"]
    assert "may not deletecollection pods" in told.stderr

    watch = RunWatch(json.loads((user.cli.runs / run / "run.json").read_text())["handle"])
    capfd.readouterr()
    found = [watch.liveness(60.0) for _ in range(3)]
    monkeypatch.setattr(
        sidecars, "time", SimpleNamespace(time=time.time, monotonic=time.monotonic)
    )  # it waits for nothing
    watch.release()

    assert {state.detail for state in found} == {told.json["result"]["detail"]}
    said = capfd.readouterr().err
    assert said.count("a sidecar holds pod") == said.count("may not deletecollection pods") == 1, said
    assert "`distlaunch k8s --print-role`" in said


def wait_seen(watch: RunWatch, detail: str) -> None:
    """Wait until the state says that: the API server may list pods as they were a moment ago.

    Without events, a pod is late from when this process first saw that it cannot start.
    """
    wait_until(f"the state to be seen: {detail}", lambda: detail in watch.liveness(0.0).detail, limit_s=30)


def test_a_user_who_may_only_look_sees_the_state_of_a_run_that_should_be_ended_or_explained(
    user: User, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ending a run that cannot start takes a right, and so do the events that tell why pods are not created."""
    looks = [right for right in RIGHTS if right[1:] in (("jobs", "get"), ("pods", "list"), ("pods/log", "get"))]
    viewer = user.with_rights("viewer", rules(looks))
    stuck = user.detached("x.py")
    (pod,) = user.wait_pods(stuck, 1)
    waits = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    own = {"name": "node", "state": waits, "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [own]}
    user.kube.api.patch(
        f"/api/v1/namespaces/{user.namespace}/pods/{pod['metadata']['name']}/status", {"status": status}
    )
    user.kube.quota(user.namespace, pods="1")
    unmade = user.detached("x.py")

    for run, detail, right in (
        (stuck, "cannot start: ErrImagePull: no such image", "delete jobs"),
        (unmade, "1 of 1 pods are not created yet", "list events"),
    ):
        handle = json.loads((user.cli.runs / run / "run.json").read_text())["handle"]
        handle["kubeconfig"] = str(viewer.kubeconfig)
        watch = RunWatch(handle)
        wait_seen(watch, detail)
        assert detail in watch.liveness(0.0).detail
        assert capfd.readouterr().err.count(f"may not {right} in namespace") == 1
        assert not list((user.cli.runs / run).glob("given_up*")), "its pods may start yet"
    for run in (unmade, stuck):  # an end of the other makes room for its pod
        assert user("cancel", run).exit_code == 0


def test_an_authorizer_that_lists_no_rules_is_asked_for_each_right(user: User, proxy: Proxy) -> None:
    """As do those of cloud providers, which are webhooks."""
    proxy.hidden = "/selfsubjectrulesreviews"
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))

    done = account("k8s", "--dry-run=server", "x.py")

    assert done.exit_code == 0, done.stderr
    assert sum(request.endswith("/selfsubjectaccessreviews") for request in proxy.requests) == len(RIGHTS) - 1


def test_the_documented_role_is_the_one_that_is_printed(distlaunch: Cli) -> None:
    printed = distlaunch("k8s", "--print-role")

    assert printed.exit_code == 0
    assert f"```yaml\n{printed.stdout}```\n" in (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_the_role_that_is_printed_has_what_a_run_of_that_kind_needs(user: User, kind: str) -> None:
    options = ("--kind", kind, "--nodes", "2", "--secret", "TOKEN")
    plan = user("k8s", "--dry-run", "--output", "json", *options, "x.py", env={"TOKEN": "1"}).json["result"]["plan"]

    printed = user("k8s", "--print-role", "--kind", kind, "--namespace", "ml").stdout

    role = yaml.safe_load(printed)
    assert role["metadata"] == {"name": "distlaunch", "namespace": "ml"}
    given = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = kube_rights.needed(KubernetesOptions(image="i", kind=kind), plan["objects"])
    owner = {"job": "jobs", "pods": "configmaps"}.get(kind, f"{kind}s")
    assert given - set(needed) == {
        ("", "secrets", "create"),
        ("", "pods", "deletecollection"),
        ("", "pods/exec", "create"),
        ("", "pods/exec", "get"),
        (next(group for group, resource, _ in given if resource == owner), owner, "list"),
        *([("trainer.kubeflow.org", "trainingruntimes", "get")] if kind == "trainjob" else []),
    }
    assert set(needed) <= given
    applied = user.kube.kubectl("apply", "--dry-run=server", "-f", "-", stdin=printed.replace(", namespace: ml", ""))
    assert "created" in applied.stdout
