"""What a script does in a worker of ours has the outcome that it has in one of torchrun's: `tests/scripts/able.py` tries it.

All of it runs once in each way; a test compares one thing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from tests.agent import harness
from tests.agent.harness import SCRIPTS, Runner
from tests.agent.test_census import differences, heeding
from tests.command import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

__all__ = ["heeding"]


def names(file: str, pattern: str) -> list[str]:
    found = re.findall(pattern, (SCRIPTS / file).read_text(), re.MULTILINE)
    assert found
    return found


PROBE = r"^@probe\ndef (\w+)"
PROBES = [*names("able_children.py", PROBE), *names("able_system.py", PROBE), *names("able_python.py", PROBE)]
PLAIN = [*PROBES, *names("able_ends.txt", r"^--- (end_\w+)")]
TORCH = [*names("able_torch.py", r"^@torch_probe\ndef (\w+)"), *names("able_ends.txt", r"^--- (torch_end_\w+)")]
TOGETHER = names("able_together.py", r"^@together\ndef (\w+)")

LIMIT_S = 580
"""One way takes half a minute of two processors."""

Outcome = dict[str, Any]
"""By rank."""

Found = Callable[[str, str], Outcome]
"""What came of a probe, by way and name."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, heeding: None) -> Iterator[Found]:
    """What came of a probe in a way, by rank; each way is gone once."""
    top = tmp_path_factory.mktemp("able")
    runner = Runner(top)
    (top / "libraries").mkdir()
    if shutil.which("cc"):
        for size in (64, 512, 1024):  # ours forked have room for the first two: torch has taken the rest
            text = f"static __thread char block[{size}]; int count(void) {{ return ++block[{size} - 1]; }}"
            options = ["-shared", "-fPIC", "-ftls-model=initial-exec", "-o", str(top / f"libraries/tls{size}.so")]
            subprocess.run(["cc", *options, "-x", "c", "-"], input=text, text=True, check=True)

    def go(way: str) -> None:
        out = top / way
        out.mkdir()
        env = {"ABLE_OUT": str(out), "ABLE_LIBS": str(top / "libraries"), "PYTHONPATH": str(ROOT)}
        if way not in ("torchrun", "fork"):
            env["ABLE_WITHOUT_TORCH"] = "1"
        if way in ("fork", "spawn"):
            pairs = tuple(f"{name}={value}" for name, value in env.items())
            with mock.patch.object(harness, "LIMIT_S", LIMIT_S):  # it is the work of many tests
                run = runner("able.py", nproc_per_node="2", env=pairs, start=way, cwd=SCRIPTS)
            assert run.result() == "success", run.stderr
            return
        with open(os.devnull) as null:
            program = ["torch.distributed.run"] if way == "torchrun" else ["launcher", "torchrun"]
            argv = [sys.executable, "-m", *program, "--standalone", "--nproc-per-node=2", "able.py"]
            how: Any = {"env": {**os.environ, **env}, "stdin": null, "capture_output": True, "text": True, "cwd": SCRIPTS}
            done = subprocess.run(argv, check=False, timeout=LIMIT_S, **how)
            assert done.returncode == 0, done.stderr

    def found(way: str, name: str) -> Outcome:
        if not (top / way).is_dir():
            go(way)
        paths = {rank: top / way / f"{name}.{rank}" for rank in range(2)}
        told = {rank: path.read_text().replace(str(top / way), "OUT") for rank, path in paths.items() if path.exists()}
        assert told, f"nothing came of {name}"
        return {str(rank): json.loads(plain(text)) for rank, text in told.items()}

    yield found
    runner.end_all()


def plain(text: str) -> str:
    """Without what is new in every process."""
    text = re.sub("0x[0-9a-f]+", "0xID", text)
    text = re.sub(r"W\d{4} [\d:.]+ ", "W ", text)
    text = re.sub(r"repeated \d+ more times", "repeated more times", text)  # a few frames of ours are below the script's
    return re.sub(r"object refcount : \d+", "object refcount : N", text)


def as_promised(name: str, way: str, found: Outcome) -> Outcome:
    """Without what nobody promises: in which order globals are destroyed, and what the architecture says of forked workers."""
    if name == "end_del":
        return {rank: {**told, "stdout": sorted(told["stdout"])} for rank, told in found.items()}
    if name == "library_with_thread_storage" and way != "spawn":
        return {rank: told[:2] for rank, told in found.items()}
    return found


@pytest.mark.parametrize("way", ["torchrun", "fork", "spawn", "ours"])
def test_all_of_it_comes_to_an_end(outcome: Found, way: str) -> None:
    assert outcome(way, "statuses")


@pytest.mark.parametrize("name", [*PLAIN, *TORCH, *TOGETHER])
def test_what_a_forked_worker_does_has_the_outcome_of_torchruns(outcome: Found, name: str) -> None:
    compare(outcome, "fork", name)


@pytest.mark.parametrize("way", ["spawn", "ours"])
@pytest.mark.parametrize("name", [name for name in [*PLAIN, *TOGETHER] if name != "import_of_torch"])
def test_so_it_does_in_an_interpreter_of_its_own_and_under_distlaunch_torchrun(outcome: Found, name: str, way: str) -> None:
    compare(outcome, way, name)


def compare(outcome: Found, way: str, name: str) -> None:
    theirs, ours = (as_promised(name, way, outcome(each, name)) for each in ("torchrun", way))
    for told in theirs.values():
        assert not isinstance(told, dict) or set(told) not in ({"raised", "at"}, {"ended by"}), f"that is no outcome: {told}"
    if name == "randomness":
        drawn = [number for told in ours.values() for number in told[1]]
        assert len(set(drawn)) == len(drawn)
        return
    assert differences(theirs, ours) == {}
