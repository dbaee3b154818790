"""What cannot be started is one error, which names what is wrong, and the host that lacks something."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.catalog import BY_NAME
from tests.frameworks.environment import ready
from tests.frameworks.place import new_mark, nothing_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from testbed import Host, SshHosts
    from tests.frameworks.place import Place

pytestmark = pytest.mark.timeout(600)
NO_MPIRUN = "no mpirun, neither on PATH nor beside "


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--contract=jx",), ("contract 'jx' is not known", "did you mean jax?")),
        (("--contract=openmpi",), ("contract 'openmpi' is not known", "mpi")),
        (("--contract=mpi", "--ps=1"), ("ps 1: only --contract tensorflow has parameter servers",)),
        (("--contract=tensorflow", "--ps=3"), ("ps 3: ", "5 tasks", "the run has 4")),
        (("--contract=tensorflow", "--ps=-1"), ("ps",)),
        (("--contract=jax", "--nodes=1:2"), ("nodes 1:2: only --contract torchrun can be elastic",)),
    ],
    ids=" ".join,
)
def test_options_that_do_not_fit(local: Place, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = local.run(BY_NAME["env-python"], *options)

    assert done.exit_code == 2, done.stderr
    assert done.stderr.count("error[") == 1
    assert [word for word in words if word not in done.stderr] == [], done.stderr
    assert not local.cli.runs.exists()


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
@pytest.mark.torch
def test_a_framework_that_this_host_does_not_have(local: Place, framework: str) -> None:
    done = local.run(BY_NAME["env-python"], f"--contract={framework}")

    assert done.exit_code == 3, done.stderr
    assert f"no {framework} here: looked in " in done.stderr


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
@pytest.mark.torch
@pytest.mark.ssh
def test_a_framework_that_a_host_does_not_have(over_ssh: Place, ssh_hosts: SshHosts, framework: str) -> None:
    done = over_ssh.run(BY_NAME["env-python"], f"--contract={framework}")

    assert done.exit_code in {1, 3}, done.stderr  # seen by an agent, or before any is started
    assert f"no {framework}" in done.stderr
    assert ssh_hosts.hosts[0].name in done.stderr


def test_no_mpirun_here(local: Place) -> None:
    done = local.run(BY_NAME["open-mpi-4"], "--env=PATH=/nowhere")

    assert done.exit_code != 0
    assert NO_MPIRUN in done.stderr


@pytest.mark.parametrize("packages", ["debian", "openmpi"])
def test_an_mpirun_that_does_not_read_the_hosts_and_starts_all_ranks_on_one(local: Place, packages: str) -> None:
    """As Open MPI 5 does with the variables of Open MPI 4: it starts on one host, and reports nothing."""
    mark, prefix = new_mark("deaf"), ready(packages).prefix
    tools = local.work / "tools"
    tools.mkdir()
    real = "/usr/bin/mpirun" if packages == "debian" else prefix / "bin/mpirun"
    hosts = "env -u OMPI_MCA_orte_default_hostfile -u PRTE_MCA_prte_default_hostfile "
    (tools / "mpirun").write_text(f'#!/bin/sh\nexec {hosts}{real} "$@"\n', encoding="utf-8")
    (tools / "mpirun").chmod(0o755)
    (local.work / "with_time.py").write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    path = f"--env=PATH={tools}:{os.environ['PATH']}"

    with nothing_left(mark):
        done = local.run(BY_NAME["open-mpi-4"], path, f"--name={mark}", "--grace=3s", script="with_time.py")

    assert done.exit_code != 0, done.stderr
    assert "mpirun has started too many ranks on this node" in done.stderr, done.stderr
    assert "node 0" in done.stderr


def test_a_rank_with_the_library_of_another_mpi(local: Place) -> None:
    framework, mark = BY_NAME["open-mpi-4"], new_mark("strange")
    library = ready("mpich").prefix / "lib/libmpi.so.12"
    text = "import mpi4py, time\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\ntime.sleep(60)\n"
    (local.work / "with_a_stranger.py").write_text(text, encoding="utf-8")

    with nothing_left(mark):
        done = local.run(
            framework, f"--env=MPI4PY_LIBMPI={library}", f"--name={mark}", "--grace=3s", script="with_a_stranger.py"
        )

    assert done.exit_code != 0
    assert re.search(r"rank \d uses libmpi\.so\.12, MPICH's or Intel's, and \S+ is of Open MPI", done.stderr), (
        done.stderr
    )


@pytest.fixture
def tools(over_ssh: Place, ssh_hosts: SshHosts) -> Iterator[Callable[[str, str], Path]]:
    """Makes a directory with an mpirun of the first host, and another one of the second; none if the text is empty."""
    directory = over_ssh.work / "tools"
    directory.mkdir()
    first, second = ssh_hosts.hosts[:2]
    second.private_directory(directory)

    def write(on_first: str, on_second: str) -> Path:
        for host, program in ((first, on_first), (second, on_second)):
            if program:
                add(host, directory / "mpirun", program)
        return directory

    yield write
    second.shared_directory(directory)


def add(host: Host, path: Path, program: str) -> None:
    """An mpirun that is a program elsewhere."""
    there = host.path(path)
    there.write_text(f'#!/bin/sh\nexec {program} "$@"\n', encoding="utf-8")
    there.chmod(0o755)


@pytest.mark.ssh
def test_one_host_has_no_mpirun(over_ssh: Place, ssh_hosts: SshHosts, tools: Callable[[str, str], Path]) -> None:
    framework, mark = BY_NAME["open-mpi-4"], new_mark("lacks")
    ready(framework.packages)
    path = tools("/usr/bin/mpirun", "")

    with nothing_left(mark):
        done = over_ssh.run(framework, f"--env=PATH={path}", f"--name={mark}")

    assert done.exit_code != 0
    assert NO_MPIRUN in done.stderr
    assert ssh_hosts.hosts[1].name in done.stderr.partition(NO_MPIRUN)[2] + done.stderr.partition(NO_MPIRUN)[0][-200:]


@pytest.mark.ssh
def test_two_hosts_have_different_mpis(over_ssh: Place, ssh_hosts: SshHosts, tools: Callable[[str, str], Path]) -> None:
    framework, mark = BY_NAME["open-mpi-4"], new_mark("differ")
    other = ready("mpich").prefix / "bin/mpirun"
    ready(framework.packages)
    path = tools("/usr/bin/mpirun", str(other))

    with nothing_left(mark):
        done = over_ssh.run(framework, f"--env=PATH={path}", f"--name={mark}")

    assert done.exit_code != 0
    assert f"node 1 ({ssh_hosts.hosts[1].name}) has MPICH " in done.stderr, done.stderr
    assert f", and node 0 ({ssh_hosts.hosts[0].name}) has Open MPI 4." in done.stderr, done.stderr
