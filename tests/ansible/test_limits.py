"""`--host-timeout`: all limits of a start are as long as it says."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from launcher.agent.ssh import user_files

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli


@pytest.mark.parametrize(("given", "least"), [((), 1200), (("--host-timeout", "600"), 6000)])
def test_ansible_may_run_for_as_long_as_its_steps(given: tuple[str, ...], least: int, distlaunch: Cli) -> None:
    """Files, which may take ten times as long as other steps, are sent to several hosts at once."""
    distlaunch.write("x.py", "")

    done = distlaunch("ansible", "-i", "h1,h2,", *given, "--dry-run", "--output", "json", "x.py")

    assert done.exit_code == 0, done.stderr
    settings = json.loads(done.json["result"]["files"]["env/settings"])
    assert settings["job_timeout"] > least


def test_a_host_waits_for_the_copy_of_another_for_as_long_as_its_start_may_take(tmp_path: Path) -> None:
    request = {"digest": "d", "dir": str(tmp_path), "directory": str(tmp_path), "job": {}, "copies": False}

    with pytest.raises(user_files.HostError, match=r"/work has not appeared in 1 s: is this disk really shared\?"):
        user_files.working_directory({**request, "timeout_s": 1.0})

    os.mkdir(tmp_path / "work")
    assert user_files.working_directory({**request, "timeout_s": 0.0}) == (os.path.realpath(tmp_path / "work"), [])
