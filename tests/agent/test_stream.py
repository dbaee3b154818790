"""A stream that cannot be written, for lack of space or of a reader, costs lines at most, never the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent import protocol
from launcher.agent.stream.writer import BUFFER_BYTES
from launcher.runs.records import Run as RunDirectory
from launcher.runs.status import last_words
from tests.agent.harness import LIMIT_S, Run, Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NUMBERED = """\
import os, sys, time
rank, size = os.environ["RANK"], int(sys.argv[2])
for number in range(size // 100):
    sys.stdout.write(f"{rank} {number} ".ljust(99, "x") + "\\n")  # a line in one write: none is told in two pieces
sys.stdout.flush()
open(f"{sys.argv[1]}/written-{rank}", "w").close()
while not os.path.exists(f"{sys.argv[1]}/go"):
    time.sleep(0.02)
print("after", rank, flush=True)
"""


def until(met: Callable[[], object]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not met():
        assert time.monotonic() < limit, f"not met in {LIMIT_S} s"
        time.sleep(0.02)


def size_of(paths: Iterable[Path]) -> int:
    """The total size of the files that still exist when they are looked at."""
    found = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


def last_events(run: Run, node: int = 0) -> list[protocol.Event]:
    """The events that an agent keeps where its stream takes none."""
    return last_words(RunDirectory(id="run", path=run.directory), node)


def lines_of(run: Run, rank: int) -> list[str]:
    return run.stdout[rank].decode().splitlines()


@pytest.fixture
def by_hand(agents: Runner) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts an agent whose stdout is a pipe that only the test reads."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        script: str, *args: str, request: dict[str, Any] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        run = agents.start("import time\ntime.sleep(600)\n", **options)  # for its directory
        run.backend.cancel(run.handle, force=True)
        run.wait()
        spec = json.loads((run.directory / "spec.json").read_text())
        (run.directory / "rendezvous.json").unlink(missing_ok=True)
        (run.directory / "script.py").write_text(script)
        spec.update(command=[str(run.directory / "script.py"), *args], **(request or {}))
        (run.directory / "spec.json").write_text(json.dumps(spec))
        with (run.directory / "stderr-by-hand").open("wb") as err:
            argv = [
                sys.executable,
                str(run.directory / "agent.pyz"),
                "--spec",
                str(run.directory / "spec.json"),
                "--node-rank",
                "0",
            ]
            started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=err, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        assert process.stdout
        process.stdout.close()
        process.terminate()
        process.wait(LIMIT_S)


def records_of(process: subprocess.Popen[bytes]) -> tuple[bytes, dict[str, list[dict[str, Any]]]]:
    """All that comes until the end of the stream: rank 0's lines, and events by name."""
    assert process.stdout
    lines, events = b"", dict[str, list[dict[str, Any]]]()
    for record in protocol.Decoder().feed(process.stdout.read()):
        if isinstance(record, protocol.Output):
            lines += record.data + (b"\n" if record.ends_line else b"")
        elif isinstance(record, protocol.Event):
            events.setdefault(record.name, []).append(record.fields)
    return lines, events


def test_a_reader_that_stalls_delays_no_restart_no_signal_and_no_deadline(
    by_hand: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    agent = by_hand(
        "import os, signal, sys, time\n"
        "again = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "def stop(*_):\n"
        "    deadline = open(os.environ['DISTLAUNCH_DEADLINE_FILE']).read()\n"
        "    open(f'{sys.argv[1]}/told', 'w').write(deadline)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('x' * 300_000, flush=True)\n"
        "open(f'{sys.argv[1]}/round-{again}', 'w').close()\n"
        "if again == '0': raise ValueError('once')\n"
        "time.sleep(600)\n",
        str(tmp_path), max_restarts=1, grace="10s",
    )  # fmt: skip

    until((tmp_path / "round-1").exists)
    agent.send_signal(signal.SIGTERM)
    until((tmp_path / "told").exists)
    until(lambda: b'"-' not in (tmp_path / "told").read_bytes() and (tmp_path / "told").read_bytes())
    lines, events = records_of(agent)

    assert agent.wait(LIMIT_S) == 130
    assert lines.count(b"x") == 600_000
    assert [event["cause"]["message"] for event in events["restart"]] == ["ValueError: once"]
    assert [event["signal"] for event in events["worker_exited"][-1:]] == ["SIGKILL"]
    assert [event["result"] for event in events["done"]] == ["cancelled"]


def test_more_than_the_buffer_waits_in_the_workers_pipes_and_nothing_is_lost(
    by_hand: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    size = 8 * BUFFER_BYTES
    agent = by_hand(
        "import os, sys, time\n"
        "block = b'x' * 99_999 + b'\\n'\n"
        "for number in range(int(sys.argv[2]) // 100_000):\n"
        "    os.write(1, block)\n"
        "    os.truncate(sys.argv[1] + '/progress', number * 100_000)\n"
        "open(f'{sys.argv[1]}/written', 'w').close()\n"
        "while not os.path.exists(f'{sys.argv[1]}/go'): time.sleep(0.02)\n",
        str(tmp_path), str(size),
    )  # fmt: skip
    (tmp_path / "progress").touch()
    until(lambda: (tmp_path / "progress").stat().st_size > BUFFER_BYTES)
    before = 0
    while (
        now := (tmp_path / "progress").stat().st_size
    ) != before:  # an agent that took everything would get to the end
        before = now
        time.sleep(0.5)
    assert not (tmp_path / "written").exists()
    assert agent.stdout
    data = bytearray()
    while not (tmp_path / "written").exists():
        data += os.read(agent.stdout.fileno(), 1 << 20)
    status = Path(f"/proc/{agent.pid}/status").read_text()
    (tmp_path / "go").touch()
    data += agent.stdout.read()

    assert agent.wait(LIMIT_S) == 0
    assert data.count(b"x") >= size // 100_000 * 99_999
    peak_kib = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])
    assert peak_kib * 1024 < 3 * BUFFER_BYTES + (30 << 20)


def test_an_agent_that_has_ended_waits_for_its_stream_no_longer_than_it_says(
    by_hand: Callable[..., subprocess.Popen[bytes]], agents: Runner
) -> None:
    agent = by_hand("print('x' * 300_000)\nraise ValueError('no')\n", request={"stream_wait_s": 1.0})

    assert agent.wait(LIMIT_S) == 1
    directory = agents.runs[-1].directory
    said = (directory / "stderr-by-hand").read_text()
    assert "waits at most 1 s for its blocked stream; SIGTERM ends the wait" in said
    (done,) = [event.fields for event in last_events(agents.runs[-1]) if event.name == "done"]
    assert (done["result"], done["cause"]["message"]) == ("failed", "ValueError: no")


@pytest.mark.slow
def test_a_signal_ends_the_wait_for_the_stream(by_hand: Callable[..., subprocess.Popen[bytes]], agents: Runner) -> None:
    agent = by_hand("print('x' * 300_000)\n")
    stderr = agents.runs[-1].directory / "stderr-by-hand"
    until(lambda: "waits at most 300 s for its blocked stream" in stderr.read_text())
    agent.terminate()

    assert agent.wait(LIMIT_S) == 0
    assert [event.fields["result"] for event in last_events(agents.runs[-1]) if event.name == "done"] == ["success"]


def test_a_reader_that_has_left_does_not_end_the_run(
    by_hand: Callable[..., subprocess.Popen[bytes]], agents: Runner, tmp_path: Path
) -> None:
    agent = by_hand(NUMBERED, str(tmp_path), "100000")
    assert agent.stdout
    agent.stdout.readline()
    agent.stdout.close()
    until((tmp_path / "written-0").exists)
    (tmp_path / "go").touch()

    assert agent.wait(LIMIT_S) == 0
    assert [event.fields["reason"] for event in last_events(agents.runs[-1]) if event.name == "lines_lost"] == [
        "the stream has no reader any more"
    ]


def test_many_lines_of_a_rank_stand_between_equal_events_that_tell_their_size(agents: Runner) -> None:
    script = "import os\nfor fd in (1, 2):\n    os.write(fd, b'all of them\\n' * 20_000 + b'and no end')\n"
    run = agents(script, nproc_per_node="2")
    data = (run.directory / "nodes/0/stream").read_bytes()
    framed: Counter[bytes] = Counter()
    frames = list(re.finditer(rb'^\{"event":"block",.*"bytes":(\d+),"number":(\d+)\}\n', data, re.MULTILINE))
    for before, after in zip(frames[::2], frames[1::2], strict=True):
        lines = data[before.end() : after.start()].splitlines(keepends=True)
        assert before[0] == after[0]
        assert sum(map(len, lines)) == int(before[1])
        marks = {line.split(b" ", 1)[0] for line in lines}
        assert len(marks) == 1, "one rank's, and no piece of a line"
        framed[marks.pop()] += len(lines)

    assert set(framed) == {b"[0:0]", b"[0:1]", b"0.0!", b"0.1!"}
    assert all(lines > 10_000 for lines in framed.values()), "blocks need not have all of the first and the last ones"
    assert [int(frame[2]) for frame in frames[::2]] == list(range(1, len(frames) // 2 + 1))
    assert run.stdout[0] == run.stderr[1] == b"all of them\n" * 20_000 + b"and no end"
