"""What killed agents leave in memory, and what of it is removed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from launcher.agent.system.scratch import Scratch
from tests.agent.harness import Runner, alive
from tests.agent.test_stream import until


def test_an_agent_that_was_killed_leaves_nothing_in_memory(agents: Runner) -> None:
    run = agents.start("import time\ntime.sleep(600)\n")
    run.until(lambda: run.of("worker_started"))
    mine = list(Path("/dev/shm").glob(f"distlaunch-*-{run.agent_pid()}-*"))
    os.kill(run.agent_pid(), signal.SIGKILL)

    until(lambda: not any(path.exists() for path in mine))
    assert len(mine) == 1


def test_what_agents_that_were_killed_with_their_servers_left_in_memory_is_removed(tmp_path: Path) -> None:
    first = Scratch(str(tmp_path / "node"), str(tmp_path))
    dead = Path(first.path[: -len(first.path.rpartition("-")[2])] + "1")
    Path(first.path).rename(dead)
    (dead / "errors" / "0-0.json").touch()
    (dead / "mpi-1/prted.2/0").mkdir(parents=True)
    (dead / "mpi-1/prted.2/hwloc.sm").touch()
    foreign = tmp_path / "distlaunch-something"
    foreign.mkdir()

    again = Scratch(str(tmp_path / "node"), str(tmp_path))

    assert (dead.exists(), foreign.exists(), Path(again.path).exists()) == (False, True, True)
    again.close()
    assert not Path(again.path).exists()


def forged(memory: Path, node: Path, owner: int, pid: str = "99999999") -> Path:
    """A directory that is named like that of an agent that has died."""
    own = Scratch(str(node), str(memory))
    directory = memory / f"{'-'.join(Path(own.path).name.split('-')[:3])}-{pid}-1"
    own.close()
    directory.mkdir(0o700)
    os.chown(directory, owner, owner)
    return directory


@pytest.mark.parametrize(
    "trap", ["errors is a link", "it is a link", "it is a stranger's", "its errors are a stranger's", "all may write"]
)
def test_no_other_users_files_are_removed_whatever_is_in_memory(tmp_path: Path, trap: str) -> None:
    """Any user may make directories of any name there."""
    if os.geteuid():
        pytest.skip("needs root, to be several users")
    home = tmp_path / "home"
    (home / "errors").mkdir(parents=True)
    for kept in (home / "dear", home / "errors/dear"):
        kept.touch()
    memory, node = tmp_path / "memory", tmp_path / "node"
    memory.mkdir()
    directory = forged(memory, node, 54321 if trap == "it is a stranger's" else 0)
    if trap == "it is a link":
        directory.rmdir()
        directory.symlink_to(home)
    elif trap == "its errors are a stranger's":
        (directory / "errors").mkdir(0o700)
        (directory / "errors/dear").touch()
        os.chown(directory / "errors", 54321, 54321)
    elif trap == "all may write":
        (directory / "errors").mkdir(0o700)
        for kept in (directory / "dear", directory / "errors/dear"):
            kept.touch()
        directory.chmod(0o777)
    else:
        (directory / "errors").symlink_to(home)
    before = {path for path in (home, directory) for path in path.rglob("dear")}

    Scratch(str(node), str(memory)).close()

    assert {path for path in (home, directory) for path in path.rglob("dear")} == before


@pytest.mark.parametrize("pid", ["\u00b2", "1" * 200, "-1", ""])
def test_a_name_that_is_no_agents_keeps_no_agent_from_starting(tmp_path: Path, pid: str) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    forged(memory, tmp_path / "node", os.getuid(), pid)

    assert Path(Scratch(str(tmp_path / "node"), str(memory)).path).parent == memory


def test_without_memory_a_killed_agents_directory_keeps_what_is_in_it(agents: Runner) -> None:
    (agents.directory / "sitecustomize.py").write_text(
        "import os\n"
        "def mkdir(path, *more, really=os.mkdir, **about):\n"
        "    if str(path).startswith('/dev/shm'): raise OSError(30, 'Read-only file system')\n"
        "    really(path, *more, **about)\n"
        "os.mkdir = mkdir\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(agents.directory))
        run = agents.start("import time\ntime.sleep(600)\n")
    run.until(lambda: run.of("worker_started"))
    assert list(Path("/dev/shm").glob(f"distlaunch-*-{run.agent_pid()}-*")) == []
    server = psutil.Process(run.agent_pid()).children()
    os.kill(run.agent_pid(), signal.SIGKILL)
    until(lambda: not any(alive(process.pid) for process in server))

    left = {path.name for path in (run.directory / "nodes/0").iterdir()}
    assert left >= {"stream", "stderr", "agent.json", "last_words", "errors"}
    run.wait()
    assert "was killed by SIGKILL" in run.of("failure")[0]["cause"]["message"]
