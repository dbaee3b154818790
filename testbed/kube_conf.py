"""Flags and files of Kubernetes' programs, made from the options and the hosts."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONTEXT = "testbed"
"""The name of each kubeconfig's only context."""

PORT = 6443
DOMAIN = "cluster.local"
SERVICES = "10.96.0.0/16"
"""Cluster addresses of Services, which nothing answers: there is no kube-proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeOptions:
    """Options of a testbed's Kubernetes."""

    nodes: bool = True
    """Whether the hosts are real nodes, with kubelet and containerd; otherwise there is only a control plane."""

    gpus_per_host: int = 0
    """Number of `nvidia.com/gpu` that each node reports."""

    controllers: tuple[str, ...] = ()
    """Controllers of other kinds of jobs: `jobset`, `trainer`, `training-operator`, `mpi-operator`, `kueue`."""

    simulated_nodes: int = 0
    """Number of nodes that only simulate pods: `sim-0`, `sim-1`, ... with 8 `nvidia.com/gpu` each. Next to real nodes,
    they are tainted `simulated:NoSchedule`. With thousands, a `lost_after_s` of minutes saves much work."""

    lost_after_s: int = 15
    """Seconds of silence after which a node is NotReady (Kubernetes: 50)."""

    evicted_after_s: int = 300
    """Seconds after which the pods of such a node are deleted, unless their own tolerations differ."""

    flags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Additional flags by program: `{"kube-apiserver": {"event-ttl": "10s"}}`."""


@dataclass(frozen=True, slots=True)
class KubeFiles:
    """Paths of a cluster's files."""

    directory: Path

    @property
    def logs(self) -> Path:
        """etcd.log, kube-apiserver.log, ..., kubelet-n1.log, containerd-n1.log."""
        return self.directory / "logs"

    @property
    def pki(self) -> Path:
        """The API server's certificate, which it makes itself, and the key of service accounts."""
        return self.directory / "pki"

    @property
    def ca(self) -> Path:
        """The certificate with which clients verify the API server."""
        return self.pki / "apiserver.crt"

    @property
    def kubelet_client(self) -> tuple[Path, Path]:
        """The certificate by which kubelets know the API server, which alone may use them, and its key."""
        return self.pki / "kubelet-client.crt", self.pki / "kubelet-client.key"

    @property
    def images(self) -> Path:
        """The images for each node's containerd, which has no registry."""
        return self.directory / "images.tar"

    @property
    def tokens(self) -> Path:
        """The static users and their tokens."""
        return self.directory / "tokens.csv"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.user("admin")

    def user(self, name: str) -> Path:
        """A user's kubeconfig."""
        return self.directory / f"{name}.kubeconfig"


def flags(values: Mapping[str, str]) -> tuple[str, ...]:
    """Flags as command-line arguments."""
    return tuple(f"--{name}={value}" for name, value in values.items())


def etcd(directory: Path) -> dict[str, str]:
    """Flags of etcd: fast, without durability."""
    return {"data-dir": str(directory / "etcd"), "unsafe-no-fsync": "true", "log-level": "warn"}


def apiserver(options: KubeOptions, files: KubeFiles, address: str) -> dict[str, str]:
    """Flags of the API server: real authentication and authorization, and its own certificate."""
    return {
        "etcd-servers": "http://127.0.0.1:2379",
        "bind-address": address,
        "advertise-address": address,
        "secure-port": str(PORT),
        "cert-dir": str(files.pki),
        "service-cluster-ip-range": SERVICES,
        "service-account-issuer": f"https://kubernetes.default.svc.{DOMAIN}",
        "service-account-signing-key-file": str(files.pki / "accounts.key"),
        "service-account-key-file": str(files.pki / "accounts.key"),
        "token-auth-file": str(files.tokens),
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        # A node is Ready at once, not only when a controller has removed its taint, which saves a thousand writes.
        **({} if options.nodes else {"disable-admission-plugins": "TaintNodesByCondition"}),
        "allow-privileged": "true",
        "kubelet-preferred-address-types": "InternalIP",
        "kubelet-client-certificate": str(files.kubelet_client[0]),
        "kubelet-client-key": str(files.kubelet_client[1]),
        "default-not-ready-toleration-seconds": str(options.evicted_after_s),
        "default-unreachable-toleration-seconds": str(options.evicted_after_s),
        "max-requests-inflight": "2000",
        "max-mutating-requests-inflight": "1000",
        **options.flags.get("kube-apiserver", {}),
    }


def controller_manager(options: KubeOptions, files: KubeFiles) -> dict[str, str]:
    """Flags of the controller manager: all controllers, and a higher request rate, for many simulated nodes."""
    return {
        "kubeconfig": str(files.user("kube-controller-manager")),
        "service-account-private-key-file": str(files.pki / "accounts.key"),
        "root-ca-file": str(files.ca),
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
        "node-monitor-period": "1s",
        "node-monitor-grace-period": f"{options.lost_after_s}s",
        "kube-api-qps": "500",
        "kube-api-burst": "1000",
        **options.flags.get("kube-controller-manager", {}),
    }


def scheduler(options: KubeOptions, files: KubeFiles) -> dict[str, str]:
    """Flags of the default scheduler."""
    return {
        "kubeconfig": str(files.user("kube-scheduler")),
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
        "kube-api-qps": "500",
        "kube-api-burst": "1000",
        **options.flags.get("kube-scheduler", {}),
    }


def kubeconfig(server: str, ca: Path, user: str, token: str, namespace: str = "default") -> str:
    """One user's kubeconfig; JSON is YAML."""
    authority = base64.b64encode(ca.read_bytes()).decode()
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CONTEXT, "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user, "namespace": namespace}}],
            "current-context": CONTEXT,
        },
        indent=1,
    )
