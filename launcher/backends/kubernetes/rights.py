"""The rights that a run needs in its namespace: checked before anything is created, and printed as a Role."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.named_tuple import NamedTuple
from launcher.backends.kubernetes import api, objects
from launcher.errors import BackendUnavailableError
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.objects import Manifest
    from launcher.backends.kubernetes.options import KubernetesOptions

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubject{}reviews"
_VERBS = ("create", "get", "list", "watch", "patch", "delete", "deletecollection")


class Right(NamedTuple):
    """One verb on one kind of resource; a subresource is `pods/log`."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


_FOLLOWING = (
    Right("", "pods", "list"),
    Right("", "pods", "watch"),
    Right("", "pods/log", "get"),
    Right("", "events", "list"),
)
EXEC = (Right("", "pods/exec", "create"), Right("", "pods/exec", "get"))
"""For signals to the workers, their terminals, their files, and the claim of a run on several clusters."""

_ON_REQUEST = (Right("", "pods", "deletecollection"), *EXEC)
"""The first is for `cancel --force` and for pods held by sidecars."""


def needed(opts: KubernetesOptions, manifests: Iterable[Manifest]) -> list[Right]:
    """The rights to create these objects, and to release, follow and end the run."""
    found = [Right(*_resource(objects.path_of(item, "")), "create") for item in manifests]
    owner = _resource(objects.KINDS[opts.kind].path)
    verbs = ["get", "delete"] if opts.queue or opts.kind == "pods" else ["get", "patch", "delete"]
    found += [Right(*owner, verb) for verb in verbs]
    if opts.kind == "trainjob":
        found += [Right(*_resource(objects.RUNTIME_PATH), verb) for verb in ("patch", "delete")]
    return list(dict.fromkeys([*found, *_FOLLOWING]))


def role(opts: KubernetesOptions) -> str:
    """The Role that all our commands need for runs of this kind, as YAML."""
    kind = objects.KINDS[opts.kind]
    made: list[Manifest] = [{"kind": name} for name in ("ConfigMap", "Secret", "NetworkPolicy")]
    made += [] if kind.has_service else [{"kind": "Service"}]
    made += {"pods": [{"kind": "Pod"}], "trainjob": [{"kind": "TrainingRuntime"}]}.get(opts.kind, [])
    queued = needed(opts, [*made, {"kind": kind.kind}])
    owner = _resource(kind.path)
    runtime = [Right(*_resource(objects.RUNTIME_PATH), "get")] if opts.kind == "trainjob" else []  # for `requeue`
    rights = {
        *queued,
        *runtime,
        *_ON_REQUEST,
        Right(*owner, "list"),
        *([] if opts.kind == "pods" else [Right(*owner, "patch")]),
    }
    by_resource: dict[tuple[str, str], tuple[str, ...]] = {}
    for group, resource, _ in sorted(rights):
        by_resource[group, resource] = tuple(verb for verb in _VERBS if (group, resource, verb) in rights)
    rules: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), verbs in sorted(by_resource.items(), key=lambda item: (item[0][0] == "", item[0])):
        rules.setdefault((group, verbs), []).append(resource)
    where = f", namespace: {opts.namespace}" if opts.namespace else ""
    lines = [
        "apiVersion: rbac.authorization.k8s.io/v1",
        "kind: Role",
        f"metadata: {{name: distlaunch{where}}}",
        "rules:",
    ]
    for (group, verbs), resources in rules.items():
        named = group or '""'
        lines.append(f"- {{apiGroups: [{named}], resources: [{', '.join(resources)}], verbs: [{', '.join(verbs)}]}}")
    return "\n".join(lines) + "\n"


def check(cluster: Cluster, opts: KubernetesOptions, manifests: Iterable[Manifest], more: Iterable[Right] = ()) -> None:
    """Check each right that the run needs; raises for missing ones, after printing the Role that grants them."""
    wanted = [*needed(opts, manifests), *more]
    try:
        rules = _ask(cluster, "rules", {"namespace": cluster.namespace}).get("resourceRules") or ()
        unsure = [right for right in wanted if not any(_grants(rule, right) for rule in rules)]
        # An authorizer that lists no rules, as cloud providers have, still answers for single rights.
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda right: _may(cluster, right), unsure))
        missing = [right for right, may in zip(unsure, answers, strict=True) if not may]
        if not missing:
            return
        who = _who(cluster)
    except api.ApiError as error:
        if error.status == 401:
            raise
        return  # without the right to ask, the creation reports what is missing
    where = f"in namespace {cluster.namespace!r}"
    bind = f"kubectl create rolebinding distlaunch --role=distlaunch --user={who} --namespace={cluster.namespace}"
    told = f"`distlaunch k8s --print-role --kind {opts.kind} --namespace {cluster.namespace}`"
    output.report(f"# what {told} prints:", *role(replace(opts, namespace=cluster.namespace)).splitlines())
    raise BackendUnavailableError(
        f"{who} may not {', '.join(map(str, missing))} {where}, which this run needs; nothing was created",
        hint=f"an administrator grants these rights with the Role that {told} prints, and {bind}; "
        "or name another namespace: --namespace NAME",
    )


def _resource(path: str) -> tuple[str, str]:
    """Group and resource of a collection's path: /api/v1/namespaces/X/pods, /apis/batch/v1/namespaces/X/jobs."""
    parts = path.strip("/").split("/")
    return ("" if parts[0] == "api" else parts[1]), parts[-1]


def _grants(rule: Mapping[str, Any], right: Right) -> bool:
    """Whether a rule grants a right on all objects of its kind."""
    resource, _, part = right.resource.partition("/")
    names = {right.resource, "*", f"*/{part}" if part else resource}
    return (
        not rule.get("resourceNames")
        and not {"*", right.verb}.isdisjoint(rule.get("verbs") or ())
        and not {"*", right.group}.isdisjoint(rule.get("apiGroups") or ())
        and not names.isdisjoint(rule.get("resources") or ())
    )


def _may(cluster: Cluster, right: Right) -> bool:
    """Whether the cluster grants us this one right."""
    resource, _, part = right.resource.partition("/")
    asked = {
        "namespace": cluster.namespace,
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": part,
    }
    return bool(_ask(cluster, "access", {"resourceAttributes": asked}).get("allowed"))


def _ask(cluster: Cluster, what: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    kind = f"SelfSubject{what.capitalize()}Review"
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    status: dict[str, Any] = cluster.call("POST", _REVIEWS.format(what), body).get("status") or {}
    return status


def _who(cluster: Cluster) -> str:
    """The user name by which the API server knows us."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        told = cluster.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    except (api.ApiError, api.UnreachableError):
        return "your user"
    return str(((told.get("status") or {}).get("userInfo") or {}).get("username") or "your user")
