"""Nothing is left of Kubernetes, whose containers leave their host's namespaces, and whose kubelets set sysctls."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import fixtures, kube_cgroups, kube_node_conf, processes, registry, wait_until
from tests.testbed_tests.test_leftovers import ROOT, Census, Command

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.k8s

EXPECTED = ("kube-apiserver", "kubelet", "containerd-shim", "coredns", "sleep 1000")
RUN = "run one --image=distlaunch.test/torch:1 --restart=Never --command -- sleep 1000"


@pytest.fixture
def kernel() -> dict[str, str]:
    """The kernel parameters that kubelets would set, as they are now."""
    paths = (Path("/proc/sys", name) for name in kube_node_conf.SYSCTLS)
    return {str(path): path.read_text() for path in paths if path.exists()}


@pytest.fixture
def owners(kernel: dict[str, str], tmp_path: Path) -> Iterator[dict[str, Command]]:
    """`up --kubernetes` in two processes at once."""
    with fixtures.make(1):  # or this test skips
        pass
    with ThreadPoolExecutor() as pool:
        begun = {
            name: pool.submit(Command.start, tmp_path / name, "--hosts", "1", "--kubernetes", "--gpus", "4")
            for name in ("killed", "Ctrl-C")
        }
    try:
        yield {name: future.result() for name, future in begun.items()}
    finally:
        for future in begun.values():
            if future.exception() is None:
                future.result().process.kill()
                future.result().process.wait(timeout=20)
        with registry.locked():
            registry.clean()


class Traces:
    """All that one of them has on this host."""

    def __init__(self, owner: Command) -> None:
        record = owner.record()
        self.groups = record.cgroup("*")
        env = {**os.environ, "KUBECONFIG": owner.line("export KUBECONFIG=").partition("=")[2]}
        kubectl = next(word for word in owner.line("/").split() if word.endswith("/kubectl"))
        processes.run((kubectl, *RUN.split()), timeout_s=60, env=env, check=True)
        running = (kubectl, "wait", "--for=jsonpath={.status.phase}=Running", "pod/one", "--timeout=90s")
        processes.run(running, timeout_s=120, env=env, check=True)
        self.census, self.containers = Census.of(record), kube_cgroups.processes(self.groups)

    def commands(self) -> str:
        """The command lines that run."""
        return " ".join(process.command() for process in (*self.census.processes, *self.containers) if process.alive())

    def left(self) -> list[str]:
        """What is still there."""
        left = self.census.left() + [process.command() for process in self.containers if process.alive()]
        left += [str(path) for root in kube_cgroups.roots() for path in root.glob(self.groups)]
        return left + [str(self.census.directory)] * self.census.directory.exists()


def settings(kernel: dict[str, str]) -> dict[str, str]:
    """The same parameters as they are now."""
    return {path: Path(path).read_text() for path in kernel}


def test_nothing_is_left_of_one_that_is_killed_or_ended_and_the_other_is_not_affected(
    kernel: dict[str, str], owners: dict[str, Command]
) -> None:
    killed, ended = owners["killed"], owners["Ctrl-C"]
    of_killed, of_ended = Traces(killed), Traces(ended)
    for traces in (of_killed, of_ended):
        assert all(word in traces.commands() for word in EXPECTED)
    assert settings(kernel) == kernel

    killed.process.kill()
    killed.process.wait(timeout=20)
    processes.run((sys.executable, "-m", "testbed", "clean"), timeout_s=120, cwd=str(ROOT), check=True)

    # Another process may be removing it already.
    wait_until("nothing of it to be left", lambda: not of_killed.left(), progress=of_killed.left)
    assert all(word in of_ended.commands() for word in EXPECTED)
    os.killpg(ended.process.pid, signal.SIGINT)
    assert ended.process.wait(timeout=120) == 0
    assert of_ended.left() == []
    assert settings(kernel) == kernel
