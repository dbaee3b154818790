"""`distlaunch.call` on hosts that share no disk."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import calls

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack
    from tests.command import Result

pytestmark = pytest.mark.ssh


def test_functions_are_called_on_hosts(rack: Rack) -> None:
    rack.private_disks(*rack.ssh.hosts[:2])

    def run(*words: str) -> Result:
        return rack.cli(*words, python=(), real=True, cwd=rack.directory)

    options: dict[str, Any] = {
        "inventory": [str(rack.ssh.inventory)],
        "remote_dir": str(rack.remote),
        "python": sys.executable,
    }
    calls.check(rack.write, run, {"backend": "ansible", "nodes": 2, **options})
