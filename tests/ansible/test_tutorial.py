"""docs/tutorials/ssh.md, with hosts that have a real sshd."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests import tutorial
from tests.command import ROOT

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack
    from tests.command import Result

pytestmark = pytest.mark.ssh


def test_the_tutorial(rack: Rack) -> None:
    """The inventory leads to the testbed's hosts of these names; the one that is down has no sshd at its port."""

    def write(name: str, text: str) -> None:
        if name != "hosts.ini":
            rack.write(name, text)
            return
        assert text.split() == ["n1", "n2", "n3"]
        rack.inventory(text.replace("n2", "n2 ansible_port=1")).rename(rack.directory / name)

    def run(*words: str) -> Result:
        return rack.shell(*words, env={"DISTLAUNCH_REMOTE_DIR": str(rack.remote), "DISTLAUNCH_PYTHON": sys.executable})

    tutorial.play(ROOT / "docs/tutorials/ssh.md", run, write)
