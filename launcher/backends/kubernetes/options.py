"""The options of `distlaunch k8s`, and their texts made into Kubernetes' words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from launcher.errors import SpecError
from launcher.settings.options import duration, not_below, one_of, option
from launcher.spec import check_secrets

KINDS = ("job", "jobset", "trainjob", "pytorchjob", "pods")

_QUANTITY = re.compile(r"(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+|n|u|m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?\Z", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?\Z", re.ASCII)
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z", re.ASCII)
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z", re.ASCII)
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Where and how the pods run; `--patch` for whatever is missing here."""

    image: str = option("", help="Container image with Python and torch.", executes=True, group="job")
    namespace: str = option(
        "",
        help="Namespace; otherwise the context's.",
        flags=("-n", "--namespace"),
        check=lambda text: text and _name(text, "namespace", label=True),
    )
    context: str = option(
        "", help="Context of the kubeconfig; otherwise its current one.", executes=True, check=lambda text: _line(text, "context")
    )
    kubeconfig: str = option(
        "",
        metavar="FILE",
        help="Otherwise KUBECONFIG, ~/.kube/config, or the pod we run in.",
        executes=True,
        path="list",
        check=lambda text: _line(text, "kubeconfig"),
    )
    kind: str = option("job", metavar="|".join(KINDS), help="What is created.", check=one_of("kind", *KINDS))
    queue: str = option(
        "", metavar="NAME", help="Kueue's LocalQueue that admits the run.", check=lambda text: text and _name(text, "queue")
    )
    gpus_per_node: int = option(
        0, metavar="N", help="GPUs per node; one worker each.", check=not_below("gpus-per-node"), group="resources"
    )
    gpu_resource: str = option(
        "nvidia.com/gpu", metavar="NAME", help="What the cluster calls a GPU: amd.com/gpu.", group="resources"
    )
    cpu: str = option(
        "", metavar="QUANTITY", help="Processors per node.", check=lambda text: text and quantity(text, "cpu"), group="resources"
    )
    memory: str = option(
        "",
        metavar="QUANTITY",
        help="Memory per node: 64Gi.",
        check=lambda text: text and quantity(text, "memory"),
        group="resources",
    )
    resource: tuple[str, ...] = option(
        (),
        metavar="NAME=N",
        help="Further resource per node: rdma/hca=1.",
        check=lambda texts: resource_pairs(texts),
        group="resources",
    )
    shm: str = option(
        "",
        metavar="QUANTITY",
        help="Size of /dev/shm; otherwise half of --memory, or the node's own limit.",
        check=lambda text: text and quantity(text, "shm"),
        group="resources",
    )
    ipc_lock: bool = option(
        False, help="Allow locked memory, as RDMA needs it; implied by a resource rdma/....", group="resources"
    )
    volume: tuple[str, ...] = option(
        (),
        metavar="WHAT:PATH[:ro]",
        help="Volume: pvc:CLAIM:PATH, hostpath:SOURCE:PATH, nfs:SERVER:SOURCE:PATH, emptydir:[SIZE]:PATH.",
        executes=True,
        check=lambda texts: volumes(texts),
        group="files",
    )
    node_selector: tuple[str, ...] = option(
        (), metavar="LABEL=VALUE", help="Only nodes with this label.", check=lambda texts: pairs(texts, "node-selector")
    )
    exclude: str = option(
        "",
        metavar="N1,N2",
        help="Machines that must not be, by their names in the cluster.",
        check=lambda text: [_name(name, "exclude") for name in names(text)],
    )
    toleration: tuple[str, ...] = option(
        (), metavar="KEY[=VALUE][:EFFECT]", help="Also nodes with this taint.", check=lambda texts: tolerations(texts)
    )
    prefer_same: str = option(
        "",
        metavar="LABEL",
        help="If possible, all nodes in one rack or zone, by this label of theirs.",
        check=lambda text: text and label_key(text, "prefer-same"),
    )
    require_same: str = option(
        "",
        metavar="LABEL",
        help="All nodes in one rack or zone, or none.",
        check=lambda text: text and label_key(text, "require-same"),
    )
    spread: bool = option(False, help="Never two of the run's pods on one machine.")
    priority_class: str = option(
        "", metavar="NAME", help="Priority class of the pods.", check=lambda text: text and _name(text, "priority-class")
    )
    service_account: str = option(
        "",
        metavar="NAME",
        help="Service account of the pods; otherwise they get no token.",
        executes=True,
        check=lambda text: text and _name(text, "service-account"),
    )
    pull_secret: tuple[str, ...] = option(
        (),
        metavar="NAME",
        help="Secret to pull the image with.",
        check=lambda texts: [_name(text, "pull-secret") for text in texts],
    )
    pull_policy: str = option(
        "",
        metavar="|".join(_PULL_POLICIES),
        help="When to pull the image.",
        check=lambda text: text and one_of("pull-policy", *_PULL_POLICIES)(text),
    )
    secret_ref: tuple[str, ...] = option(
        (),
        metavar="VARIABLE=SECRET:KEY",
        help="Variable for the workers out of a Secret that exists.",
        executes=True,
        check=lambda texts: secret_refs(texts),
        group="job",
    )
    label: tuple[str, ...] = option(
        (),
        metavar="KEY=VALUE",
        help="Label on everything that is created.",
        executes=True,  # what is put into pods by others is asked for by labels and annotations
        check=lambda texts: pairs(texts, "label"),
    )
    annotation: tuple[str, ...] = option(
        (),
        metavar="KEY=VALUE",
        help="Annotation on everything that is created.",
        executes=True,
        check=lambda texts: pairs(texts, "annotation", values_are_labels=False),
    )
    host_network: bool = option(
        False, help="The machines' own network; ports are then chosen on the first node.", group="network"
    )
    network_policy: bool = option(
        True, help="Only the run's own pods reach its ports, where the cluster's network keeps NetworkPolicies.", group="network"
    )
    run_as: str = option(
        "",
        metavar="UID[:GID]|image",
        help="As this user, or as the image's own who is not root; fits restricted namespaces.",
        executes=True,
        check=lambda text: text and user(text),
        group="job",
    )
    snapshot: bool = option(True, help="Send the files of the working folder along.", group="files")
    workdir: str = option(
        "",
        metavar="PATH",
        help="Working folder in the image or on a volume; implies --no-snapshot.",
        executes=True,
        group="files",
    )
    patch: tuple[str, ...] = option(
        (),
        metavar="FILE",
        help="YAML that is merged into the objects of its kind, as kubectl patch does it.",
        executes=True,
        path="whole",
        group="files",
    )
    ttl: str = option("1d", metavar="DURATION", help="How long an ended run stays in the cluster.", check=duration("ttl"))
    start_timeout: str = option(
        "2m",
        metavar="DURATION",
        help="So long pods may fail to start, or be refused; then the run is ended.",
        check=duration("start-timeout"),
    )
    max_requeues: int = option(
        3,
        metavar="N",
        help="How often the run starts again after a lost node; preemptions, evictions and drains do not count.",
        check=not_below("max-requeues"),
    )
    server_dry_run: bool = option(
        False, help="Ask the API server whether it would take the objects; create nothing.", group="output"
    )


