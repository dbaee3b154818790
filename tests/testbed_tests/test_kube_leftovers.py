"""Nothing is left of Kubernetes either: containers leave their host's namespaces, and kubelets change the machine's settings."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.testbed import fixtures, kube_cgroups, kube_node_conf, processes, registry, wait_until
from tests.testbed_tests.test_leftovers import ROOT, Census, Command

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.k8s

RUN = "run one --image=distlaunch.test/torch:1 --restart=Never --command -- sleep 1000"


@pytest.fixture
def machine() -> dict[str, str]:
    """What kubelets would set for the whole machine, as it is now."""
    paths = (Path("/proc/sys", name) for name in kube_node_conf.SYSCTLS)
    return {str(path): path.read_text() for path in paths if path.exists()}


@pytest.fixture
def owner(machine: dict[str, str], tmp_path: Path) -> Iterator[Command]:
    """`up --kubernetes` in a process of its own."""
    with fixtures.make(1):  # or this test skips
        pass
    started = Command.start(tmp_path / "log", "--kubernetes", "--gpus", "4")
    yield started
    started.process.kill()
    started.process.wait(timeout=20)
    with registry.locked():
        registry.clean()


@pytest.mark.parametrize("end", ["Ctrl-C", "killed"])
def test_nothing_is_left(machine: dict[str, str], owner: Command, end: str) -> None:
    record = owner.record()
    groups = record.cgroup("*")
    env = {**os.environ, "KUBECONFIG": owner.said("export KUBECONFIG=").partition("=")[2]}
    kubectl = next(word for word in owner.said("/").split() if word.endswith("/kubectl"))
    processes.run((kubectl, *RUN.split()), timeout_s=60, env=env, check=True)
    running = (kubectl, "wait", "--for=jsonpath={.status.phase}=Running", "pod/one", "--timeout=60s")
    processes.run(running, timeout_s=90, env=env, check=True)
    before, containers = Census.of(record), kube_cgroups.processes(groups)
    commands = " ".join(process.command() for process in (*before.processes, *containers))
    assert all(word in commands for word in ("kube-apiserver", "kubelet", "containerd-shim", "coredns", "sleep 1000"))
    assert {path: Path(path).read_text() for path in machine} == machine
    if end == "Ctrl-C":
        os.killpg(owner.process.pid, signal.SIGINT)
        assert owner.process.wait(timeout=60) == 0
    else:
        owner.process.kill()
        owner.process.wait(timeout=20)
        processes.run((sys.executable, "-m", "tests.testbed", "clean"), timeout_s=120, cwd=str(ROOT), check=True)

    wait_until("nothing to be left", lambda: not before.left(), limit_s=20)  # another session may have been first
    assert [process.command() for process in containers if process.alive()] == []
    assert [path for root in kube_cgroups.roots() for path in root.glob(groups)] == []
    assert not before.folder.exists()
    assert {path: Path(path).read_text() for path in machine} == machine
