"""An MPI whose daemons cannot speak IPv6 says so before it starts, where node 0 has only such an address."""

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
print(os.environ["DISTLAUNCH_RANK"], os.environ["PMI_RANK"])
"""


@pytest.fixture
def mpich(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Hosts that have it."""
    place = environment.ready("mpich").prefix / "bin"
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    return nodes


def test_mpich_over_ipv6_is_one_clear_error(mpich: Nodes) -> None:
    mpich.only_ipv6()

    with pytest.raises(AssertionError):
        mpich.run(RANK, contract="mpi")

    *_, done = protocol.Decoder().feed((mpich.directory / "run/stream0").read_bytes())
    assert isinstance(done, protocol.Event)
    cause = done.fields["cause"]
    assert cause["message"] == "MPICH's mpirun speaks no IPv6, and node 0 is reached at fd00:77::1"


def test_mpich_starts_its_ranks_over_ipv4(mpich: Nodes) -> None:
    mpich.run(RANK, contract="mpi")

    assert sorted(mpich.output) == ["0 0", "1 1", "2 2"]
