"""Contracts under the operators' own kinds on Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.frameworks.catalog import BY_NAME, SCRIPTS
from tests.frameworks.environment import ready
from tests.frameworks.place import sums
from tests.k8s.conftest import kinds

if TYPE_CHECKING:
    from tests.k8s.conftest import User

__all__ = ["kinds"]
pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]


def test_a_world_of_mpi_in_an_mpijob(kinds: User) -> None:
    about = BY_NAME["open-mpi-5"]
    prefix = ready(about.packages).prefix
    kinds.write("with_mpi.py", (SCRIPTS / "with_mpi.py").read_text("utf-8"))
    kinds.write("then.py", (SCRIPTS / "then.py").read_text("utf-8"))
    shape = ["--nodes=2", "--nproc-per-node=2", "--log-ranks=all", "--contract=mpi", f"--python={prefix}/bin/python"]
    shape += [f"--volume=hostpath:{prefix}:{prefix}:ro", "--env=OMP_NUM_THREADS=1"]

    done = kinds("k8s", "--kind=mpijob", *shape, "with_mpi.py", timeout_s=300)

    assert done.exit_code == 0, done.stdout + done.stderr
    assert sums(done) == {0: (0, 10), 1: (0, 10), 2: (1, 10), 3: (1, 10)}
