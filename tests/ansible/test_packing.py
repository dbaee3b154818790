"""The user's files are packed only if a host lacks them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from launcher.backends.ansible import playbook
from launcher.backends.ansible.packing import Packing
from launcher.errors import SpecError
from launcher.payload import snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.conftest import Rack

LARGE = 20_000_000


@pytest.mark.ssh
def test_a_start_whose_hosts_have_the_files_packs_none_and_a_full_disk_is_one_error(
    small_disk: Path, rack: Rack
) -> None:
    rack.write("train.py", "import os\nprint(os.path.getsize('data'), 'bytes')\n")
    (rack.directory / "data").write_bytes(os.urandom(LARGE))
    asked = ("--nodes", "1", "train.py")
    there: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(small_disk / "runs")}  # has no room for the archive

    full = rack(*asked, env=there)
    shutil.rmtree(small_disk / "runs")
    first = rack(*asked)
    again = rack(*asked, env=there)

    assert full.exit_code == 4
    assert full.stderr.count("error") == 1
    assert "No space left on device" in full.stderr
    for done in (first, again):
        assert done.exit_code == 0, done.stderr
        assert f"{LARGE} bytes" in done.stdout
    left = [path.name for runs in (rack.cli.runs, small_disk / "runs") for path in runs.glob("*/ansible/files*")]
    assert left == []


def test_a_file_that_has_changed_since_the_launch_began_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("1\n")
    (tmp_path / "there").mkdir()
    packing = Packing(snapshot.collect(tmp_path, limit_bytes=LARGE), tmp_path / "there")
    (tmp_path / "train.py").write_text("22\n")

    packing.check(wait=True)  # it has not begun
    packing.begin()
    with pytest.raises(SpecError, match=r"train\.py changed while"):
        packing.check(wait=True)
    packing.end()

    assert list((tmp_path / "there").iterdir()) == []


def test_ansible_compiles_no_plugin_of_ours_unless_its_text_was_edited(tmp_path: Path) -> None:
    playbook.write_directory(tmp_path, playbook.directory_texts((), {}, {}), {})
    plugins = tmp_path / "project/roles/distlaunch/plugin_utils"
    compiled = """
import sys
from importlib.machinery import SourceFileLoader
def refuse(self, data, path, **more):
    sys.exit(f"{path} is compiled")
SourceFileLoader.source_to_code = refuse
import distlaunch_ssh, distlaunch_archive
"""

    def run() -> str:
        argv = [sys.executable, "-c", compiled]
        env = {**os.environ, "PYTHONPATH": str(plugins)}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False).stderr

    assert run() == ""
    path = plugins / "distlaunch_ssh.py"
    path.write_text(path.read_text() + "\n# edited\n")
    assert f"{path} is compiled" in run()
