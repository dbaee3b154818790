"""A file that is written once, by several processes at once, where the file system has no hard links."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 120

WRITER = """
import os, signal, sys, time
from types import SimpleNamespace
from launcher.agent.system import files
directory, what, names = sys.argv[1], sys.argv[2], sys.argv[3:]
files._CLAIM_S = 0.3

def refuse(*_, **__):
    raise PermissionError(1, "Operation not permitted")

def moves(really):
    def move(source, target, **more):
        if what == "no directories" and os.path.isdir(source):
            refuse()
        if os.path.basename(target) in names and what == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if os.path.basename(target) in names and what == "stalls":
            open(f"{directory}/stalled", "w").close()
            while not os.path.exists(f"{directory}/continue"):
                time.sleep(0.01)
        really(source, target, **more)
    return move

files.os = SimpleNamespace(**{**vars(os), "link": refuse, "rename": moves(os.rename), "replace": moves(os.replace)})
open(f"{directory}/ready {os.getpid()}", "w").close()
while what == "together" and not os.path.exists(f"{directory}/go"):
    time.sleep(0.001)
print([name for name in names if files.write_once(f"{directory}/{name}", str(os.getpid()).encode(), sync=False)])
"""


def writer(directory: Path, what: str, *names: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", WRITER, str(directory), what, *names]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wrote(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    return said.strip()


def wait_for(path: Path, count: int = 1) -> None:
    limit = time.monotonic() + LIMIT_S
    while len(list(path.parent.glob(path.name))) < count:
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.parametrize("stale", [True, False])
def test_exactly_one_process_writes_it_even_if_another_died_writing_it(tmp_path: Path, stale: bool) -> None:
    names = [f"result-{number}.json" for number in range(4)]
    for name in names if stale else ():
        with writer(tmp_path, "dies", name) as died:
            died.communicate(timeout=LIMIT_S)
        assert died.returncode == -signal.SIGKILL
    several = [writer(tmp_path, "together", *names) for _ in range(5)]
    wait_for(tmp_path / "ready *", len(several) + len(names) * stale)
    (tmp_path / "go").touch()

    won = {process.pid: wrote(process) for process in several}

    for name in names:
        assert [str(pid) for pid, written in won.items() if name in written] == [(tmp_path / name).read_text()]
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("ready")) == ["go", *names]


def test_a_writer_that_stalls_does_not_overwrite_its_successors(tmp_path: Path) -> None:
    first = writer(tmp_path, "stalls", "result.json")
    wait_for(tmp_path / "stalled")
    second = writer(tmp_path, "goes", "result.json")
    assert wrote(second) == "['result.json']"
    (tmp_path / "continue").touch()

    assert wrote(first) == "[]"
    assert (tmp_path / "result.json").read_text() == str(second.pid)


def test_exactly_one_process_writes_it_where_directories_cannot_be_moved(tmp_path: Path) -> None:
    several = [writer(tmp_path, "no directories", "result.json") for _ in range(3)]
    won = {process.pid: wrote(process) for process in several}

    assert [str(pid) for pid, written in won.items() if "result.json" in written] == [
        (tmp_path / "result.json").read_text()
    ]
