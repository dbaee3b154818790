"""A host whose GPU driver does not answer: nothing starts there by its GPUs, and what runs there can be ended."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.agent.test_nvml import build
from tests.ansible.conftest import WAITS, results

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the library is built with gcc"),
]


def test_a_host_whose_driver_hangs_can_be_looked_at_and_is_refused_with_the_reason(rack: Rack) -> None:
    stub = rack.cli.directory / "stub"
    stub.mkdir()
    library = build(rack.cli.directory / "nvml")
    variables = f"export LD_LIBRARY_PATH={library} NVML_STUB={stub}"
    python = rack.cli.write("python3", f'#!/bin/sh\n{variables}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    rack.write("waits.py", WAITS)
    where = ("--limit", "n1", "--python", str(python))
    run = rack.detached(*where, "waits.py")
    (stub / "hang").touch()
    inventory = rack.inventory(
        f"n1 ansible_host={rack.ssh.hosts[0].address} ansible_python_interpreter={python} distlaunch_python={python}"
    )
    elsewhere: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(rack.cli.directory / "elsewhere")}

    started, adopted = results(
        rack.start(*where, "--share", "waits.py"),
        rack.open("adopt", run, "--inventory", str(inventory), "--remote-dir", str(rack.remote), env=elsewhere),
    )

    assert started.exit_code == 3
    assert "n1: the driver of its GPUs does not answer: see dmesg\n" in started.stderr, started.stderr
    assert adopted.exit_code == 0, adopted.stderr
    assert rack.shell("cancel", run, env=elsewhere).exit_code == 0
