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
    source, store = environments.venv(tmp_path / "source"), tmp_path / "store"
    script = login.write("where.py", environments.SCRIPT)
    store.mkdir()
    for host in login.slurm.hosts:
        host.private_directory(store)
    words = ("slurm", "--nodes", "3", "--nproc-per-node", "1", "--env-ship", str(source), "--env-ship-dir", str(store))
    try:
        done = login(*words, str(script))
        assert done.exit_code == 0, done.stderr
        environments.check(environments.lines(login("logs", environments.latest(login.cli)).stdout), 3, store)
        assert not list(store.iterdir())
    finally:
        for host in login.slurm.hosts:
            host.shared_directory(store)
