"""What a script does has the same outcome in distlaunch's workers as in torchrun's: `tests/scripts/able.py` tries it.

Each way to start a worker runs all of it once; each test compares one probe.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from launcher.agent.warm import records
from tests.agent import harness
from tests.agent.harness import SCRIPTS, Runner
from tests.agent.test_census import default_signals, differences, without_stacks
from tests.command import ROOT

if TYPE_CHECKING:
    from tests.forked import Server

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

__all__ = ["default_signals"]


def names(file: str, pattern: str) -> list[str]:
    found = re.findall(pattern, (SCRIPTS / file).read_text(), re.MULTILINE)
    assert found
    return found


PROBE = r"^@probe\ndef (\w+)"
PROBES = [
    *names("able_children.py", PROBE),
    *names("able_threads.py", PROBE),
    *names("able_system.py", PROBE),
    *names("able_python.py", PROBE),
]
PLAIN = [*PROBES, *names("able_ends.txt", r"^--- (end_\w+)")]
TORCH = [
    *names("able_torch_processes.py", r"^@torch_probe\ndef (\w+)"),
    *names("able_torch.py", r"^@torch_probe\ndef (\w+)"),
    *names("able_ends.txt", r"^--- (torch_end_\w+)"),
]
TOGETHER = names("able_together.py", r"^@together\ndef (\w+)")

LIMIT_S = 580
"""One way takes half a minute on two CPUs."""

Outcome = dict[str, Any]
"""By rank."""

Found = Callable[[str, str], Outcome]
"""The outcome of a probe, by way and name."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, default_signals: None, torch_server: Server) -> Iterator[Found]:
    """The outcome of a probe in a way, by rank; each way runs once."""
    top = tmp_path_factory.mktemp("able")
    runner = Runner(top)
    (top / "libraries").mkdir()
    if shutil.which("cc"):
        for size in (64, 512, 1024):  # forked workers have room for the first two: torch has taken the rest
            text = f"static __thread char block[{size}]; int count(void) {{ return ++block[{size} - 1]; }}"
            options = ["-shared", "-fPIC", "-ftls-model=initial-exec", "-o", str(top / f"libraries/tls{size}.so")]
            subprocess.run(["cc", *options, "-x", "c", "-"], input=text, text=True, check=True)

    def go(way: str) -> None:
        out = top / way
        out.mkdir()
        env = {"ABLE_OUT": str(out), "ABLE_LIBS": str(top / "libraries"), "PYTHONPATH": str(ROOT)}
        if way not in ("torchrun", "fork", "warm"):
            env["ABLE_WITHOUT_TORCH"] = "1"
        if way in ("fork", "spawn", "warm"):
            pairs = tuple(f"{name}={value}" for name, value in env.items())
            method: dict[str, Any] = {"warm": "10m"} if way == "warm" else {"start_method": way}
            if way == "warm":
                assert runner("import torch\n", nproc_per_node="2", env=pairs, **method).result() == "success"
            with mock.patch.object(harness, "LIMIT_S", LIMIT_S):  # it does the work of many tests
                run = runner("able.py", nproc_per_node="2", env=pairs, cwd=SCRIPTS, **method)
            assert run.result() == "success", run.stderr
            assert [told["reason"] for told in run.of("warm_start")] == [None] * (way == "warm")
            return
        with open(os.devnull) as null:
            program = ["torch.distributed.run"] if way == "torchrun" else ["launcher", "torchrun"]
            argv = [sys.executable, "-m", *program, "--standalone", "--nproc-per-node=2", "able.py"]
            how: Any = {
                "env": {**os.environ, **env},
                "stdin": null,
                "capture_output": True,
                "text": True,
                "cwd": SCRIPTS,
            }
            done = (torch_server if way == "torchrun" else subprocess).run(argv, check=False, timeout=LIMIT_S, **how)
            assert done.returncode == 0, done.stderr

    def found(way: str, name: str) -> Outcome:
        if not (top / way).is_dir():
            go(way)
        paths = {rank: top / way / f"{name}.{rank}" for rank in range(2)}
        told = {rank: path.read_text().replace(str(top / way), "OUT") for rank, path in paths.items() if path.exists()}
        assert told, f"{name} has no outcome"
        return {str(rank): json.loads(plain(text)) for rank, text in told.items()}

    with tempfile.TemporaryDirectory(prefix="dlw") as place, mock.patch.dict(os.environ, {records.DIRECTORY: place}):
        yield found
        runner.end_all()
        for standing in records.found():
            records.end(standing)


def plain(text: str) -> str:
    """Without what differs in every process."""
    text = re.sub("0x[0-9a-f]+", "0xID", text)
    text = re.sub(r"W\d{4} [\d:.]+ ", "W ", text)
    text = re.sub(r"repeated \d+ more times", "repeated more times", text)  # frames of ours are below the script's
    return re.sub(r"object refcount : \d+", "object refcount : N", text)


def as_promised(name: str, way: str, found: Outcome) -> Outcome:
    """Without what is not guaranteed: the order in which globals are destroyed, and what docs/architecture.md lists."""
    if name == "end_del":
        return {rank: {**told, "stdout": sorted(told["stdout"])} for rank, told in found.items()}
    if name == "library_with_thread_storage" and way != "spawn":
        return {rank: told[:2] for rank, told in found.items()}
    if name in ("kernel", "parent_process") and way in ("fork", "warm", "ours"):
        return {rank: without_stacks(told) for rank, told in found.items()}
    return found


@pytest.mark.parametrize("way", ["torchrun", "fork", "warm", "spawn", "ours"])
def test_all_probes_finish(outcome: Found, way: str) -> None:
    assert outcome(way, "statuses")


@pytest.mark.parametrize("way", ["fork", "warm"])
@pytest.mark.parametrize("name", [*PLAIN, *TORCH, *TOGETHER])
def test_a_forked_worker_does_what_torchruns_worker_does(outcome: Found, name: str, way: str) -> None:
    compare(outcome, way, name)


@pytest.mark.parametrize("way", ["spawn", "ours"])
@pytest.mark.parametrize("name", [name for name in [*PLAIN, *TOGETHER] if name != "import_of_torch"])
def test_a_spawned_worker_and_distlaunch_torchrun_do_what_torchruns_worker_does(
    outcome: Found, name: str, way: str
) -> None:
    compare(outcome, way, name)


def compare(outcome: Found, way: str, name: str) -> None:
    theirs, ours = (as_promised(name, way, outcome(each, name)) for each in ("torchrun", way))
    for told in theirs.values():
        assert not isinstance(told, dict) or set(told) not in ({"raised", "at"}, {"ended by"}), (
            f"not an outcome: {told}"
        )
    if name == "randomness":
        drawn = [number for told in ours.values() for number in told[1]]
        assert len(set(drawn)) == len(drawn)
        return
    assert differences(theirs, ours) == {}
