"""Kubernetes' programs: from the folder that KUBEBUILDER_ASSETS names, else built once from their Go modules into a cache."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import NotAvailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KUBERNETES_VERSION = "1.36.3"
STAGING_VERSION = f"v0.{KUBERNETES_VERSION.partition('.')[2]}"
LIMIT_S = 3600
"""For one module: ten minutes on two idle cores, and others may be busy on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A Go module, and the programs that are built from it."""

    name: str
    module: str
    version: str
    programs: Mapping[str, str]
    """Package by program; an empty one is `main`."""

    main: str = ""
    """A main package of ours."""

    staging: bool = True
    """Whether Kubernetes' libraries are those of `KUBERNETES_VERSION`; then builds share what is compiled."""

    beside: Mapping[str, str] = field(default_factory=dict)
    """Other modules and their versions: builds that require the same ones have the same libraries, which are compiled once."""

    room_gb: float = 0.5
    """What building it takes of the disk, beside what other builds have left in Go's caches."""

    fork_of: str = ""
    """The module whose packages these are, by the names that they have in it."""

    ldflags: str = "-s -w"
    trees: tuple[str, ...] = ()
    """Folders of the module that are kept beside its programs: manifests."""

    @property
    def folder(self) -> Path:
        """Where its programs are once they are built."""
        return cache() / f"{self.name}-{self.version}"


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
"""CoreDNS with the plugins that a cluster's DNS needs; all of them together bring the clients of four clouds."""

VERSION = "k8s.io/component-base/version.git"
MAJOR, MINOR, _ = KUBERNETES_VERSION.split(".")
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
"""Those that Kueue itself is made for, so that all of them are compiled with the same libraries."""

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
ALL = (ETCD, KUBERNETES, COREDNS, KWOK, KUBE_ROUTER, JOBSET, TRAINER, TRAINING_OPERATOR, KUEUE)
"""The smallest one first: what is wrong with a Go toolchain shows at once."""

_failed: dict[str, NotAvailableError] = {}
"""Why a build failed: it is not tried twice in one process."""


def cache() -> Path:
    """Where what was built is kept, for all checkouts of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distlaunch-testbed"


def require(*builds: Build) -> None:
    """Have these programs, building what is not there, or say why not (`NotAvailableError`)."""
    for build in builds:
        if missing(build):
            _make(build)


def find(build: Build, program: str) -> str:
    """Where one of a module's programs is."""
    return str(folder(build) / program)


def folder(build: Build) -> Path:
    """Where a module's programs are."""
    return _assets(build) or build.folder


def missing(build: Build) -> bool:
    """Whether a module's programs have to be built."""
    return _assets(build) is None and not build.folder.is_dir()


def why_not(build: Build) -> str | None:
    """Why a module's programs are not there and cannot be; None: they are, or can be built. The same words for all of a kind."""
    if not missing(build):
        return None
    if build.name in _failed:
        return str(_failed[build.name])
    if _go() is None:
        return "no Kubernetes here: no Go toolchain to build it with, and KUBEBUILDER_ASSETS names no folder that has it whole"
    return _no_room(build)


def _no_room(build: Build) -> str | None:
    """Why there is too little disk for this build and the others that are missing; said once, as the numbers change meanwhile."""
    wanted = {each.name: each for each in (build, *ALL) if missing(each)}
    takes_gb = sum(each.room_gb for each in wanted.values())
    for folder in (cache(), go_cache()):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free_gb = shutil.disk_usage(there).free / 1e9
        if free_gb < takes_gb:
            needs = f"{takes_gb:.0f} GB are needed in {folder}, {free_gb:.1f} are free"
            reason = f"no Kubernetes here: too little disk to build it: {needs}"
            _failed.update((name, NotAvailableError(reason)) for name in wanted)
            return reason
    return None


def go_cache() -> Path:
    """Where Go keeps what it has compiled; what was not used for five days it removes itself."""
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "go-build"
    return Path(os.environ.get("GOCACHE") or own)


