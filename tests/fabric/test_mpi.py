"""Each MPI's own start-up over several hosts: where node 0 has no IPv4 address, and a run's directory has a space."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from launcher.agent import protocol
from tests.frameworks import environment

if TYPE_CHECKING:
    from tests.fabric.conftest import Nodes

RANK = """
import os
print(os.environ["DISTLAUNCH_RANK"], os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
"""


def has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have hosts find this MPI."""
    place = environment.ready(name).prefix / "bin"
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")


def test_mpich_over_ipv6_is_one_clear_error(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    has("mpich", monkeypatch)
    nodes.only_ipv6()

    with pytest.raises(AssertionError):
        nodes.run(RANK, contract="mpi")

    *_, done = protocol.Decoder().feed((nodes.directory / "run/stream0").read_bytes())
    assert isinstance(done, protocol.Event)
    cause = done.fields["cause"]
    assert cause["message"] == "MPICH's mpirun speaks no IPv6, and node 0 is reached at fd00:77::1"


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_ranks_start_though_the_directory_of_the_run_has_a_space(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, mpi: str
) -> None:
    has(mpi, monkeypatch)

    nodes.run(RANK, "a run", contract="mpi")

    assert sorted(nodes.output) == ["0 0", "1 1", "2 2"]
