"""A login node whose login shells hang, as its home directory does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.slurm.laptop import Laptop

pytestmark = pytest.mark.slurm


def test_login_shells_that_all_hang_get_no_more_connections_with_each_command(laptop: Laptop) -> None:
    slow = laptop.cli.write("slow", "")
    hangs = f"while [ -e {slow} ]; do sleep 0.2; done"
    shell = laptop.cli.write("shell", f'#!/bin/sh\n{hangs}\neval "$SSH_ORIGINAL_COMMAND"\n')
    shell.chmod(0o755)
    slow.unlink()
    laptop("login", "juno", "--close")
    laptop.node.configure(ForceCommand=str(shell))
    log = laptop.node.directory / "sshd.log"
    try:
        assert laptop("ls", "--on", "juno").exit_code == 0
        before = log.read_text().count("Accepted publickey")
        slow.touch()
        hung = [laptop("ls", "--on", "juno") for _ in range(3)]
        slow.unlink()
        after = laptop("ls", "--on", "juno")
        logins = log.read_text().count("Accepted publickey") - before
    finally:
        slow.unlink(missing_ok=True)
        laptop.node.configure(ForceCommand="")

    for done in hung:
        assert "juno does not answer within 15 s" in done.stderr
    assert after.exit_code == 0, after.stderr
    assert before > 0
    assert logins <= 1
