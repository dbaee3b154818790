"""Roles of different contracts on Slurm: the ranks of an MPI are those of its own component."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.frameworks.catalog import BY_NAME
from tests.frameworks.environment import ready
from tests.frameworks.place import LINE

if TYPE_CHECKING:
    from tests.frameworks.place import Place

FILE = """
[roles.shell]
nodes = 1
script = "true"
no_python = true
contract = "env"

[roles.simulation]
nodes = 2
script = "with_mpi.py"
contract = "mpi"
nproc_per_node = 2
"""


@pytest.mark.slurm
@pytest.mark.torch
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", ["open-mpi-4", "mpich"])
def test_an_mpi_of_the_second_component_adds_up_its_own_ranks(on_slurm: Place, name: str) -> None:
    prefix = ready(BY_NAME[name].packages).prefix
    file = on_slurm.cli.write("run.toml", FILE)

    options = ("--gres=none", f"--python={prefix / 'bin/python'}", "--log-ranks=all", f"--roles={file}")
    done = on_slurm.other("slurm", *options)

    assert done.exit_code == 0, done.stderr
    told = [(int(node), int(rank), text) for node, rank, text in LINE.findall(done.stdout)]
    assert [(node, rank) for node, rank, _ in sorted(told)] == [(1, 1), (1, 2), (2, 3), (2, 4)]
    assert sorted(text.split(" on ")[0] for _, _, text in told) == [f"rank {rank} of 4" for rank in range(4)]
    assert all(text.endswith(": sum 10") for _, _, text in told)
