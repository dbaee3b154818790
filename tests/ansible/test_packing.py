"""The user's files are packed while Ansible starts, and matter only if a host lacks them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.ansible import playbook
from launcher.backends.ansible.packing import Packing
from launcher.errors import SpecError, StorageError
from launcher.payload import snapshot
from testbed import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.conftest import Rack

LARGE = 20_000_000
LIMITED = """
import resource, sys
from launcher.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, 10_000_000))
sys.exit(main())
"""
"""The command line where no file can be as large as the archive."""


def playing(*steps: str) -> Any:
    """The progress of a playbook that has begun these steps."""
    return SimpleNamespace(steps=set(steps))


def packed(there: Path, *contents: str) -> tuple[Packing, Path]:
    """Files that are packed, with a text that changes meanwhile; and where the archive will be."""
    there.mkdir()
    directory = there.parent / "work"
    directory.mkdir()
    script = directory / "train.py"
    script.write_text(contents[0])
    collected = snapshot.collect(directory, limit_bytes=LARGE)
    script.write_text(contents[-1])
    return Packing(collected, there), there / "files.tar.gz"


@pytest.mark.ssh
def test_files_that_cannot_be_packed_are_one_error_unless_the_hosts_have_them(rack: Rack) -> None:
    rack.write("train.py", "import os\nprint(os.path.getsize('data'), 'bytes')\n")
    (rack.directory / "data").write_bytes(os.urandom(LARGE))
    argv = rack.argv("--nodes", "1", "train.py")

    def limited() -> tuple[int, str, str]:
        process = rack.cli.start(*argv, python=("-c", LIMITED), real=True, cwd=rack.directory)
        stdout, stderr = process.communicate(timeout=120)
        return process.returncode, stdout.decode(), stderr.decode()

    code, _, refused = limited()
    left = list(rack.cli.runs.glob("*/ansible/files*"))
    first = rack("--nodes", "1", "train.py")
    again_code, again, why = limited()

    assert code == 4
    assert refused.count("error") == 1
    assert "files.part': File too large" in refused
    assert first.exit_code == 0, first.stderr
    assert f"{LARGE} bytes" in first.stdout
    assert again_code == 0, why
    assert f"{LARGE} bytes" in again
    assert left == list(rack.cli.runs.glob("*/ansible/files*")) == []


@pytest.mark.ssh
def test_the_hosts_of_a_launcher_that_was_killed_while_it_packed_are_free(rack: Rack) -> None:
    rack.write("train.py", "print('done')\n")
    (rack.directory / "data").write_bytes(os.urandom(8 * LARGE))
    killed = rack.start("--nodes", "1", "train.py")
    wait_until("it to pack", lambda: any(rack.cli.runs.glob("*/ansible/files.part")))
    wait_until("Ansible to wait for that", lambda: any(rack.remote.glob("runs")))
    killed.kill()
    assert killed.end() == -signal.SIGKILL
    (rack.directory / "data").unlink()

    done = rack("--nodes", "1", "--wait", "--wait-timeout", "30s", "train.py")

    assert done.exit_code == 0, done.stderr
    assert not list(rack.remote.glob("runs/*/nodes/*/spec.json"))[1:], "nothing of the killed one's was started"


def test_a_file_that_has_changed_since_the_launch_began_is_an_error_if_a_host_waits_for_it(tmp_path: Path) -> None:
    packing, archive = packed(tmp_path / "there", "1\n", "22\n")
    with pytest.raises(SpecError, match=r"train\.py changed while"):
        packing.wait()

    packing.follow(playing("preflight", "lease"))
    packing.follow(playing("preflight", "start"))
    with pytest.raises(SpecError, match=r"train\.py changed while"):
        packing.follow(playing("preflight", "files"))
    assert not list(archive.parent.iterdir())


def test_an_archive_is_there_as_a_whole_and_is_removed_once_no_host_can_lack_it(tmp_path: Path) -> None:
    packing, archive = packed(tmp_path / "there", "1\n")
    packing.wait()
    packing.follow(playing("preflight", "lease"))
    assert list(archive.parent.iterdir()) == [archive]

    packing.follow(playing("preflight", "lease", "start"))

    assert not list(archive.parent.iterdir())


def test_an_archive_for_which_there_is_no_room_takes_none(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(os.urandom(LARGE))
    packing = Packing(snapshot.collect(tmp_path, limit_bytes=2 * LARGE, leave_out=[small_disk]), small_disk)

    with pytest.raises(StorageError, match=r"files\.part': No space left on device"):
        packing.wait()

    assert not list(small_disk.iterdir())


def test_a_host_is_not_waited_for_while_it_waits_for_the_archive(tmp_path: Path) -> None:
    over = threading.Event()
    slow: Any = SimpleNamespace(total_bytes=1, write_tar=lambda *_, **__: over.wait(60))
    packing = Packing(slow, tmp_path)

    assert not packing.follow(playing("preflight"))
    assert packing.follow(playing("preflight", "files"))
    over.set()
    packing.wait()
    assert not packing.follow(playing("preflight", "files"))


def test_what_is_given_up_is_not_written_to_its_end(tmp_path: Path) -> None:
    over = threading.Event()

    class Slow:
        """Files whose content is read once the start is over."""

        total_bytes = 1

        def write_tar(self, target: Any, *, compress: bool) -> None:
            assert over.wait(60)
            target.write(b"1" if compress else b"2")

    slow: Any = Slow()
    packing = Packing(slow, tmp_path)
    packing.end()
    over.set()

    with pytest.raises((InterruptedError, StorageError), match="not needed any more"):
        packing.wait()

    assert not list(tmp_path.iterdir())


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
