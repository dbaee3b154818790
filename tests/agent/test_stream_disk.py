"""A disk that is full, or that stalls, costs lines at most: never the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from launcher.agent import protocol
from launcher.runs.outcome import RunReport
from launcher.runs.reader import StreamReader
from tests.agent.harness import Run, Runner, alive
from tests.agent.test_stream import NUMBERED, last_events, lines_of, until

if TYPE_CHECKING:
    from collections.abc import Iterator


def assert_all_counted(run: Run, ranks: int, size: int) -> None:
    """Each line arrived whole or was counted, and the count was reported."""
    missing = 0
    for rank in range(ranks):
        lines = lines_of(run, rank)
        assert lines[-1] == f"after {rank}"
        assert all(re.fullmatch(rf"{rank} \d+ x+", line) and len(line) == 99 for line in lines[:-1])
        missing += size // 100 - (len(lines) - 1)
    told = run.of("lines_lost")
    assert missing > 0
    assert sum(event["lines"] for event in told) == missing
    assert told[-1]["total"] == missing
    assert run.of("done")[0]["lines_lost"] == missing
    assert run.foreign == []


def test_a_full_disk_costs_lines_which_are_counted_and_reported_once_there_is_room(
    small_disk: Path, agents: Runner
) -> None:
    elsewhere, agents.directory = agents.directory, small_disk
    (small_disk / "ballast").write_bytes(b"x" * 800_000)
    # When the disk is full, the rest fits into the ballast.
    run = agents.start(NUMBERED, str(elsewhere), "600000", nproc_per_node="2")
    during = protocol.Event("", {})

    def lost() -> bool:
        """Whether lines are reported as lost; the first report may be only of one that is not whole."""
        nonlocal during
        during = next(iter(last_events(run)), during)
        return bool(during.fields.get("total"))

    until(lambda: all((elsewhere / f"written-{rank}").exists() for rank in (0, 1)))
    until(lost)
    (small_disk / "ballast").unlink()
    run.until(lambda: run.of("lines_lost"))  # before a worker writes more
    (elsewhere / "go").touch()
    run.wait()

    assert (during.name, during.fields["reason"]) == ("lines_lost", "the disk of the run directory is full")
    assert run.result() == "success"
    assert_all_counted(run, 2, 600_000)
    assert {event["reason"] for event in run.of("lines_lost")} == {"the disk of the run directory is full"}
    assert last_events(run) == [], "all of it is in the stream by now"


@pytest.mark.parametrize("at_once", [False, True])
def test_a_stream_that_may_not_grow_costs_lines_too(at_once: bool, agents: Runner) -> None:
    begins = "import os, sys, time\nwhile not os.path.exists(sys.argv[1] + '/begin'): time.sleep(0.02)\n"
    script = NUMBERED
    if at_once:
        script = script.replace("sys.stdout.write(", "lines.append(").replace("for number", "lines = []\nfor number")
        script = script.replace("sys.stdout.flush()", "sys.stdout.write(''.join(lines))")
    run = agents.start(begins + script, str(agents.directory), "3000000")
    run.until(lambda: run.of("agent_started"))
    resource.prlimit(run.agent_pid(), resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    (agents.directory / "begin").touch()

    until((agents.directory / "written-0").exists)
    until(lambda: last_events(run))
    resource.prlimit(run.agent_pid(), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    run.until(lambda: run.of("lines_lost"))
    (agents.directory / "go").touch()
    run.wait()

    assert run.result() == "success"
    assert_all_counted(run, 1, 3_000_000)
    blocks = Counter(event["number"] for event in run.of("block"))
    assert not at_once or set(blocks.values()) == {1, 2}, "one block has no end"
    read = [*(reader := StreamReader(None, 0)).feed((run.directory / "nodes/0/stream").read_bytes()), *reader.close()]
    shown = b"".join(each.data + b"\n" * each.ends_line for each in read if isinstance(each, protocol.Output))
    assert shown == run.stdout[0]


@pytest.mark.parametrize("size", [300, 200_000])
def test_how_a_run_ended_is_recorded_on_a_full_disk(size: int, small_disk: Path, agents: Runner) -> None:
    elsewhere, agents.directory = agents.directory, small_disk
    run = agents.start(
        "import os, sys, time\n"
        "while not os.path.exists(sys.argv[1] + '/full'): time.sleep(0.02)\n"
        "print('lost\\n' * 5000, flush=True)\n"
        "raise ValueError('it broke' + 'x' * int(sys.argv[2]))\n",
        str(elsewhere), str(size), nproc_per_node="2",
    )  # fmt: skip
    run.until(lambda: len(run.of("worker_started")) == 2)
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    (elsewhere / "full").touch()
    run.wait()

    assert run.of("done") == []
    report = RunReport(["here"])
    for event in last_events(run):
        report.add(0, event)
    outcome = report.outcome(["ended"])
    assert (outcome.state, outcome.nodes[0].lines_lost >= 2) == ("failed", True)
    assert outcome.cause is not None
    assert (outcome.cause["class"], outcome.cause["message"][:20]) == ("user_code", "ValueError: it broke")
    assert outcome.cause["rank"] in (0, 1)


class StallingDisk:
    """A real file system that takes nothing for a while: a process that writes to it waits, and no signal ends that."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._thaw: subprocess.Popen[bytes] | None = None

    def stall(self) -> None:
        """Until `resume`, or until this process exits, in whatever way."""
        subprocess.run(["fsfreeze", "-f", str(self.directory)], check=True)
        thaw = ["sh", "-c", 'cat >/dev/null; fsfreeze -u "$0"', str(self.directory)]
        self._thaw = subprocess.Popen(thaw, stdin=subprocess.PIPE, start_new_session=True)

    def resume(self) -> None:
        thaw, self._thaw = self._thaw, None
        if thaw is not None:
            thaw.communicate()


