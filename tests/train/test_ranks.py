"""The ranks that these tests start are like those that torchrun starts."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.train.conftest import Alone, Start, Together

pytestmark = pytest.mark.torch

SHOW = """
import json, os, pathlib, signal, sys
rank, directory = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
(directory / f"part-{rank}").write_text(json.dumps({name: value for name, value in os.environ.items()}))
print("here", rank, flush=True)
(directory / f"part-{rank}").rename(directory / f"env-{rank}")
if rank:
    while not (directory / "env-0").exists():
        os.sched_yield()
    sys.exit(3)
signal.pause()
"""
OF_A_RUN = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",
)
"""Differ from run to run; the last says whether torchrun's agent serves the store, or rank 0."""


def environments(directory: Path) -> list[dict[str, Any]]:
    return [json.loads((directory / f"env-{rank}").read_text()) for rank in range(2)]


def test_they_have_torchruns_environment_and_the_failure_of_one_ends_the_others(
    ranks: Together, torchrun: Alone, tmp_path: Path
) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()

    done = ranks(2, tmp_path / "show.py", str(ours))
    launched = torchrun(2, tmp_path / "show.py", str(theirs))

    assert done.codes == [-signal.SIGTERM, 3]
    assert done.returncode == 3
    assert done.outs == ["here 0\n", "here 1\n"]
    assert launched.returncode == 1
    assert "exitcode  : 3 (pid:" in launched.stderr
    for mine, other in zip(environments(ours), environments(theirs), strict=True):
        assert mine.keys() == other.keys()
        assert {name for name in mine if mine[name] != other[name]} <= {*OF_A_RUN, "PWD"}


def test_nothing_is_left_of_them_after_their_block(start: Start, tmp_path: Path) -> None:
    """Not even what a rank has started itself, nor one that was stopped."""
    script = tmp_path / "sleeper.py"
    script.write_text(
        "import os, signal, subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "signal.raise_signal(signal.SIGSTOP)\n"
    )
    with start(2, script) as running:
        pids = [int(pid) for rank in range(2) for pid in running.line(rank, "").split()]

    assert len(set(pids)) == 4
    assert [running.ended(rank) for rank in range(2)] == [-signal.SIGKILL] * 2
    wait_until("the killed processes to exit", lambda: not any(map(is_running, pids)), limit_s=60)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
