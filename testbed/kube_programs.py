"""Kubernetes' programs: from the directory in KUBEBUILDER_ASSETS, else built once from Go modules into a cache."""

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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import NotAvailableError
from testbed.kube_builds import ALL, KUBERNETES, MADE_OF, STAGING_VERSION, Build, cache

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 3600
"""Limit for one module: it takes ten minutes on two idle cores, and they may be busy."""


_failed: dict[str, NotAvailableError] = {}
"""Why a build failed; it is not tried twice in one process."""


def require(*builds: Build) -> None:
    """Build these programs if they are missing, or raise `NotAvailableError`."""
    for build in builds:
        if missing(build):
            _make(build)
        elif _assets(build) is None and not (build.directory / MADE_OF).exists():
            with suppress(OSError):  # from before this was noted: the module's version names their sources
                (build.directory / MADE_OF).write_text(build.made_of, encoding="utf-8")


def find(build: Build, program: str) -> str:
    """The path of one of a module's programs."""
    return str(directory(build) / program)


def directory(build: Build) -> Path:
    """The directory of a module's programs."""
    return _assets(build) or build.directory


def missing(build: Build) -> bool:
    """Whether a module's programs have to be built."""
    return _assets(build) is None and not build.directory.is_dir()


def why_not(build: Build) -> str | None:
    """Why a module's programs cannot be built; None if they exist or can be. The text is the same for all modules."""
    if not missing(build):
        return None
    if build.name in _failed:
        return str(_failed[build.name])
    if _go() is None:
        return (
            "no Kubernetes here: no Go toolchain to build it with, "
            "and KUBEBUILDER_ASSETS names no directory that has it whole"
        )
    return _no_room(build)


def _no_room(build: Build) -> str | None:
    """Why the disk has no room for this and all other missing builds; computed once, since the numbers change."""
    wanted = {each.name: each for each in (build, *ALL) if missing(each)}
    takes_gb = sum(each.room_gb for each in wanted.values())
    for directory in (cache(), go_cache()):
        there = next(path for path in (directory, *directory.parents) if path.exists())
        free_gb = shutil.disk_usage(there).free / 1e9
        if free_gb < takes_gb:
            needs = f"{takes_gb:.0f} GB are needed in {directory}, {free_gb:.1f} are free"
            reason = f"no Kubernetes here: too little disk to build it: {needs}"
            _failed.update((name, NotAvailableError(reason)) for name in wanted)
            return reason
    return None


def go_cache() -> Path:
    """Go's build cache, from which Go itself removes what was not used for five days."""
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "go-build"
    return Path(os.environ.get("GOCACHE") or own)


def _assets(build: Build) -> Path | None:
    """The directory of KUBEBUILDER_ASSETS if it has all programs of a module, so that versions are not mixed."""
    directory = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/nonexistent")
    return (
        directory if not build.trees and all(os.access(directory / name, os.X_OK) for name in build.programs) else None
    )


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
        for left in cache().glob(f".{build.name}-*"):  # its builder was killed
            shutil.rmtree(left, ignore_errors=True)
        print(f"building {build.name} {build.version} once, into {build.directory}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=f".{build.name}-", dir=cache()) as scratch:
            try:
                _go_build(build, go, Path(scratch))
            except NotAvailableError as error:
                _failed[build.name] = error
                raise
            (Path(scratch) / "bin" / MADE_OF).write_text(build.made_of, encoding="utf-8")
            (Path(scratch) / "bin").rename(build.directory)


@contextmanager
def _locked(build: Build) -> Iterator[None]:
    """Hold a module's lock, so that two test runs do not build it at once."""
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


def _go_build(build: Build, go: str, directory: Path) -> None:
    """Write a small module that requires this one, and build its programs into `bin`."""
    (directory / "bin").mkdir()
    (directory / "go.mod").write_text("module distlaunch.test/build\n\ngo 1.24\n")
    told = json.loads(_run(build, (go, "mod", "download", "-json", f"{build.module}@{build.version}"), directory))
    replaced = _staging(build, go, directory) if build.staging else ()
    required = {**build.beside, build.fork_of or build.module: build.version}
    lines = [f"require {module} {version}" for module, version in required.items()]
    lines += [f"replace {build.fork_of} => {build.module} {build.version}"] if build.fork_of else []
    lines += [f"replace {name} => {name} {STAGING_VERSION}" for name in replaced]
    language = re.findall(r"^go (\S+)", Path(told["GoMod"]).read_text(), re.MULTILINE)
    (directory / "go.mod").write_text(
        "\n".join(("module distlaunch.test/build", f"go {(*language, '1.24')[0]}", *lines, ""))
    )
    common = ("nice", "-n10", go, "build", "-p=2", "-trimpath", f"-ldflags={build.ldflags}")
    packages = sorted(package for package in build.programs.values() if package)
    if build.main:
        (directory / "main.go").write_text(build.main)
        (name,) = build.programs
        _run(build, (*common, f"-o=bin/{name}", "."), directory)
    else:
        _run(build, (*common, "-o=bin/", *packages), directory)
    for name, package in build.programs.items():  # go names a program after the last part of its package
        made = directory / "bin" / re.sub(r"/v\d+$", "", package or name).rpartition("/")[2]
        made.rename(directory / "bin" / name)
    for tree in build.trees:
        shutil.copytree(Path(told["Dir"]) / tree, directory / "bin" / tree, copy_function=shutil.copyfile)


def _staging(build: Build, go: str, directory: Path) -> list[str]:
    """The libraries in Kubernetes' own repository, which its module names by path."""
    told = json.loads(
        _run(build, (go, "mod", "download", "-json", f"{KUBERNETES.module}@{KUBERNETES.version}"), directory)
    )
    return re.findall(r"^\s*(\S+) => \./staging/src/\S+", Path(told["GoMod"]).read_text(), re.MULTILINE)


def _run(build: Build, argv: tuple[str, ...], directory: Path) -> str:
    """Run one step; its output is the reason if it fails."""
    env = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false", "CGO_ENABLED": "0", "GOWORK": "off"}
    try:
        done = subprocess.run(
            argv, cwd=directory, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError(f"no {build.name} here: building it did not end within {LIMIT_S} s") from None
    if done.returncode:
        raise NotAvailableError(f"no {build.name} here: it does not build: {_reason(done)[-600:]}")
    return done.stdout


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Why a step failed: with -json, Go reports that on stdout only."""
    with suppress(ValueError, KeyError, TypeError):
        return done.stderr.strip() or str(json.loads(done.stdout)["Error"])
    return done.stdout.strip()
