"""A stream that cannot be written, for want of room or because nobody takes it, costs lines at most: never the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from launcher.agent import protocol
from launcher.agent.stream.writer import BUFFER_BYTES
from launcher.agent.system.scratch import Scratch
from launcher.runs.outcome import RunReport
from launcher.runs.records import Run as RunFolder
from launcher.runs.status import last_words
from launcher.service import logs
from tests.agent.harness import LIMIT_S, Run, Runner, alive

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
    """Of the files that are still there when it is their turn."""
    found = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


def words(run: Run, node: int = 0) -> list[protocol.Event]:
    return last_words(RunFolder(id="run", path=run.folder), node)


def lines_of(run: Run, rank: int) -> list[str]:
    return run.stdout[rank].decode().splitlines()


def assert_all_counted(run: Run, ranks: int, size: int) -> None:
    """Each line arrived whole, or was counted; and what was counted was told."""
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


def test_a_full_disk_costs_lines_which_are_counted_and_told_once_there_is_room(small_disk: Path, agents: Runner) -> None:
    elsewhere, agents.folder = agents.folder, small_disk
    (small_disk / "ballast").write_bytes(b"x" * 1_000_000)
    run = agents.start(NUMBERED, str(elsewhere), "600000", nproc_per_node="2")  # when it is full, the rest fits into the ballast
    during = protocol.Event("", {})

    def lost() -> bool:
        """Whether lines are told as lost; first it may be only that one is not whole."""
        nonlocal during
        during = next(iter(words(run)), during)
        return bool(during.fields.get("total"))

    until(lambda: all((elsewhere / f"written-{rank}").exists() for rank in (0, 1)))
    until(lost)
    (small_disk / "ballast").unlink()
    run.until(lambda: run.of("lines_lost"))  # before anybody writes more
    (elsewhere / "go").touch()
    run.wait()

    assert (during.name, during.fields["reason"]) == ("lines_lost", "the disk of the run directory is full")
    assert run.result() == "success"
    assert_all_counted(run, 2, 600_000)
    assert {event["reason"] for event in run.of("lines_lost")} == {"the disk of the run directory is full"}
    assert words(run) == [], "all of it is in the stream by now"


def test_a_stream_that_may_not_grow_costs_lines_too(agents: Runner) -> None:
    begins = "import os, sys, time\nwhile not os.path.exists(sys.argv[1] + '/begin'): time.sleep(0.02)\n"
    run = agents.start(begins + NUMBERED, str(agents.folder), "3000000")
    run.until(lambda: run.of("agent_started"))
    resource.prlimit(run.agent_pid(), resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    (agents.folder / "begin").touch()

    until((agents.folder / "written-0").exists)
    until(lambda: words(run))
    resource.prlimit(run.agent_pid(), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    run.until(lambda: run.of("lines_lost"))
    (agents.folder / "go").touch()
    run.wait()

    assert run.result() == "success"
    assert_all_counted(run, 1, 3_000_000)


@pytest.mark.parametrize("size", [300, 200_000])
def test_how_a_run_ended_has_its_room_on_a_full_disk(size: int, small_disk: Path, agents: Runner) -> None:
    elsewhere, agents.folder = agents.folder, small_disk
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
    for event in words(run):
        report.add(0, event)
    outcome = report.outcome(["ended"])
    assert (outcome.state, outcome.nodes[0].lines_lost >= 2) == ("failed", True)
    assert outcome.cause is not None
    assert (outcome.cause["class"], outcome.cause["message"][:20]) == ("user_code", "ValueError: it broke")
    assert outcome.cause["rank"] in (0, 1)


@pytest.fixture
def by_hand(agents: Runner) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts an agent whose stdout is a pipe that the test alone may read."""
    started: list[subprocess.Popen[bytes]] = []

    def start(script: str, *args: str, request: dict[str, Any] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        run = agents.start("import time\ntime.sleep(600)\n", **options)  # for its folder
        run.backend.cancel(run.handle, force=True)
        run.wait()
        spec = json.loads((run.folder / "spec.json").read_text())
        (run.folder / "rendezvous.json").unlink(missing_ok=True)
        (run.folder / "script.py").write_text(script)
        spec.update(command=[str(run.folder / "script.py"), *args], **(request or {}))
        (run.folder / "spec.json").write_text(json.dumps(spec))
        with (run.folder / "stderr-by-hand").open("wb") as err:
            argv = [sys.executable, str(run.folder / "agent.pyz"), "--spec", str(run.folder / "spec.json"), "--node-rank", "0"]
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


class StallingDisk:
    """A real file system that takes nothing for a while: whoever writes to it waits, and no signal ends that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thaw: subprocess.Popen[bytes] | None = None

    def stall(self) -> None:
        """Until `go_on`, or our own end, by whatever that comes."""
        subprocess.run(["fsfreeze", "-f", str(self.folder)], check=True)
        thaw = ["sh", "-c", 'cat >/dev/null; fsfreeze -u "$0"', str(self.folder)]
        self._thaw = subprocess.Popen(thaw, stdin=subprocess.PIPE, start_new_session=True)

    def go_on(self) -> None:
        thaw, self._thaw = self._thaw, None
        if thaw is not None:
            thaw.communicate()


@pytest.fixture
def stalling_disk(tmp_path: Path) -> Iterator[StallingDisk]:
    """Ask for it before what writes to it, so that it is taken away last."""
    image, folder = tmp_path / "image", tmp_path / "stalls"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    for argv in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]):
        if (
            shutil.which(argv[0]) is None
            or shutil.which("fsfreeze") is None
            or subprocess.run(argv, capture_output=True).returncode
        ):
            pytest.skip("no disk can be made here that stalls")
    disk = StallingDisk(folder)
    yield disk
    disk.go_on()
    until(lambda: subprocess.run(["umount", str(folder)], capture_output=True).returncode == 0)


def test_a_disk_that_stalls_delays_no_restart_no_deadline_and_no_verdict(
    stalling_disk: StallingDisk, agents: Runner, tmp_path: Path
) -> None:
    agents.folder, says = stalling_disk.folder, tmp_path / "says"
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
    stalling_disk.go_on()
    run.wait()

    assert float((says / "told").read_text()) > 0
    assert run.result() == "cancelled"
    assert [event["cause"]["message"] for event in run.of("restart")] == ["ValueError: once"]
    assert run.stdout[0].count(b"x") == 200_000
    assert run.of("lines_lost") == []
    assert json.loads((run.folder / "nodes/0/errors/0-0.json").read_text())["message"]["message"] == "ValueError: once"
    assert [path.name for path in Path("/dev/shm").glob(f"distlaunch-*-{run.agent_pid()}-*")] == []


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
    foreign = tmp_path / "distlaunch-something"
    foreign.mkdir()

    again = Scratch(str(tmp_path / "node"), str(tmp_path))

    assert (dead.exists(), foreign.exists(), Path(again.path).exists()) == (False, True, True)
    again.close()
    assert not Path(again.path).exists()


def forged(memory: Path, node: Path, owner: int, pid: str = "99999999") -> Path:
    """A folder that is called as that of an agent of ours which has died."""
    own = Scratch(str(node), str(memory))
    folder = memory / f"{'-'.join(Path(own.path).name.split('-')[:3])}-{pid}-1"
    own.close()
    folder.mkdir(0o700)
    os.chown(folder, owner, owner)
    return folder


@pytest.mark.parametrize(
    "trap", ["errors is a link", "it is a link", "it is a stranger's", "its errors are a stranger's", "all may write"]
)
def test_nobody_elses_files_are_removed_whatever_stands_in_memory(tmp_path: Path, trap: str) -> None:
    """Anybody may make folders of any name there."""
    if os.geteuid():
        pytest.skip("needs root, to be several users")
    home = tmp_path / "home"
    (home / "errors").mkdir(parents=True)
    for kept in (home / "dear", home / "errors/dear"):
        kept.touch()
    memory, node = tmp_path / "memory", tmp_path / "node"
    memory.mkdir()
    folder = forged(memory, node, 54321 if trap == "it is a stranger's" else 0)
    if trap == "it is a link":
        folder.rmdir()
        folder.symlink_to(home)
    elif trap == "its errors are a stranger's":
        (folder / "errors").mkdir(0o700)
        (folder / "errors/dear").touch()
        os.chown(folder / "errors", 54321, 54321)
    elif trap == "all may write":
        (folder / "errors").mkdir(0o700)
        for kept in (folder / "dear", folder / "errors/dear"):
            kept.touch()
        folder.chmod(0o777)
    else:
        (folder / "errors").symlink_to(home)
    before = {path for path in (home, folder) for path in path.rglob("dear")}

    Scratch(str(node), str(memory)).close()

    assert {path for path in (home, folder) for path in path.rglob("dear")} == before


@pytest.mark.parametrize("pid", ["\u00b2", "1" * 200, "-1", ""])
def test_a_name_that_is_no_agents_keeps_nobody_from_starting(tmp_path: Path, pid: str) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    forged(memory, tmp_path / "node", os.getuid(), pid)

    assert Path(Scratch(str(tmp_path / "node"), str(memory)).path).parent == memory


def test_without_memory_a_killed_agents_folder_keeps_what_is_in_it(agents: Runner) -> None:
    (agents.folder / "sitecustomize.py").write_text(
        "import os\n"
        "def mkdir(path, *more, really=os.mkdir, **about):\n"
        "    if str(path).startswith('/dev/shm'): raise OSError(30, 'Read-only file system')\n"
        "    really(path, *more, **about)\n"
        "os.mkdir = mkdir\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(agents.folder))
        run = agents.start("import time\ntime.sleep(600)\n")
    run.until(lambda: run.of("worker_started"))
    assert list(Path("/dev/shm").glob(f"distlaunch-*-{run.agent_pid()}-*")) == []
    server = psutil.Process(run.agent_pid()).children()
    os.kill(run.agent_pid(), signal.SIGKILL)
    until(lambda: not any(alive(process.pid) for process in server))

    left = {path.name for path in (run.folder / "nodes/0").iterdir()}
    assert left >= {"stream", "stderr", "agent.json", "last_words", "errors"}
    run.wait()
    assert "was killed by SIGKILL" in run.of("failure")[0]["cause"]["message"]


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
    while (now := (tmp_path / "progress").stat().st_size) != before:  # an agent that took all would get there
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
    folder = agents.runs[-1].folder
    said = (folder / "stderr-by-hand").read_text()
    assert "waits at most 1 s for its stream, which takes nothing; SIGTERM ends the wait" in said
    (done,) = [event.fields for event in words(agents.runs[-1]) if event.name == "done"]
    assert (done["result"], done["cause"]["message"]) == ("failed", "ValueError: no")


@pytest.mark.slow
def test_a_signal_ends_the_wait_for_the_stream(by_hand: Callable[..., subprocess.Popen[bytes]], agents: Runner) -> None:
    agent = by_hand("print('x' * 300_000)\n")
    stderr = agents.runs[-1].folder / "stderr-by-hand"
    until(lambda: "waits at most 300 s for its stream" in stderr.read_text())
    agent.terminate()

    assert agent.wait(LIMIT_S) == 0
    assert [event.fields["result"] for event in words(agents.runs[-1]) if event.name == "done"] == ["success"]


def test_a_reader_that_has_gone_does_not_end_the_run(
    by_hand: Callable[..., subprocess.Popen[bytes]], agents: Runner, tmp_path: Path
) -> None:
    agent = by_hand(NUMBERED, str(tmp_path), "100000")
    assert agent.stdout
    agent.stdout.readline()
    agent.stdout.close()
    until((tmp_path / "written-0").exists)
    (tmp_path / "go").touch()

    assert agent.wait(LIMIT_S) == 0
    assert [event.fields["reason"] for event in words(agents.runs[-1]) if event.name == "lines_lost"] == [
        "no one reads the stream any more"
    ]


FLOOD = """\
import os, sys, time
rank, round_ = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
for number in range(int(sys.argv[2]) // 100 if rank == "1" else 1000):
    sys.stdout.write(f"{rank} {number} ".ljust(99, "x") + "\\n")
sys.stdout.flush()
print("last words of", rank, file=sys.stderr, flush=True)
open(f"{sys.argv[1]}/written-{rank}-{round_}", "w").close()
while not os.path.exists(f"{sys.argv[1]}/go"):
    time.sleep(0.02)
if rank == "1" and round_ == "0": sys.exit(3)
sys.stdout.write(f"after {rank}\\n")  # in one write: in the first round it may be ended anywhere here
sys.stdout.flush()
"""


@pytest.mark.slow
def test_of_a_rank_above_the_limit_the_first_and_the_latest_lines_are_kept(agents: Runner) -> None:
    """The others lose nothing, the disk has no more of it than the limit, and what is missing is told where it is missing."""
    run = agents.start(FLOOD, str(agents.folder), "20000000", nproc_per_node="2", max_restarts=1, log_limit="2MB")
    node = run.folder / "nodes/0"
    until(lambda: all((agents.folder / f"written-{rank}-0").exists() for rank in (0, 1)))
    until(lambda: size_of(node.glob("latest/1.stdout.*")) > 100_000)
    assert size_of(path for path in node.rglob("*") if path.is_file()) < 2_200_000
    run.until(lambda: run.of("warning"))
    latest = {b"0.1| 1 199999 ", b"0.1! last words of 1\n"}
    until(lambda: all(said in b"".join(logs._latest_blocks(node / "latest", 0)) for said in latest))
    (agents.folder / "go").touch()
    run.wait()

    assert run.result() == "success"
    assert [line for line in lines_of(run, 0) if line != "after 0"] == [f"0 {n} ".ljust(99, "x") for n in range(1000)] * 2
    lines = lines_of(run, 1)
    numbers = [int(line.split()[1]) for line in lines if line.startswith("1 ")]
    assert all(len(line) == 99 for line in lines if line.startswith("1 "))
    assert numbers[:5000] == list(range(5000)), "the first half"
    last = [index for index, number in enumerate(numbers) if number == 199_999]
    assert len(last) == 2, "the latest lines of each round"
    assert numbers[last[0] - 600 : last[0] + 1] == list(range(199_399, 200_000))
    assert (lines[-1], bytes(run.stderr[1])) == ("after 1", b"last words of 1\n" * 2)
    told = run.of("lines_lost")
    assert sum(event["lines"] for event in told) == 400_000 - len(numbers) == run.of("done")[0]["lines_lost"]
    assert {(event["reason"], *event["ranks"]) for event in told} == {("the limit for each rank is 2MB (--log-limit)", 1)}
    assert len(told) < 30
    assert "rank 1 has written 1MB: of what follows only the latest lines are kept" in run.of("warning")[0]["message"]
    assert (node / "stream").stat().st_size < 2_000_000 + 200_000
    assert list(node.glob("latest/*")) == []


LEAVES = """
import os, sys, time
if os.environ["RANK"] == "1":
    time.sleep(600)
if not os.fork():
    while not os.path.exists(f"{sys.argv[1]}/go"):
        time.sleep(0.02)
    for number in range(int(sys.argv[2]) // 100):
        sys.stdout.write(f"left {number} ".ljust(99, "x") + "\\n")
    print("the end", flush=True)
    os._exit(0)
print("first ".ljust(700_000, "x"), flush=True)
"""


def test_lines_above_the_limit_are_told_or_counted_also_of_a_process_that_a_worker_left(agents: Runner) -> None:
    run = agents.start(LEAVES, str(agents.folder), "3000000", nproc_per_node="2", log_limit="1MB")
    run.until(lambda: run.of("worker_exited"))
    (agents.folder / "go").touch()
    run.until(lambda: b"the end" in run.stdout[0])
    os.kill(run.agent_pid(), signal.SIGTERM)
    run.wait()

    lines = [line for line in lines_of(run, 0) if line.startswith("left")]
    assert lines[-1].split()[1] == "29999"
    assert sum(event["lines"] for event in run.of("lines_lost")) == 30_000 - len(lines) > 0
