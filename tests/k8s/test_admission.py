"""What a real API server does not let in: pods that admission refuses, rights that are missing; and what it warns of."""

from __future__ import annotations

import json
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from launcher.backends.kubernetes import admission, sidecars
from launcher.backends.kubernetes import rights as kube_rights
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.kubernetes.watch import RunWatch
from testbed.kube_watch import wait_for
from tests.command import ROOT
from tests.k8s import proxy as proxies
from tests.k8s.conftest import index_of, shell

if TYPE_CHECKING:
    from tests.command import Cli
    from tests.k8s.conftest import User
    from tests.k8s.proxy import Proxy

pytestmark = pytest.mark.k8s

SECURE = {"pod-security.kubernetes.io/enforce": "restricted"}
LIMITS = {"type": "Container", "max": {"cpu": "1", "memory": "1Gi"}, "min": {"memory": "100Mi"}}


def label(user: User, **more: str) -> None:
    """Label the namespace."""
    user.kube.api.patch(f"/api/v1/namespaces/{user.namespace}", {"metadata": {"labels": {**SECURE, **more}}})


def limit(user: User) -> None:
    """Limit what a container may ask for."""
    path = f"/api/v1/namespaces/{user.namespace}/limitranges"
    user.kube.api.post(path, {"metadata": {"name": "limits"}, "spec": {"limits": [LIMITS]}})


