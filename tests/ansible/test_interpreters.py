"""The Pythons of hosts: other versions, other environments, and the one that a login starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.harness import SCRIPTS
from tests.agent.test_census import ARGS, OURS, PER_RUN, STACKS, differences, read

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh


def interpreters() -> dict[int, str]:
    """Other Pythons that the agent runs on, by their minor version, if this host has any."""
    found = {}
    for minor in set(range(9, 16)) - {sys.version_info[1]}:
        places = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"))
        path = str(places[-1]) if places else shutil.which(f"python3.{minor}")
        asked = subprocess.run([path, "-V"], capture_output=True, text=True, check=False).stdout if path else ""
        if path and asked.startswith(f"Python 3.{minor}."):  # a shim of pyenv's may stand for nothing
            found[minor] = path
    return found


def test_hosts_with_the_oldest_and_the_newest_python_take_part_also_without_torch(rack: Rack) -> None:
    """The script does not need it."""
    others = interpreters()
    if not others:
        pytest.skip("there is no other Python here")
    minors = [sys.version_info[1], *sorted({min(others), max(others)})]
    lines = []
    for host, minor in zip(rack.ssh.hosts, minors, strict=False):
        python = others.get(minor, sys.executable)
        wrapper = rack.cli.write(f"python-{minor}", f'#!/bin/sh\nexec {python} "$@"\n')
        wrapper.chmod(0o755)
        lines.append(f"{host.name} ansible_host={host.address} distlaunch_python={wrapper}\n")
    rack.write("version.py", "import os, sys; print(os.environ['WORLD_SIZE'], *sys.version_info[:2], os.getcwd())")

    done = rack("--in-place", "--log-ranks", "all", "version.py", inventory=rack.inventory("".join(lines)), python=None)

    assert done.exit_code == 0, done.stderr
    nodes = len(minors)
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}:{rank}] {nodes} 3 {minor} {rack.directory}" for rank, minor in enumerate(minors)
    ]
    assert "hosts have different Pythons: 3." in done.stderr
    assert "files:" not in done.stderr


def test_a_program_beside_the_named_python_is_found_and_needs_no_torch(rack: Rack) -> None:
    """As in that environment, if it were activated; what sshd gives comes after it."""
    venv.create(rack.directory / "env", symlinks=True)
    tool = rack.write("env/bin/a-tool", '#!/bin/sh\necho "$RANK $(command -v python) $*"\n')
    tool.chmod(0o755)

    done = rack(
        "--in-place",
        "--nodes",
        "2",
        "--log-ranks",
        "all",
        "--no-python",
        "a-tool",
        "--x",
        python=f"{rack.directory}/env/bin/python",
    )

    assert done.exit_code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}:{rank}] {rank} {rack.directory}/env/bin/python --x" for rank in range(2)
    ]
    assert "torch" not in done.stderr.replace(str(rack.directory), "")


def test_a_worker_cannot_tell_that_its_fork_server_came_out_of_the_logins_python(rack: Rack, tmp_path: Path) -> None:
    """All that a script sees of its process, against a worker that was started by itself."""
    running = {}
    for start in ("fork", "spawn"):
        env = ("--env", f"CENSUS_OUT={tmp_path / start}")
        options = ("--nodes", "1", "--nproc-per-node", "2", "--start-method", start, "--name", start, "--share", *env)
        running[start] = rack.start(*options, "census.py", *ARGS, cwd=SCRIPTS)
    seen = {}
    for start, launcher in running.items():
        assert launcher.end() == 0, launcher
        seen[start] = read(tmp_path / start, 2)

    for forked, spawned in zip(seen["fork"], seen["spawn"], strict=True):
        found = differences(spawned, forked)
        more = {
            "/cwd",
            "/path",
            "/main/file",
            "/main/loader_path",
        }
        own = {f"/env/{name}" for name in PER_RUN | OURS} | {"/seeds", "/authkey"} | more | STACKS
        assert {key: value for key, value in found.items() if key not in own} == {}
        assert [path.replace(forked["cwd"], "") for path in forked["path"]] == [
            path.replace(spawned["cwd"], "") for path in spawned["path"]
        ]