def _assets(build: Build) -> Path | None:
    """The folder of KUBEBUILDER_ASSETS if it has all programs of a module, so that versions are not mixed."""
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/nonexistent")
    return folder if not build.trees and all(os.access(folder / name, os.X_OK) for name in build.programs) else None


def _go() -> str | None:
    """The Go toolchain."""
    return shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin:/usr/lib/go/bin")


def _make(build: Build) -> None:
    """Build a module's programs into the cache, unless another process does it first."""
    reason = why_not(build)
    if reason:
        raise NotAvailableError(reason)
    go = _go()
    assert go
    cache().mkdir(parents=True, exist_ok=True)
    with _locked(build):
        if not missing(build):
            return
        print(f"building {build.name} {build.version} once, into {build.folder}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=f".{build.name}-", dir=cache()) as scratch:
            try:
                _go_build(build, go, Path(scratch))
            except NotAvailableError as error:
                _failed[build.name] = error
                raise
            (Path(scratch) / "bin").rename(build.folder)


@contextmanager
def _locked(build: Build) -> Iterator[None]:
    """Hold a module's lock: two test runs do not build the same at once."""
    deadline = time.monotonic() + LIMIT_S
    with (cache() / f"{build.name}.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NotAvailableError(f"waited {LIMIT_S} s for another process to build {build.name}") from None
                time.sleep(0.5)
        yield


def _go_build(build: Build, go: str, folder: Path) -> None:
    """Write a small module that requires this one, and build its programs into `bin`."""
    (folder / "bin").mkdir()
    (folder / "go.mod").write_text("module distlaunch.test/build\n\ngo 1.24\n")
    told = json.loads(_run(build, (go, "mod", "download", "-json", f"{build.module}@{build.version}"), folder))
    replaced = _staging(build, go, folder) if build.staging else ()
    required = {**build.beside, build.fork_of or build.module: build.version}
    lines = [f"require {module} {version}" for module, version in required.items()]
    lines += [f"replace {build.fork_of} => {build.module} {build.version}"] if build.fork_of else []
    lines += [f"replace {name} => {name} {STAGING_VERSION}" for name in replaced]
    language = re.findall(r"^go (\S+)", Path(told["GoMod"]).read_text(), re.MULTILINE)
    (folder / "go.mod").write_text("\n".join(("module distlaunch.test/build", f"go {(*language, '1.24')[0]}", *lines, "")))
    common = ("nice", "-n10", go, "build", "-p=2", "-trimpath", f"-ldflags={build.ldflags}")
    packages = sorted(package for package in build.programs.values() if package)
    if build.main:
        (folder / "main.go").write_text(build.main)
        (name,) = build.programs
        _run(build, (*common, f"-o=bin/{name}", "."), folder)
    else:
        _run(build, (*common, "-o=bin/", *packages), folder)
    for name, package in build.programs.items():  # go calls a program like the last part of its package
        made = folder / "bin" / re.sub(r"/v\d+$", "", package or name).rpartition("/")[2]
        made.rename(folder / "bin" / name)
    for tree in build.trees:
        shutil.copytree(Path(told["Dir"]) / tree, folder / "bin" / tree, copy_function=shutil.copyfile)


def _staging(build: Build, go: str, folder: Path) -> list[str]:
    """The libraries that live in Kubernetes' own repository, which its module names by their place in it."""
    told = json.loads(_run(build, (go, "mod", "download", "-json", f"{KUBERNETES.module}@{KUBERNETES.version}"), folder))
    return re.findall(r"^\s*(\S+) => \./staging/src/\S+", Path(told["GoMod"]).read_text(), re.MULTILINE)


def _run(build: Build, argv: tuple[str, ...], folder: Path) -> str:
    """Run one step; what it says is the reason when it fails."""
    env = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false", "CGO_ENABLED": "0", "GOWORK": "off"}
    try:
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotAvailableError(f"no {build.name} here: building it did not end within {LIMIT_S} s") from None
    if done.returncode:
        raise NotAvailableError(f"no {build.name} here: it does not build: {done.stderr.strip()[-600:]}")
    return done.stdout
