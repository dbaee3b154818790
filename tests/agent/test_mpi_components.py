"""Open MPI's components for libfabric are left out on nodes without a device for them, unless somebody chose them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.agent.contracts.mpi import without_libfabric
from launcher.agent.fabric.sources import Tree
from launcher.agent.mpi import libfabric
from launcher.agent.mpi.vendor import HYDRA, OPEN_MPI, Vendor

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def installed(tmp_path: Path) -> Vendor:
    """An Open MPI without settings of its own."""
    return Vendor(OPEN_MPI, "Open MPI", "5.0.11", str(tmp_path / "installed/bin/mpirun"))


def unused(vendor: Vendor, tmp_path: Path, **env: str) -> bool:
    """Whether they are left out on the host whose files are in `tmp_path`."""
    return libfabric.is_unused(vendor, {"HOME": str(tmp_path / "home"), **env}, Tree(str(tmp_path)))


def settings(path: Path, text: str) -> None:
    """A file of settings."""
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")


def test_no_device(installed: Vendor, tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)

    assert unused(installed, tmp_path, OMPI_MCA_btl_tcp_if_include="eth0")


@pytest.mark.parametrize("device", ["infiniband/mlx5_0", "infiniband/efa_0", "infiniband/hfi1_0", "cxi/cxi0"])
def test_a_device(installed: Vendor, tmp_path: Path, device: str) -> None:
    (tmp_path / "sys/class" / device).mkdir(parents=True)

    assert not unused(installed, tmp_path)


def test_another_mpi(installed: Vendor, tmp_path: Path) -> None:
    assert not unused(installed._replace(kind=HYDRA), tmp_path)


@pytest.mark.parametrize("name", ["btl", "mtl", "pml", "mca_base_param_files", "mca_base_envar_file_prefix"])
def test_a_variable_of_the_user(installed: Vendor, tmp_path: Path, name: str) -> None:
    assert not unused(installed, tmp_path, **{f"OMPI_MCA_{name}": "ofi"})


@pytest.mark.parametrize(
    "path", ["home/.openmpi/mca-params.conf", "installed/etc/openmpi-mca-params.conf"], ids=["user", "installation"]
)
def test_a_file_of_settings(installed: Vendor, tmp_path: Path, path: str) -> None:
    settings(tmp_path / path, "# btl = tcp\nbtl_tcp_if_include = eth0\n")
    assert unused(installed, tmp_path)

    (tmp_path / path).write_text("  mtl=ofi\n", encoding="utf-8")
    assert not unused(installed, tmp_path)


def test_one_node_has_a_device() -> None:
    lacks, has = {"libfabric": False}, {"libfabric": True}

    assert {each.name: each.value for each in without_libfabric([lacks, lacks])} == libfabric.COMPONENTS
    assert without_libfabric([lacks, has]) == []
