"""What others have prepared on a host, or changed there: no part of it runs."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.conftest import Rack

pytestmark = [pytest.mark.ssh, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")]

STRANGER = 54321


def trap(rack: Rack) -> Path:
    """What code of somebody else's leaves."""
    return rack.cli.folder / "was-run"


def give(top: Path, mode: int | None = None) -> None:
    """A folder with all that is in it as somebody else's."""
    for path in (top, *top.rglob("*")):
        os.chown(path, STRANGER, STRANGER)
    if mode is not None:
        top.chmod(mode)


def spoil(rack: Rack, pattern: str) -> None:
    """Put a program into files below the remote folder."""
    found = list(rack.remote.glob(pattern))
    assert found, pattern
    for path in found:
        path.write_text(f"open({str(trap(rack))!r}, 'w')\nraise SystemExit('evil')\n")


def test_no_prepared_folder_is_taken_and_no_changed_agent_or_file_runs(rack: Rack) -> None:
    rack.write("x.py", "import part\nprint('hello', part)\n")
    rack.write("part.py", "")
    ask = ("--nodes", "2", "--log-ranks", "0")
    first = rack("-v", *ask, "x.py")
    assert first.exit_code == 0, first.stderr
    run = rack.id_of("x")
    agents = rack.remote / "agents"

    # A folder that somebody else owns, or can write to, on the hosts: nothing of it is used, and how to mend it is told.
    for path, mode in ((rack.remote, 0o755), (agents, 0o777), (rack.remote / "snapshots", 0o1777), (rack.remote / "runs", 0o755)):
        about = path.stat()
        os.chown(path, STRANGER if mode == 0o755 else 0, -1)
        path.chmod(mode)
        refused = rack(*ask, "x.py")
        assert refused.exit_code == 3, (path, refused)
        assert "2 of 2 hosts cannot take part" in refused.stderr
        assert f"n2: {path} belongs to" in refused.stderr
        assert "chmod o-w" in refused.stderr or "DISTLAUNCH_TRUST=" in refused.stderr
        os.chown(path, about.st_uid, about.st_gid)
        path.chmod(about.st_mode)

    # An agent that was changed, or put there before: it is not run, and the right one is installed in its place.
    for pattern in ("agents/*.pyz/distlaunch_agent/host.py", "agents/*.pyz/*/__pycache__/host.*.pyc"):
        spoil(rack, pattern)
        healed = rack(*ask, "x.py")
        assert (healed.exit_code, healed.stdout.startswith("hello")) == (0, True), healed
        assert "is not what its name says" in healed.stderr
        assert not trap(rack).exists()
        assert rack(*ask, "x.py").stderr.count("is not what its name says") == 0
    (agent,) = agents.glob("*.pyz")
    (agent / "json.py").write_text(f"open({str(trap(rack))!r}, 'w')\n")
    assert rack(*ask, "x.py").exit_code == 0
    assert not trap(rack).exists(), "a module of the standard library's name beside the agent"

    # So it is for those who only look.
    spoil(rack, "agents/*.pyz/distlaunch_agent/host.py")
    shutil.rmtree(rack.cli.runs / run / "nodes")
    (rack.cli.runs / run / "result.json").unlink()
    looked = rack.shell("status", run)
    assert "is not what its name says" in looked.stdout, looked
    assert not trap(rack).exists()
    shutil.rmtree(agents)

    # The files that were sent.
    spoil(rack, "snapshots/*/part.py")
    changed = rack(*ask, "x.py")
    assert changed.exit_code == 3, changed
    assert "was not what had been sent: somebody or a disk has changed it; it was removed, start again" in changed.stderr
    assert not trap(rack).exists()
    again = rack(*ask, "x.py")
    assert (again.exit_code, again.stdout.startswith("hello")) == (0, True), again


def test_a_folder_of_somebody_elses_with_an_agent_in_it_is_used_only_where_it_is_trusted(rack: Rack) -> None:
    rack.write("x.py", "print('hello')\n")
    assert rack("--nodes", "1", "x.py").exit_code == 0
    give(rack.remote)

    refused = rack("--nodes", "1", "x.py")
    trusted = rack("--nodes", "1", "x.py", env={"DISTLAUNCH_TRUST": str(rack.remote)})

    assert refused.exit_code == 3, refused
    assert f"n1: {rack.remote} belongs to {STRANGER}" in refused.stderr
    assert (trusted.exit_code, trusted.stdout) == (0, "hello\n"), trusted