@pytest.fixture
def stalling_disk(tmp_path: Path) -> Iterator[StallingDisk]:
    """Request it before fixtures that write to it, so that it is removed last."""
    image, directory = tmp_path / "image", tmp_path / "stalls"
    directory.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    for argv in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(directory)]):
        if (
            shutil.which(argv[0]) is None
            or shutil.which("fsfreeze") is None
            or subprocess.run(argv, capture_output=True).returncode
        ):
            pytest.skip("no disk can be made here that stalls")
    disk = StallingDisk(directory)
    yield disk
    disk.resume()
    until(lambda: subprocess.run(["umount", str(directory)], capture_output=True).returncode == 0)


def test_a_disk_that_stalls_delays_no_restart_no_deadline_and_no_verdict(
    stalling_disk: StallingDisk, agents: Runner, tmp_path: Path
) -> None:
    agents.directory, says = stalling_disk.directory, tmp_path / "says"
    says.mkdir()
    run = agents.start(
        "import os, signal, sys, time\n"
        "again = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "def stop(*_):\n"
        "    deadline = open(os.environ['DISTLAUNCH_DEADLINE_FILE']).read()\n"
        "    open(f'{sys.argv[1]}/told', 'w').write(deadline)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "open(f'{sys.argv[1]}/round-{again}', 'w').close()\n"
        "while not os.path.exists(f'{sys.argv[1]}/stalls'): time.sleep(0.02)\n"
        "print('x' * 100_000, flush=True)\n"
        "if again == '0': raise ValueError('once')\n"
        "while True: time.sleep(600)\n",
        str(says), max_restarts=1,
    )  # fmt: skip
    until((says / "round-0").exists)
    run.until(lambda: run.of("worker_started"))
    stalling_disk.stall()
    (says / "stalls").touch()

    until((says / "round-1").exists)
    os.kill(run.agent_pid(), signal.SIGTERM)
    until((says / "told").exists)
    until(lambda: not [pid for pid in psutil.Process(run.agent_pid()).children(recursive=True) if pid.is_running()])
    assert alive(run.agent_pid()), "it waits for its stream"
    stalling_disk.resume()
    run.wait()

    assert float((says / "told").read_text()) > 0
    assert run.result() == "cancelled"
    assert [event["cause"]["message"] for event in run.of("restart")] == ["ValueError: once"]
    assert run.stdout[0].count(b"x") == 200_000
    assert run.of("lines_lost") == []
    assert (
        json.loads((run.directory / "nodes/0/errors/0-0.json").read_text())["message"]["message"] == "ValueError: once"
    )
    assert [path.name for path in Path("/dev/shm").glob(f"distlaunch-*-{run.agent_pid()}-*")] == []


def test_a_project_on_a_disk_that_stalls_delays_no_heartbeat_no_signal_and_no_verdict(
    stalling_disk: StallingDisk, agents: Runner
) -> None:
    project = stalling_disk.directory / "project"
    (project / "runs").mkdir(parents=True)
    request = {"project": "project", "output_dir": str(project / "work"), "heartbeat_s": 0.2}
    run = agents.start("import time\nprint('ready', flush=True)\ntime.sleep(600)\n", request=request)
    run.until(lambda: run.stdout[0] == b"ready\n")
    assert len(list((project / "runs").iterdir())) == 1

    stalling_disk.stall()
    beats = len(run.of("heartbeat"))
    run.until(lambda: len(run.of("heartbeat")) > beats + 3)
    os.kill(run.agent_pid(), signal.SIGTERM)
    run.until(lambda: run.of("done"))
    stalling_disk.resume()

    assert run.wait().result() == "cancelled"
