"""The options of `distlaunch k8s`."""

from __future__ import annotations

from typing import ClassVar

from launcher.backends.kubernetes import words
from launcher.errors import SpecError
from launcher.login import address
from launcher.settings.option import duration, not_below, one_of, option
from launcher.system.dataclass import dataclass

KINDS = ("job", "jobset", "trainjob", "pytorchjob", "mpijob", "tfjob", "pods")

_MPI = ("OpenMPI", "MPICH", "Intel")

_PULL_POLICIES = ("Always", "IfNotPresent", "Never")


def _absolute(text: str) -> None:
    if text and not text.startswith("/"):
        hint = "--volume pvc:CLAIM:/out --output-dir /out"
        raise SpecError(f"output-dir {text!r} is not an absolute path", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Where and how the pods run; `--patch` sets any other field."""

    per_role: ClassVar[tuple[str, ...]] = (
        *("image", "pull_policy", "pull_secret", "run_as", "secret_ref", "volume", "shm", "ipc_lock"),
        *("gpus_per_node", "gpu_resource", "cpu", "memory", "resource"),
        *("node_selector", "exclude", "toleration", "prefer_same", "require_same", "spread"),
        *("priority_class", "service_account"),
    )
    """Options that a role may have of its own."""

    image: str = option("", help="Container image with Python and torch.", executes=True, group="job")
    namespace: str = option(
        "",
        help="Namespace [default: the context's].",
        flags=("-n", "--namespace"),
        check=lambda text: text and words.dns_name(text, "namespace", label=True),
    )
    context: str = option(
        "",
        help="Context of the kubeconfig [default: its current one].",
        executes=True,
        check=lambda text: words.printable(text, "context"),
    )
    kubeconfig: str = option(
        "",
        metavar="FILE",
        help="Kubeconfig; otherwise KUBECONFIG, ~/.kube/config, or the account of the pod this runs in.",
        executes=True,
        path="list",
        check=lambda text: words.printable(text, "kubeconfig"),
    )
    login: str = option(
        "",
        metavar="[USER@]HOST",
        help="Login node that reaches the API server, as ssh takes it.",
        executes=True,
        check=address.check,
    )
    kind: str = option("job", metavar="|".join(KINDS), help="What to create.", check=one_of("kind", *KINDS))
    mpi_implementation: str = option(
        "OpenMPI",
        metavar="|".join(_MPI),
        help="With --kind mpijob: the MPI of the image.",
        check=one_of("mpi-implementation", *_MPI),
    )
    queue: str = option(
        "",
        metavar="NAME",
        help="Kueue LocalQueue that admits the run.",
        check=lambda text: text and words.dns_name(text, "queue"),
    )
    gpus_per_node: int | None = option(
        None,
        metavar="N",
        help="GPUs per node; one worker each.",
        check=not_below("gpus-per-node"),
        group="resources",
        default_text="0",
    )
    gpu_resource: str = option(
        "nvidia.com/gpu", metavar="NAME", help="Resource name of a GPU in the cluster: amd.com/gpu.", group="resources"
    )
    cpu: str = option(
        "",
        metavar="QUANTITY",
        help="CPUs per node.",
        check=lambda text: text and words.quantity(text, "cpu"),
        group="resources",
    )
    memory: str = option(
        "",
        metavar="QUANTITY",
        help="Memory per node: 64Gi.",
        check=lambda text: text and words.quantity(text, "memory"),
        group="resources",
    )
    resource: tuple[str, ...] = option(
        (),
        metavar="NAME=N",
        help="Additional resource per node: rdma/hca=1.",
        check=words.resource_pairs,
        group="resources",
    )
    shm: str = option(
        "",
        metavar="QUANTITY",
        help="Size of /dev/shm; otherwise half of --memory, or the node's own limit.",
        check=lambda text: text and words.quantity(text, "shm"),
        group="resources",
    )
    ipc_lock: bool = option(
        False, help="Allow locked memory, which RDMA needs; implied by a resource rdma/....", group="resources"
    )
    volume: tuple[str, ...] = option(
        (),
        metavar="WHAT:PATH[:ro]",
        help="Volume: pvc:CLAIM:PATH, hostpath:SOURCE:PATH, nfs:SERVER:SOURCE:PATH, emptydir:[SIZE]:PATH.",
        executes=True,
        check=words.volumes,
        group="files",
    )
    node_selector: tuple[str, ...] = option(
        (),
        metavar="LABEL=VALUE",
        help="Use only nodes with this label.",
        check=lambda texts: words.pairs(texts, "node-selector"),
    )
    exclude: str = option(
        "",
        metavar="N1,N2",
        help="Nodes to exclude, by Kubernetes node name.",
        check=lambda text: [words.dns_name(name, "exclude") for name in words.names(text)],
    )
    toleration: tuple[str, ...] = option(
        (), metavar="KEY[=VALUE][:EFFECT]", help="Also use nodes with this taint.", check=words.tolerations
    )
    prefer_same: str = option(
        "",
        metavar="LABEL",
        help="Prefer nodes in one rack or zone, by this node label.",
        check=lambda text: text and words.label_key(text, "prefer-same"),
    )
    require_same: str = option(
        "",
        metavar="LABEL",
        help="Require all nodes in one rack or zone, by this node label.",
        check=lambda text: text and words.label_key(text, "require-same"),
    )
    spread: bool = option(False, help="Put each of the run's pods on a different host.")
    priority_class: str = option(
        "",
        metavar="NAME",
        help="Priority class of the pods.",
        check=lambda text: text and words.dns_name(text, "priority-class"),
    )
    service_account: str = option(
        "",
        metavar="NAME",
        help="Service account of the pods; without one they get no token.",
        executes=True,
        check=lambda text: text and words.dns_name(text, "service-account"),
    )
    pull_secret: tuple[str, ...] = option(
        (),
        metavar="NAME",
        help="Secret for pulling the image.",
        check=lambda texts: [words.dns_name(text, "pull-secret") for text in texts],
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
        help="Variable for the workers, from an existing Secret.",
        executes=True,
        check=words.secret_refs,
        group="job",
    )
    label: tuple[str, ...] = option(
        (),
        metavar="KEY=VALUE",
        help="Label for every created object.",
        executes=True,  # labels and annotations can request injected containers
        check=lambda texts: words.pairs(texts, "label"),
    )
    annotation: tuple[str, ...] = option(
        (),
        metavar="KEY=VALUE",
        help="Annotation for every created object.",
        executes=True,
        check=lambda texts: words.pairs(texts, "annotation", values_are_labels=False),
    )
    host_network: bool = option(
        False, help="Use the hosts' network; ports are then chosen on the first node.", group="network"
    )
    network_policy: bool = option(
        True,
        help="Let only the run's own pods reach its ports, if the cluster enforces NetworkPolicies.",
        group="network",
    )
    run_as: str = option(
        "",
        metavar="UID[:GID]|image",
        help="Run as this user, or as the image's own non-root user; fits restricted namespaces.",
        executes=True,
        check=lambda text: text and words.user(text),
        group="job",
    )
    snapshot: bool = option(True, help="Send the files of the working directory.", group="files")
    workdir: str = option(
        "",
        metavar="PATH",
        help="Working directory in the image or on a volume; implies --no-snapshot.",
        executes=True,
        group="files",
    )
    output_dir: str = option(
        "",
        metavar="PATH",
        help="Directory on a --volume; workers start in one below it, the same for launches from this directory.",
        executes=True,
        check=_absolute,
        group="files",
    )
    project_dir: bool = option(
        True, help="With --output-dir: one directory for all launches from this directory, not per run.", group="files"
    )
    patch: tuple[str, ...] = option(
        (),
        metavar="FILE",
        help="YAML to merge into the objects of its kind, as kubectl patch does.",
        executes=True,
        path="whole",
        group="files",
    )
    ttl: str = option(
        "1d", metavar="DURATION", help="How long an ended run stays in the cluster.", check=duration("ttl")
    )
    start_timeout: str = option(
        "2m",
        metavar="DURATION",
        help="Fail the run if pods cannot start, or are refused, for this long.",
        check=duration("start-timeout"),
    )
    max_requeues: int = option(
        3,
        metavar="N",
        help="Maximum restarts of the run after a lost node; preemptions, evictions and drains do not count.",
        check=not_below("max-requeues"),
    )
    server_dry_run: bool = option(
        False, help="Ask the API server whether it would accept the objects; create nothing.", group="output"
    )