def guard(user: User) -> None:
    """A webhook that nobody answers judges the namespace's pods."""
    hook = {
        "name": "guard.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": user.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    user.kube.api.post(path, {"metadata": {"name": user.namespace}, "webhooks": [hook]})


REFUSED = {
    "pod security": (label, [], 'violates PodSecurity "restricted:latest"', "--run-as"),
    "limits": (limit, ["--cpu=2", "--memory=10Mi"], "maximum cpu usage per Container is 1, but limit is 2", "--cpu, --memory"),
    "an account": (lambda _: None, ["--service-account=none"], 'serviceaccount "none" not found', "--service-account NAME"),
    "a quota": (lambda user: user.kube.quota(user.namespace, pods="1"), [], "exceeded quota", "--nodes"),
    "what a quota asks for": (
        lambda user: user.kube.quota(user.namespace, **{"limits.cpu": "9"}), [], "must specify limits.cpu", "--cpu",
    ),
    "a webhook": (guard, [], 'failed calling webhook "guard.example.com"', "--patch FILE"),
}  # fmt: skip
"""What refuses pods, the options of the run, what the event says, and what mends it."""


def test_what_admission_refuses_ends_the_run_with_the_reason_and_what_mends_it(user: User) -> None:
    """Nobody can make these pods, so no node ever says a word of them."""
    with ExitStack() as stack:
        runs = {}
        for what, (prepare, options, _, _) in REFUSED.items():
            other = stack.enter_context(shell(user.cli, user.kube, stack.enter_context(user.kube.lend_namespace())))
            prepare(other)
            runs[what] = (other, other.follow("--nodes", "2", "--start-timeout", "1s", *options, "x.py"))
        for what, (other, follower) in runs.items():
            _, _, reason, flag = REFUSED[what]
            done = follower.result()
            assert done.exit_code == 1, f"{what}: {done.stderr}"
            assert " of 2 pods are not made yet: FailedCreate: Error creating: " in done.stderr, what
            assert reason in done.stderr, what
            assert flag in done.stderr.partition("to fix it: ")[2], what
            assert other.state(follower.run)["state"] == "failed", what
            other.wait_nothing_left()


def test_a_refusal_is_told_at_once_and_only_once(user: User) -> None:
    label(user)
    follower = user.follow("--nodes", "2", "--start-timeout", "10m", "x.py")
    follower.wait_err('FailedCreate: Error creating: pods "')

    def refused(events: list[dict[str, Any]]) -> bool:
        return [event["reason"] for event in events].count("FailedCreate") > 2

    wait_for(user.kube.api, f"/api/v1/namespaces/{user.namespace}/events", "three refusals", refused)
    state = user.state(follower.run)
    follower.process.send_signal(signal.SIGINT)

    done = follower.result()
    assert done.exit_code == 130, done.stderr
    assert (state["state"], done.stderr.count("pending:")) == ("pending", 1), done.stderr
    assert state["detail"] in done.stderr, "though the name of each try's pod was another one"
    assert 'violates PodSecurity "restricted:latest": unrestricted capabilities (container' in state["detail"]


def test_a_quota_that_others_use_up_is_waited_for(user: User) -> None:
    user.kube.quota(user.namespace, pods="2")
    pods = f"/api/v1/namespaces/{user.namespace}/pods"
    user.kube.api.post(pods, {"metadata": {"name": "other"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    run = user.detached("--nodes", "2", "--start-timeout", "1s", "x.py")

    def refused_for_longer(events: list[dict[str, Any]]) -> bool:
        times = [event["firstTimestamp"] for event in events if event["reason"] == "FailedCreate"]
        return len(set(times)) > 2

    wait_for(user.kube.api, f"/api/v1/namespaces/{user.namespace}/events", "refusals over seconds", refused_for_longer)
    state = user.state(run)
    assert state["state"] == "pending", state
    assert state["detail"].startswith("1 of 2 pods are not made yet: FailedCreate: ")


def test_the_api_servers_warnings_are_shown_once(user: User) -> None:
    label(user, **{"pod-security.kubernetes.io/warn": "restricted", "pod-security.kubernetes.io/enforce": "privileged"})

    asked = user("k8s", "--dry-run=server", "--nodes", "2", "x.py")
    made = user("k8s", "--detach", "--nodes", "2", "x.py")
    fits = user("k8s", "--detach", "--run-as", "1000", "x.py")

    for done in (asked, made):
        assert done.exit_code == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("warning: the API server says: ")]
        assert len(said) == 1, done.stderr
        assert 'would violate PodSecurity "restricted:latest": unrestricted capabilities (container "node" must' in said[0]
        assert "to fix it: --run-as" in said[0]
    assert fits.exit_code == 0
    assert "warning" not in fits.stderr


def test_the_documented_flags_fit_a_restricted_namespace(user: User) -> None:
    """Admission is the API server's own, so no machine is needed; that such pods run is shown with machines."""
    label(user)
    fits = ("--volume=pvc:data:/data", "--volume=emptydir::/scratch", "--cpu=1", "--secret-ref=A=b:c")
    cases = [(kind, who) for kind in ("job", "pods") for who in ("1000:2000", "image")]

    for kind, who in cases:
        done = user("k8s", "--detach", "--kind", kind, "--nodes", "2", "--run-as", who, *fits, "x.py")
        assert done.exit_code == 0, done.stderr
        assert "warning" not in done.stderr
        user.wait_pods(done.stdout.strip(), 2)
    for options, mends in (
        (["--run-as=1000", "--ipc-lock"], "no --ipc-lock"),
        (["--run-as=1000", "--volume=nfs:h:/a:/b"], "--volume pvc:"),
        (["--run-as=1000", "--host-network"], "no --host-network"),
        (["--run-as=0"], "--run-as UID"),
        ([], "--run-as UID[:GID], or --run-as image"),
    ):
        refused = user("k8s", "--detach", "--kind", "pods", *options, "x.py")
        assert refused.exit_code == 2, refused.stderr
        assert f"hint: to fix it: {mends}" in refused.stderr


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
"""All that a run with a secret takes that is neither signalled nor ended by force."""


def rules(rights: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    return [{"apiGroups": [group], "resources": [resource], "verbs": [verb]} for group, resource, verb in rights]


def test_each_missing_right_is_named_before_anything_is_made(user: User) -> None:
    cases: list[list[tuple[str, str, str]]] = [*([right] for right in RIGHTS), RIGHTS]
    for number, missing in enumerate(cases):
        account = user.with_rights(f"lesser-{number}", rules([right for right in RIGHTS if right not in missing]))
        with proxies.before(account.kubeconfig) as server:
            through = replace(account, kubeconfig=user.write("proxy.kubeconfig", server.kubeconfig()))
            # the namespace is that of the context, which an administrator's is not
            done = through("k8s", "--detach", "--secret", "TOKEN", "x.py", env={"TOKEN": "1", "DISTLAUNCH_NAMESPACE": None})

        named = {f"{verb} {resource}" for _, resource, verb in missing}
        assert done.exit_code == 3, done.stderr
        role, _, told = done.stderr.partition("error[")
        first = f"error[{told}".partition("\n")[0]
        who = f"system:serviceaccount:{user.namespace}:lesser-{number}"
        assert first.startswith(f"error[backend_unavailable]: {who} may not ")
        assert set(first.partition(" may not ")[2].partition(" in namespace ")[0].split(", ")) == named
        assert server.sent == [], "nothing was made that would have to be removed"
        (shown,) = yaml.safe_load_all(role)
        assert (shown["kind"], shown["metadata"]["namespace"]) == ("Role", user.namespace)
        assert f"# what `distlaunch k8s --print-role --kind job --namespace {user.namespace}` prints:" in role
        assert f"rolebinding distlaunch --role=distlaunch --user={who} --namespace={user.namespace}" in done.stderr


def test_what_is_asked_for_is_enough_and_no_more_is_asked_for(user: User) -> None:
    """A single node without secrets needs no right to make them, a run that is queued none to let it go."""
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


def test_who_may_not_delete_a_pod_that_another_container_holds_is_told_once_and_sees_how_the_run_is(
    user: User, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That right is not asked for before. The machines' part is played: node 0 has ended, and node 1 is not heard of."""
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
    monkeypatch.setattr(sidecars, "time", SimpleNamespace(time=time.time, monotonic=time.monotonic))  # it waits for nothing
    watch.release()

    assert {state.detail for state in found} == {told.json["result"]["detail"]}
    said = capfd.readouterr().err
    assert said.count("a container beside ours holds pod") == said.count("may not deletecollection pods") == 1, said
    assert "`distlaunch k8s --print-role`" in said


def test_who_may_only_look_sees_how_a_run_is_that_should_be_ended_or_explained(
    user: User, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run that cannot start is ended by who may; why its pods are not made is in events, which not everybody reads."""
    looks = [right for right in RIGHTS if right[1:] in (("jobs", "get"), ("pods", "list"), ("pods/log", "get"))]
    viewer = user.with_rights("viewer", rules(looks))
    stuck = user.detached("x.py")
    (pod,) = user.wait_pods(stuck, 1)
    waits = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    own = {"name": "node", "state": waits, "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [own]}
    user.kube.api.patch(f"/api/v1/namespaces/{user.namespace}/pods/{pod['metadata']['name']}/status", {"status": status})
    user.kube.quota(user.namespace, pods="1")
    unmade = user.detached("x.py")

    for run, detail, right in (
        (stuck, "cannot start: ErrImagePull: no such image", "delete jobs"),
        (unmade, "1 of 1 pods are not made yet", "list events"),
    ):
        handle = json.loads((user.cli.runs / run / "run.json").read_text())["handle"]
        handle["kubeconfig"] = str(viewer.kubeconfig)
        watch = RunWatch(handle)
        found = [watch.liveness(60.0) for _ in range(2)]
        assert all(detail in state.detail for state in found), found
        assert capfd.readouterr().err.count(f"may not {right} in namespace") == 1
        assert not (user.cli.runs / run / "given_up.json").exists(), "its pods may start yet"
    for run in (unmade, stuck):  # an end of the other makes room for its pod
        assert user("cancel", run).exit_code == 0


def test_an_authorizer_that_lists_no_rules_is_asked_for_each_right(user: User, proxy: Proxy) -> None:
    """As those of cloud providers, which are webhooks."""
    proxy.hidden = "/selfsubjectrulesreviews"
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))

    done = account("k8s", "--dry-run=server", "x.py")

    assert done.exit_code == 0, done.stderr
    assert sum(request.endswith("/selfsubjectaccessreviews") for request in proxy.requests) == len(RIGHTS) - 1


def test_the_documented_role_is_the_one_that_is_printed(distlaunch: Cli) -> None:
    printed = distlaunch("k8s", "--print-role")

    assert printed.exit_code == 0
    assert f"```yaml\n{printed.stdout}```\n" in (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob", "pytorchjob", "pods"])
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
    }
    assert set(needed) <= given
    applied = user.kube.kubectl("apply", "--dry-run=server", "-f", "-", stdin=printed.replace(", namespace: ml", ""))
    assert "created" in applied.stdout


@pytest.mark.parametrize(
    ("text", "nodes", "for_good"),
    [
        ("exceeded quota: q, requested: pods=1, used: pods=9, limited: pods=9", 9, False),
        ("exceeded quota: q, requested: pods=1, used: pods=9, limited: pods=9", 10, True),
        ("exceeded quota: q, requested: cpu=500m,pods=1, used: cpu=1,pods=0, limited: cpu=1,pods=5", 2, False),
        ("exceeded quota: q, requested: cpu=500m,pods=1, used: cpu=1,pods=0, limited: cpu=1,pods=5", 3, True),
        ("exceeded quota: q, requested: limits.memory=1Gi, used: limits.memory=0, limited: limits.memory=1000M", 1, True),
        ("failed quota: q: must specify limits.cpu for: node", 1, True),
        ("maximum cpu usage per Container is 1, but limit is 2", 1, True),
    ],
)
def test_only_a_quota_with_room_for_the_whole_run_is_waited_for(text: str, nodes: int, for_good: bool) -> None:
    times = {"firstTimestamp": "2026-01-01T00:00:01Z", "lastTimestamp": "2026-01-01T00:00:09Z"}
    event = {"reason": "FailedCreate", "message": f'pods "x-0-abcde" is forbidden: {text}', **times}
    events = [event, {**event, "reason": "Created", "message": "no"}]
    began = 1767225601.0

    found = admission.refusal(events, 0.0, nodes)

    assert found == (f'FailedCreate: pods "x-0-..." is forbidden: {text}', began, for_good)
    assert admission.refusal(events, began + 5, nodes) == (found.reason, began + 5, for_good), "a pod was made in between"
    assert admission.refusal(events, began + 100, nodes) is None, "all refusals are from before that"
