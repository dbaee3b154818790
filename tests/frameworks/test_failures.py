"""Each framework in each scenario: two of them on this host always; a few of all others, different ones per commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.agent.system.processes import start_ticks
from testbed import wait_until
from tests.frameworks.catalog import BY_NAME, FRAMEWORKS
from tests.frameworks.scenarios import OF_ALL, OF_MPI, Case

if TYPE_CHECKING:
    from tests.frameworks.place import Place

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1500)]
PAIRS = [
    (framework.name, scenario)
    for framework in FRAMEWORKS
    for scenario in (*OF_ALL, *(OF_MPI if framework.is_mpi else ()))
]
ALWAYS = ("open-mpi-5", "env-python")
each = pytest.mark.parametrize(("framework", "scenario"), PAIRS, ids=str)


def check(place: Place, framework: str, scenario: str) -> None:
    """Play the scenario."""
    {**OF_ALL, **OF_MPI}[scenario](Case(place, BY_NAME[framework], scenario))


@pytest.mark.parametrize(("framework", "scenario"), [pair for pair in PAIRS if pair[0] in ALWAYS], ids=str)
def test_on_this_host(local: Place, framework: str, scenario: str) -> None:
    check(local, framework, scenario)


@pytest.mark.parametrize(("framework", "ends"), [("open-mpi-4", "no-daemon"), ("open-mpi-5", "no-mpirun")])
def test_a_daemon_that_does_not_end_well_leaves_no_files_for_the_next_one_with_its_pid(
    local: Place, framework: str, ends: str, tmp_path: Path
) -> None:
    """Which ends with 213 if it finds them, and says nothing."""
    files = tmp_path / "tmp"
    files.mkdir()

    check(replace(local, env={"TMPDIR": str(files)}), framework, ends)

    assert not list(files.iterdir())
    wait_until("what the agents had in memory to be gone", lambda: not left_in_memory())


def left_in_memory() -> list[Path]:
    """Files of an MPI in the directories of agents that have ended."""
    found = Path("/dev/shm").glob("distlaunch-*/mpi-*")
    return [path for path in found if start_ticks(int(path.parent.name.split("-")[3])) is None]


@pytest.mark.parametrize(("framework", "scenario"), [pair for pair in PAIRS if pair[0] not in ALWAYS], ids=str)
@pytest.mark.rotating
def test_others_on_this_host(local: Place, framework: str, scenario: str) -> None:
    check(local, framework, scenario)


@each
@pytest.mark.slurm
@pytest.mark.rotating
def test_on_slurm(on_slurm: Place, framework: str, scenario: str) -> None:
    check(on_slurm, framework, scenario)


@each
@pytest.mark.ssh
@pytest.mark.rotating
def test_over_ssh(over_ssh: Place, framework: str, scenario: str) -> None:
    check(over_ssh, framework, scenario)


@each
@pytest.mark.k8s
@pytest.mark.rotating
def test_on_kubernetes(in_pods: Place, framework: str, scenario: str) -> None:
    check(in_pods, framework, scenario)
