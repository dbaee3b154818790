"""The Go modules, with versions, that Kubernetes' programs are built from."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

KUBERNETES_VERSION = "1.36.3"
STAGING_VERSION = f"v0.{KUBERNETES_VERSION.partition('.')[2]}"
MADE_OF = ".made-of"
"""The file beside the programs that says what they are built from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A Go module, and the programs that are built from it."""

    name: str
    module: str
    version: str
    programs: Mapping[str, str]
    """Package by program; an empty one stands for `main`."""

    main: str = ""
    """Source of our own main package."""

    staging: bool = True
    """Whether Kubernetes' libraries are those of `KUBERNETES_VERSION`, so that builds share compiled code."""

    beside: Mapping[str, str] = field(default_factory=dict)
    """Other modules and their versions: builds that require the same ones share libraries, which are compiled once."""

    room_gb: float = 0.5
    """Disk space for the build, besides what other builds have left in Go's caches."""

    fork_of: str = ""
    """The module that this is a fork of; packages keep their names in that one."""

    ldflags: str = "-s -w"
    trees: tuple[str, ...] = ()
    """Directories of the module to keep with its programs: manifests."""

    @property
    def made_of(self) -> str:
        """A digest of all that its programs are built from; a module's version names its sources."""
        staging = STAGING_VERSION if self.staging else ""
        parts = (self.module, self.version, self.fork_of, self.main, staging, self.ldflags, self.trees)
        whole = json.dumps([*parts, *(sorted(each.items()) for each in (self.programs, self.beside))])
        return hashlib.sha256(whole.encode()).hexdigest()

    @property
    def directory(self) -> Path:
        """The directory of its programs once they are built: with a digest in its name, if one is there of others."""
        usual = cache() / f"{self.name}-{self.version}"
        try:
            told = (usual / MADE_OF).read_text(encoding="utf-8")
        except OSError:  # it is not there yet, or from before this was noted: nothing tells of which `main` it is
            told = "" if self.main and usual.is_dir() else self.made_of
        return usual if told == self.made_of else usual.with_name(f"{usual.name}-{self.made_of[:12]}")


COREDNS_MAIN = """package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	dnsserver.Directives = []string{"bind", "errors", "hosts", "kubernetes"}
	coremain.Run()
}
"""
"""CoreDNS with the plugins that a cluster's DNS needs; all plugins would bring the clients of four clouds."""

MAJOR, MINOR, _ = KUBERNETES_VERSION.split(".")
VERSION = "k8s.io/component-base/version.git"
KUBERNETES = Build(
    name="kubernetes",
    module="k8s.io/kubernetes",
    version=f"v{KUBERNETES_VERSION}",
    programs={
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
    },
    room_gb=4,
    ldflags=f"-s -w -X {VERSION}Version=v{KUBERNETES_VERSION} -X {VERSION}Major={MAJOR} -X {VERSION}Minor={MINOR}",
)
ETCD = Build(
    name="etcd",
    module="go.etcd.io/etcd/server/v3",
    version="v3.6.16",
    programs={"etcd": "go.etcd.io/etcd/server/v3"},
    staging=False,
)
COREDNS = Build(
    name="coredns", module="github.com/coredns/coredns", version="v1.14.7", programs={"coredns": ""}, main=COREDNS_MAIN
)
KWOK = Build(
    name="kwok",
    module="sigs.k8s.io/kwok",
    version="v0.8.0",
    programs={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    trees=("kustomize",),
)
CONTROLLERS = {
    "sigs.k8s.io/jobset": "v0.10.1",
    "sigs.k8s.io/kueue": "v0.14.0",
    "github.com/kubeflow/trainer/v2": "v2.0.1",
    "github.com/kubeflow/training-operator": "v1.9.3",
}
"""The versions that Kueue is made for, so that all of them are compiled with the same libraries."""

JOBSET = Build(
    name="jobset",
    module="sigs.k8s.io/jobset",
    version=CONTROLLERS["sigs.k8s.io/jobset"],
    beside=CONTROLLERS,
    room_gb=1.5,
    programs={"jobset": "sigs.k8s.io/jobset"},
    staging=False,
    trees=("config",),
)
TRAINER = Build(
    name="trainer",
    module="github.com/kubeflow/trainer/v2",
    version=CONTROLLERS["github.com/kubeflow/trainer/v2"],
    beside=CONTROLLERS,
    programs={"trainer-controller-manager": "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"},
    staging=False,
    trees=("manifests",),
)
TRAINING_OPERATOR = Build(
    name="training-operator",
    module="github.com/kubeflow/training-operator",
    version=CONTROLLERS["github.com/kubeflow/training-operator"],
    beside=CONTROLLERS,
    programs={"training-operator": "github.com/kubeflow/training-operator/cmd/training-operator.v1"},
    staging=False,
    trees=("manifests",),
)
MPI_OPERATOR = Build(
    name="mpi-operator",
    module="github.com/kubeflow/mpi-operator",
    version="v0.7.0",
    beside=CONTROLLERS,
    programs={"mpi-operator": "github.com/kubeflow/mpi-operator/cmd/mpi-operator"},
    staging=False,
    trees=("manifests",),
)
KUEUE = Build(
    name="kueue",
    module="sigs.k8s.io/kueue",
    version=CONTROLLERS["sigs.k8s.io/kueue"],
    beside=CONTROLLERS,
    programs={"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
    staging=False,
    trees=("config",),
)
KUBE_ROUTER = Build(
    name="kube-router",
    module="github.com/k3s-io/kube-router/v2",
    version="v2.2.1",
    fork_of="github.com/cloudnativelabs/kube-router/v2",
    beside={KUBERNETES.module: KUBERNETES.version},
    room_gb=0.2,
    programs={"kube-policies": ""},
    main=Path(__file__).with_name("kube_policies.go").read_text(encoding="utf-8"),
)
ALL = (ETCD, KUBERNETES, COREDNS, KWOK, KUBE_ROUTER, JOBSET, TRAINER, TRAINING_OPERATOR, MPI_OPERATOR, KUEUE)
"""The smallest one first, so that a broken Go toolchain shows early."""


def cache() -> Path:
    """The cache of built programs, for all checkouts of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distlaunch-testbed"
