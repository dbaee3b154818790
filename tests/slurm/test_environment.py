"""`--env-ship` on Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.shipping import environments

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm


def test_nodes_get_the_environment_from_one_another(login: Login, tmp_path: Path) -> None:
    """Only the first of them sees it."""
    source, store = environments.venv(tmp_path / "here/source"), tmp_path / "store"
    script = login.write("where.py", environments.SCRIPT)
    store.mkdir()
    hosts = login.slurm.hosts
    private = [*((host, store) for host in hosts), *((host, source.parent) for host in hosts[1:])]
    for host, directory in private:
        host.private_directory(directory)
    words = ("--nodes", "3", "--nodelist", f"{hosts[0].name},{hosts[1].name},{hosts[2].name}", "--nproc-per-node", "1")
    try:
        done = login("slurm", *words, "--env-ship", str(source), "--env-ship-dir", str(store), str(script))
        assert done.exit_code == 0, done.stderr
        environments.check(environments.lines(login("logs", environments.latest(login.cli)).stdout), 3, store)
        assert not list(store.iterdir())
    finally:
        for host, directory in private:
            host.shared_directory(directory)
