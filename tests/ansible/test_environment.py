"""`--env-ship` over SSH, from a directory that the first host sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.shipping import environments

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh


def test_hosts_get_the_environment_from_one_another(rack: Rack, tmp_path: Path) -> None:
    source, store = environments.venv(tmp_path / "source"), tmp_path / "store"
    script = rack.write("where.py", environments.SCRIPT)
    store.mkdir()
    for host in rack.ssh.hosts:
        host.private_directory(store)
    words = ("--nodes", "3", "--nproc-per-node", "1", "--env-ship", str(source), "--env-ship-dir", str(store))
    try:
        done = rack(*words, str(script))
        assert done.exit_code == 0, done.stderr
        environments.check(environments.lines(rack.shell("logs", environments.latest(rack.cli)).stdout), 3, store)
        assert not list(store.iterdir())
    finally:
        for host in rack.ssh.hosts:
            host.shared_directory(store)
