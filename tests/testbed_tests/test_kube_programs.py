"""The programs of Kubernetes come from a directory or from one build, or the reason why there are none is reported."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import NotAvailableError, kube_builds, kube_programs
from testbed.kube_builds import ETCD, JOBSET, KUBERNETES
from tests.testbed_tests.test_leftovers import ROOT

BUILD = """
from testbed import kube_programs
from testbed.kube_builds import Build
main = 'package main\\nimport _ "golang.org/x/sync/errgroup"\\nfunc main() { println("it runs") }\\n'
where = {"module": "golang.org/x/sync", "version": "v0.19.0"}
small = Build(name="small", programs={"small": ""}, main=main, staging=False, **where)
kube_programs.require(small)
print(kube_programs.find(small, "small"))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; Go keeps its own cache of what it has compiled."""
    monkeypatch.setenv("GOCACHE", str(kube_programs.go_cache()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path / "cache"


def test_a_directory_is_used_only_for_sets_of_programs_that_it_has_completely(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("etcd", "kube-apiserver", "kubectl"):  # as setup-envtest makes it
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))

    assert kube_programs.find(ETCD, "etcd") == str(tmp_path / "etcd")
    assert not kube_programs.missing(ETCD)
    assert kube_programs.missing(KUBERNETES)  # its controller manager would be of another version
    assert kube_programs.missing(JOBSET)  # its manifests belong to it


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has failed yet."""
    monkeypatch.setattr(kube_programs, "_failed", {})


def test_without_go_the_error_names_what_is_missing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, forgetful: None
) -> None:
    monkeypatch.setattr(kube_programs, "_go", lambda: None)

    with pytest.raises(
        NotAvailableError, match="no Kubernetes here: no Go toolchain to build it with, and KUBEBUILDER_ASSETS"
    ):
        kube_programs.require(KUBERNETES)
    assert len({kube_programs.why_not(build) for build in kube_builds.ALL}) == 1, (
        "the same words, so that it is reported once"
    )


def test_without_room_nothing_is_built_and_that_is_reported_once(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, forgetful: None
) -> None:
    monkeypatch.setattr(kube_programs, "_go", lambda: "/nonexistent/go")
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)

    with pytest.raises(
        NotAvailableError, match=rf"too little disk to build it: \d GB are needed in {small_disk}/\S+, 0.0 are free"
    ):
        kube_programs.require(KUBERNETES)
    (small_disk / "grows").write_bytes(b"x" * 1_000_000)
    assert len({kube_programs.why_not(build) for build in kube_builds.ALL}) == 1
    assert list(small_disk.iterdir()) == [small_disk / "grows"]


def test_tests_without_kubernetes_skip_with_one_reason(small_disk: Path) -> None:
    argv = (
        sys.executable,
        "-m",
        "pytest",
        "-n0",
        "-q",
        f"-ocache_dir={small_disk.parent}/cache",
        "-rs",
        "tests/testbed_tests/test_kube.py",
    )
    env = {key: value for key, value in os.environ.items() if key not in ("KUBEBUILDER_ASSETS", "CI")}

    done = subprocess.run(
        argv, cwd=ROOT, env={**env, "XDG_CACHE_HOME": str(small_disk)}, capture_output=True, text=True, timeout=150
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^(\d+) skipped", done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.count("building ") == 0
    reasons = set(re.findall(r"^SKIPPED .*?: (.*)$", done.stdout, re.MULTILINE))
    assert len(reasons) == 1, done.stdout
    assert "no Kubernetes here: too little disk" in reasons.pop()


SMALL = kube_builds.Build(name="small", module="example.test/small", version="v0.1.0", programs={"small": ""})


def stub(path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """In place of Go."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(kube_programs, "_go", lambda: str(path))
    monkeypatch.setattr(kube_builds, "ALL", ())
    monkeypatch.setattr(kube_programs, "ALL", ())


def test_a_module_that_cannot_be_downloaded_is_reported_with_its_reason(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: None
) -> None:
    stub(tmp_path / "go", monkeypatch, """echo '{"Error": "module lookup disabled by GOPROXY=off"}'; exit 1""")

    with pytest.raises(NotAvailableError, match="it does not build: module lookup disabled by GOPROXY=off"):
        kube_programs.require(SMALL)


def test_what_a_killed_build_has_left_is_removed_by_the_next(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: None
) -> None:
    (cache / "distlaunch-testbed/.small-abc/bin").mkdir(parents=True)
    (cache / "distlaunch-testbed/.smaller-abc").mkdir()
    stub(tmp_path / "go", monkeypatch, "exit 1")

    with pytest.raises(NotAvailableError):
        kube_programs.require(SMALL)

    assert {path.name for path in (cache / "distlaunch-testbed").iterdir()} == {"small.lock", ".smaller-abc"}


GO = """case "$1" in
mod) echo "{\\"GoMod\\": \\"$PWD/go.mod\\"}" ;;
build) cp main.go bin/small; echo built >> "$(dirname "$0")/built" ;;
esac"""


def test_programs_are_built_again_when_their_sources_here_change(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: None
) -> None:
    stub(tmp_path / "go", monkeypatch, GO)
    one, two = (dataclasses.replace(SMALL, main=main, staging=False) for main in ("one", "two"))

    for build in (one, two, one, two):
        kube_programs.require(build)
        assert Path(kube_programs.find(build, "small")).read_text() == build.main
    assert (tmp_path / "built").read_text() == "built\n" * 2, "both stay"


def test_programs_from_before_their_sources_were_noted_count_if_a_version_names_these(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: None
) -> None:
    stub(tmp_path / "go", monkeypatch, GO.replace("bin/small", "bin/small || touch bin/small"))
    theirs = dataclasses.replace(SMALL, programs={"small": "example.test/small"}, staging=False)
    edited, ours = (dataclasses.replace(SMALL, name="ours", main=main, staging=False) for main in ("edited", "now"))
    for build in (theirs, edited):
        kube_programs.require(build)
        (build.directory / kube_builds.MADE_OF).unlink()

    for build in (theirs, theirs, ours, ours):
        kube_programs.require(build)

    assert (tmp_path / "built").read_text() == "built\n" * 3, "only what is ours, and once"
    assert Path(kube_programs.find(ours, "small")).read_text() == "now"


@pytest.mark.k8s
def test_two_processes_at_once_build_once(cache: Path) -> None:
    if kube_programs.why_not(KUBERNETES):
        pytest.skip(str(kube_programs.why_not(KUBERNETES)))
    argv, pipe = (sys.executable, "-c", BUILD), subprocess.PIPE
    both = [subprocess.Popen(argv, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=250) for process in both]

    assert [process.returncode for process in both] == [0, 0], outputs
    assert sorted(stderr.count("building small") for _, stderr in outputs) == [0, 1]
    assert {stdout for stdout, _ in outputs} == {f"{cache}/distlaunch-testbed/small-v0.19.0/small\n"}
    program = next(iter({stdout for stdout, _ in outputs})).strip()
    assert "it runs" in subprocess.run((program,), capture_output=True, text=True).stderr
