"""Slurm's variables describe each worker, as if srun had started it; Slurm itself has one task per node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.frameworks.catalog import BY_NAME
from tests.frameworks.place import lines

if TYPE_CHECKING:
    from tests.frameworks.place import Place


@pytest.mark.slurm
@pytest.mark.torch
def test_each_worker_of_two_nodes_has_its_own(on_slurm: Place) -> None:
    done = on_slurm.run(BY_NAME["torchrun"], script="slurm_place.py")

    assert done.exit_code == 0, done.stderr
    assert lines(done) == {
        rank: [f"{rank // 2}: place {rank} {rank % 2} {rank // 2} 4 4 2(x2) 2(x2)"] for rank in range(4)
    }
