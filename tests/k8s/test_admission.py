"""What a real API server refuses to admit, and what it warns of."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.kubernetes import admission
from testbed.kube_watch import wait_for
from tests.k8s.conftest import shell
from tests.unused_gpus import besides

if TYPE_CHECKING:
    from tests.k8s.conftest import User

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
    """A webhook that does not answer judges the namespace's pods."""
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
    "limits": (
        limit, ["--cpu=2", "--memory=10Mi"], "maximum cpu usage per Container is 1, but limit is 2", "--cpu, --memory",
    ),
    "an account": (
        lambda _: None, ["--service-account=none"], 'serviceaccount "none" not found', "--service-account NAME",
    ),
    "a quota": (lambda user: user.kube.quota(user.namespace, pods="1"), [], "exceeded quota", "--nodes"),
    "what a quota asks for": (
        lambda user: user.kube.quota(user.namespace, **{"limits.cpu": "9"}), [], "must specify limits.cpu", "--cpu",
    ),
    "a webhook": (guard, [], 'failed calling webhook "guard.example.com"', "--patch FILE"),
}  # fmt: skip
"""What refuses pods, the options of the run, what the event says, and what fixes it."""


def test_a_refusal_by_admission_ends_the_run_with_the_reason_and_the_fix(user: User) -> None:
    """These pods cannot be created, so no node ever reports anything about them."""
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
            assert " of 2 pods are not created yet: FailedCreate: Error creating: " in done.stderr, what
            assert reason in done.stderr, what
            assert flag in done.stderr.partition("to fix it: ")[2], what
            assert other.state(follower.run)["state"] == "failed", what
            other.wait_nothing_left()


def test_a_refusal_is_reported_at_once_and_only_once(user: User) -> None:
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
    assert state["detail"] in done.stderr, "although each try's pod had another name"
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
    assert state["detail"].startswith("1 of 2 pods are not created yet: FailedCreate: ")


def test_the_api_servers_warnings_are_shown_once(user: User) -> None:
    label(user, **{"pod-security.kubernetes.io/warn": "restricted", "pod-security.kubernetes.io/enforce": "privileged"})

    asked = user("k8s", "--dry-run=server", "--nodes", "2", "x.py")
    made = user("k8s", "--detach", "--nodes", "2", "x.py")
    fits = user("k8s", "--detach", "--run-as", "1000", "x.py")

    for done in (asked, made):
        assert done.exit_code == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("warning: the API server says: ")]
        assert len(said) == 1, done.stderr
        assert (
            'would violate PodSecurity "restricted:latest": unrestricted capabilities (container "node" must' in said[0]
        )
        assert "to fix it: --run-as" in said[0]
    assert fits.exit_code == 0
    assert "warning" not in besides(fits.stderr)


def test_the_documented_flags_fit_a_restricted_namespace(user: User) -> None:
    """Admission is up to the API server, so no node is needed; that such pods run is tested with nodes."""
    label(user)
    fits = ("--volume=pvc:data:/data", "--volume=emptydir::/scratch", "--cpu=1", "--secret-ref=A=b:c")
    cases = [(kind, who) for kind in ("job", "pods") for who in ("1000:2000", "image")]

    for kind, who in cases:
        done = user("k8s", "--detach", "--kind", kind, "--nodes", "2", "--run-as", who, *fits, "x.py")
        assert done.exit_code == 0, done.stderr
        assert "warning" not in besides(done.stderr)
        user.wait_pods(done.stdout.strip(), 2)
    for options, fix in (
        (["--run-as=1000", "--ipc-lock"], "no --ipc-lock"),
        (["--run-as=1000", "--volume=nfs:h:/a:/b"], "--volume pvc:"),
        (["--run-as=1000", "--host-network"], "no --host-network"),
        (["--run-as=0"], "--run-as UID"),
        ([], "--run-as UID[:GID], or --run-as image"),
    ):
        refused = user("k8s", "--detach", "--kind", "pods", *options, "x.py")
        assert refused.exit_code == 2, refused.stderr
        assert f"hint: to fix it: {fix}" in refused.stderr


@pytest.mark.parametrize(
    ("text", "nodes", "for_good"),
    [
        ("exceeded quota: q, requested: pods=1, used: pods=9, limited: pods=9", 9, False),
        ("exceeded quota: q, requested: pods=1, used: pods=9, limited: pods=9", 10, True),
        ("exceeded quota: q, requested: cpu=500m,pods=1, used: cpu=1,pods=0, limited: cpu=1,pods=5", 2, False),
        ("exceeded quota: q, requested: cpu=500m,pods=1, used: cpu=1,pods=0, limited: cpu=1,pods=5", 3, True),
        (
            "exceeded quota: q, requested: limits.memory=1Gi, used: limits.memory=0, limited: limits.memory=1000M",
            1,
            True,
        ),
        ("failed quota: q: must specify limits.cpu for: node", 1, True),
        ("maximum cpu usage per Container is 1, but limit is 2", 1, True),
    ],
)
def test_only_a_quota_with_room_for_the_whole_run_is_waited_for(text: str, nodes: int, for_good: bool) -> None:
    times = {"firstTimestamp": "2026-01-01T00:00:01Z", "lastTimestamp": "2026-01-01T00:00:09Z"}
    event = {"reason": "FailedCreate", "message": f'pods "x-0-abcde" is forbidden: {text}', **times}
    events = [event, {**event, "reason": "Created", "message": "no"}]
    began = 1767225601.0

    found = admission.refusal(events, 0.0, nodes, {})

    assert found == (f'FailedCreate: pods "x-0-..." is forbidden: {text}', began, for_good)
    assert admission.refusal(events, began + 5, nodes, {}) == (found.reason, began + 5, for_good), (
        "a pod was made in between"
    )
    assert admission.refusal(events, began + 100, nodes, {}) is None, "all refusals are from before that"