def quantity(text: str, what: str) -> str:
    """The text, if Kubernetes reads it as a quantity."""
    if not _QUANTITY.match(text):
        raise SpecError(f"{what} {text!r} is no quantity", hint="write 2, 500m, 64Gi or 500M, without blanks")
    return text


def resources(opts: KubernetesOptions) -> dict[str, str]:
    """What one node's pod takes, by Kubernetes' names."""
    found = {opts.gpu_resource: str(opts.gpus_per_node)} if opts.gpus_per_node else {}
    for name in ("cpu", "memory"):
        if value := getattr(opts, name):
            found[name] = value
    return found | resource_pairs(opts.resource)


def resource_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """`NAME=N` texts as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not given or not _LABEL_KEY.match(name):
            raise SpecError(f"resource {text!r} is not NAME=N", hint="write --resource rdma/hca=1")
        found[name] = quantity(value, f"resource {name}")
    return found


def names(text: str) -> list[str]:
    """`N1,N2` as a list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def pairs(texts: tuple[str, ...], what: str, *, values_are_labels: bool = True) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping, checked as labels."""
    found: dict[str, str] = {}
    for text in texts:
        key, given, value = text.partition("=")
        if not given or not _LABEL_KEY.match(key):
            raise SpecError(f"{what} {text!r} is not KEY=VALUE", hint=f"write --{what} example.com/key=value")
        if values_are_labels and not _LABEL_VALUE.match(value):
            raise SpecError(
                f"{what} {text!r}: {value!r} is no label value", hint="at most 63 letters, digits, '-', '_' and '.' between them"
            )
        found[key] = value
    return found


def tolerations(texts: tuple[str, ...]) -> list[dict[str, str]]:
    """`KEY[=VALUE][:EFFECT]`, as kubectl taint writes taints."""
    found = []
    for text in texts:
        rest, _, effect = text.partition(":")
        key, valued, value = rest.partition("=")
        if not _LABEL_KEY.match(key) or (effect and effect not in _EFFECTS):
            raise SpecError(f"toleration {text!r} is not KEY[=VALUE][:EFFECT]", hint="effects: " + ", ".join(_EFFECTS))
        found.append(
            {"key": key, "operator": "Equal" if valued else "Exists"}
            | ({"value": value} if valued else {})
            | ({"effect": effect} if effect else {})
        )
    return found


def secret_refs(texts: tuple[str, ...]) -> list[dict[str, Any]]:
    """Variables whose values are in Secrets that exist."""
    found = []
    for text in texts:
        name, _, source = text.partition("=")
        secret, _, key = source.partition(":")
        if not _ENV_NAME.match(name) or not _DNS_NAME.match(secret) or not key:
            raise SpecError(f"secret-ref {text!r} is not VARIABLE=SECRET:KEY", hint="write --secret-ref HF_TOKEN=hub:token")
        check_secrets([name])
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return found


def volumes(texts: tuple[str, ...]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes, and where the container has them."""
    found, mounts = [], []
    for number, text in enumerate(texts):
        readonly = text.endswith(":ro")
        kind, *rest = text.removesuffix(":ro").split(":")
        source = _volume_source(kind.lower(), rest)
        if source is None or not rest[-1].startswith("/"):
            raise SpecError(
                f"volume {text!r} is not understood",
                hint="pvc:CLAIM:PATH, hostpath:SOURCE:PATH, nfs:SERVER:SOURCE:PATH or emptydir:[SIZE]:PATH, each with :ro",
            )
        name = f"volume-{number}"
        found.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": rest[-1]} | ({"readOnly": True} if readonly else {}))
    return found, mounts


