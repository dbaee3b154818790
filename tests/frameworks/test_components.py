"""Ranks of Open MPI 5 open no component for libfabric where no node has an RDMA device, and what a user sets wins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.catalog import BY_NAME

if TYPE_CHECKING:
    from tests.frameworks.place import Place

pytestmark = pytest.mark.timeout(600)
TEXT = """import os
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank)
print(total, os.environ.get("OMPI_MCA_btl"), os.environ.get("OMPI_MCA_mtl"))
"""


@pytest.mark.parametrize(
    ("options", "seen"),
    [((), "6 ^ofi ^ofi"), (("--env=OMPI_MCA_btl=self,tcp",), "6 self,tcp None")],
    ids=["by default", "set by the user"],
)
def test_what_ranks_are_told(local: Place, options: tuple[str, ...], seen: str) -> None:
    if any(os.path.isdir(path) and os.listdir(path) for path in ("/sys/class/infiniband", "/sys/class/cxi")):
        pytest.skip("this machine has an RDMA device")
    (local.work / "told.py").write_text(TEXT, encoding="utf-8")

    done = local.run(BY_NAME["open-mpi-5"], *options, script="told.py")

    assert done.exit_code == 0, done.stderr
    assert sorted(line.partition("] ")[2] for line in done.stdout.splitlines() if "] 6 " in line) == [seen] * 4


@pytest.mark.slurm
@pytest.mark.parametrize(("options", "fence"), [((), "ring"), (("--env=SLURM_PMIX_FENCE=mixed",), "mixed")])
def test_the_barrier_of_slurm_that_ranks_start_with(on_slurm: Place, options: tuple[str, ...], fence: str) -> None:
    text = 'import os\nfrom mpi4py import MPI\nprint(MPI.COMM_WORLD.size, os.environ.get("SLURM_PMIX_FENCE"))\n'
    (on_slurm.work / "fence.py").write_text(text, encoding="utf-8")

    done = on_slurm.run(BY_NAME["open-mpi-5"], *options, script="fence.py")

    assert done.exit_code == 0, done.stderr
    assert sorted(line.partition("] ")[2] for line in done.stdout.splitlines() if "] 4 " in line) == [f"4 {fence}"] * 4