def _volume_source(kind: str, rest: list[str]) -> dict[str, Any] | None:
    if kind == "pvc" and len(rest) == 2 and _DNS_NAME.match(rest[0]):
        return {"persistentVolumeClaim": {"claimName": rest[0]}}
    if kind == "hostpath" and len(rest) == 2 and rest[0].startswith("/"):
        return {"hostPath": {"path": rest[0]}}
    if kind == "nfs" and len(rest) == 3 and rest[0] and rest[1].startswith("/"):
        return {"nfs": {"server": rest[0], "path": rest[1]}}
    if kind == "emptydir" and len(rest) == 2:
        return {"emptyDir": {"sizeLimit": quantity(rest[0], "volume size")} if rest[0] else {}}
    return None


def user(text: str) -> dict[str, Any]:
    """`UID[:GID]`, or the image's own user, as a pod's security context."""
    if text == "image":
        return {"runAsNonRoot": True}
    match = re.fullmatch(r"(\d{1,10})(?::(\d{1,10}))?", text, re.ASCII)
    if match is None:
        raise SpecError(f"run-as {text!r} is not UID[:GID], nor image", hint="write --run-as 1000:1000")
    uid = int(match[1])
    gid = int(match[2]) if match[2] else uid
    return {"runAsUser": uid, "runAsGroup": gid, "fsGroup": gid, "runAsNonRoot": uid != 0}


def half(text: str) -> str:
    """Half of a quantity of bytes."""
    count = amount(text)
    mebibytes = int(count / 2 / 2**20)
    return f"{mebibytes}Mi" if mebibytes else str(max(1, int(count / 2)))


def amount(text: str) -> float:
    """A quantity as a number."""
    match = _QUANTITY.match(text)
    assert match is not None
    unit = match[3] or ""
    if unit[:1] in ("e", "E") and len(unit) > 1:
        return float(text)
    if unit.endswith("i"):
        return float(match[1]) * 1024.0 ** (1 + "KMGTPE".index(unit[0]))
    return float(match[1]) * ({"n": 1e-9, "u": 1e-6, "m": 0.001, "": 1}.get(unit) or 1000.0 ** (1 + "kMGTPE".index(unit)))


def label_key(text: str, what: str) -> str:
    """The text, if a label can have this name."""
    if not _LABEL_KEY.match(text):
        raise SpecError(f"{what} {text!r} is no label's name", hint="for example topology.kubernetes.io/zone")
    return text


def _line(text: str, what: str) -> None:
    if not text.isprintable():  # it stands in commands that are printed
        raise SpecError(f"{what} {text!r} has characters that cannot be printed")


def _name(text: str, what: str, *, label: bool = False) -> str:
    if not (_DNS_LABEL if label else _DNS_NAME).match(text):
        raise SpecError(f"{what} {text!r} is no name in Kubernetes", hint="lower-case letters, digits and dashes, at most 63")
    return text
