"""Whatever size a text has that crosses a process, and whatever fails in a thread: the run ends, and says why."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from launcher.agent import cause
from launcher.agent.channel import Channel
from launcher.agent.node.loop import Loop
from launcher.agent.node.messages import Messages
from launcher.agent.system.processes import limit_files
from tests.agent.harness import LIMIT_S, gone

if TYPE_CHECKING:
    from tests.agent.harness import Runner

KIB, MIB = 1024, 1024 * 1024
SIZES = [0, 1, 127 * KIB, 128 * KIB, 137_000, 208 * KIB, 300_000, MIB, 8 * MIB]

ROOT = Path(__file__).parents[2]
KEY = "Unexpected key: model.layers.0.weight\n"


@pytest.mark.parametrize("size", SIZES)
def test_messages_of_any_size_arrive_in_order_with_their_descriptors(size: int) -> None:
    one: Channel[Any, Any]
    other: Channel[Any, Any]
    one, other = Channel.pair()
    reader, writer = os.pipe()
    texts = ["x" * size, "\0\n\udcff\u2028", "y" * size]

    def tell() -> None:
        for text in texts:
            one.send({"text": text}, [writer])
        one.close()

    thread = threading.Thread(target=tell)
    thread.start()
    for text in texts:
        message, fds = other.receive()
        assert message == {"text": text}
        assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(writer).st_ino]
        os.close(fds[0])
    assert other.receive() == (None, [])
    thread.join()
    other.close()
    os.close(reader)
    os.close(writer)


def test_a_message_that_comes_in_parts_is_not_ready_before_it_is_whole() -> None:
    sock, theirs = socket.socketpair()
    channel: Channel[Any, Any] = Channel(theirs)
    text = json.dumps({"text": "x" * 1000}).encode()
    whole = len(text).to_bytes(8, "big") + text
    for at in (0, 3, 8, 9, len(whole) - 1):
        sock.sendall(whole[:at])
        assert not channel.ready()
        sock.sendall(whole[at:] + whole)  # the next one stays in the socket, where poll sees it
        for _ in range(2):
            assert channel.ready()
            assert channel.receive() == ({"text": "x" * 1000}, [])
    sock.sendall(whole[:5])
    sock.close()
    assert channel.ready()
    assert channel.receive() == (None, [])
    channel.close()


def test_what_the_group_asks_before_its_worker_is_known_to_run_is_answered() -> None:
    """A worker that dies at once: the word of its start may be read only when the group already asks why it ended."""
    ends: tuple[Channel[Any, Any], ...] = (*Channel.pair(), *Channel.pair())
    server, server_end, group, group_end = ends
    stderr, stderr_end = os.pipe()
    loop, told = Loop(), []
    parts: Any = {name: MagicMock() for name in ("place", "out", "stderr", "joining", "workers", "outcome", "stopping")}
    parts["workers"].round = 0
    parts["outcome"].analysis.of_workers.return_value = []
    parts["outcome"].analysis.of_node.return_value = {"class": "node"}
    children: Any = SimpleNamespace(channel=server, group=group, stderr=stderr, said=lambda: None)
    Messages(loop=loop, server=children, **parts).listen({})

    def ask() -> None:
        loop.forget(reader)
        group_end.send({"ask_cause": [0]})

    reader, writer = os.pipe()
    loop.on_input(reader, ask)
    os.write(writer, b".")  # the loop has seen this, and the start: what is asked now it does not see before its next turn
    server_end.send({"started": {"pid": 1, "rank": 0, "round": 0}, "terminal": None})
    for _ in range(3):
        loop.turn(0.0)
        while group_end.ready():
            told.append(group_end.receive()[0])

    assert told == [{"cause": {"class": "node"}, "waited": {kind: [] for kind in cause.WAITED}}]
    for channel in (server, server_end, group, group_end):
        channel.close()
    loop.selector.close()
    loop.use_spare_files()
    limit_files(loop.soft_limit)
    for fd in (stderr, stderr_end, reader, writer):
        os.close(fd)


@pytest.mark.parametrize(("start", "size"), [*(("fork", size) for size in SIZES), ("spawn", 137_000), ("spawn", MIB)])
def test_an_error_of_any_size_ends_the_run_with_itself_as_the_cause(agents: Runner, size: int, start: str) -> None:
    text = (KEY * (size // len(KEY) + 1))[:size]
    run = agents(f"raise RuntimeError(({KEY!r} * {size // len(KEY) + 1})[:{size}])\n", start=start)

    assert run.result() == "failed"
    found = run.cause()
    assert (found["class"], found["rank"], found["exit_code"]) == ("user_code", 0, 1)
    assert found["message"].startswith("RuntimeError: " + text.partition("\n")[0][:400])
    assert "raise RuntimeError" in found["traceback"]
    assert len(found["traceback"]) < 20_000
    assert run.stderr[0].count(KEY.encode()) == text.count(KEY)  # the log has the whole
    if size > 100_000 and start == "fork":
        assert "characters left out; whole in the log of rank 0 and " in found["traceback"]
        path = found["traceback"].partition("the log of rank 0 and ")[2].partition(" ...]")[0]
        assert text in json.loads(Path(path).read_text())["message"]["message"]


@pytest.mark.parametrize("what", ["binary", "nul", "unprintable", "surrogates", "deep"])
def test_an_error_whose_text_is_odd_is_told_all_the_same(agents: Runner, what: str) -> None:
    script = {
        "binary": "import os; raise ValueError(os.urandom(200_000).decode('latin-1'))",
        "nul": "raise KeyError('layer\\0' * 40_000)",
        "unprintable": "class Odd(Exception):\n    def __str__(self): raise RuntimeError('no text')\nraise Odd",
        "surrogates": "raise ValueError('\\udcff\\ud800' * 100_000)",
        "deep": "import os; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('[' * 1_000_000); os._exit(1)",
    }[what]
    run = agents(script + "\n", max_restarts=1)

    assert run.result() == "failed"
    assert len(run.of("restart")) == 1
    assert (run.cause()["class"], run.cause()["exit_code"]) == ("user_code", 1)
    assert len(run.cause()["message"]) <= 500


@pytest.mark.parametrize(
    "written",
    [
        "[]",
        "{}",
        '{"message": 7}',
        '{"message": {"message": [1], "extraInfo": 3}}',
        "\0",
        '{"message": {"extraInfo": {"timestamp": "x"}, "message": ""}}',
    ],
)
def test_an_error_file_is_a_workers_word_and_may_hold_anything(tmp_path: Path, written: str) -> None:
    file = tmp_path / "0-0.json"
    file.write_text(written)

    found = cause.of_worker(
        host="h",
        node=0,
        about={"code": 3, "rank": 0, "local_rank": 0, "round": 0, "pid": 1, "stopped": False, "time": 1.0},
        error_file=str(file),
        stderr_tail=b"",
        oom_kills=0,
    )

    assert found["exit_code"] == 3
    assert isinstance(found["message"], str)
    assert isinstance(found["time"], float)


def test_an_environment_and_arguments_as_large_as_the_kernel_takes_reach_the_workers(agents: Runner) -> None:
    script = "import os, sys, zlib; print(len(os.environ['BIG0']), len(sys.argv), zlib.crc32(' '.join(sys.argv[1:]).encode()))\n"
    arguments = [random.Random(n).randbytes(3000).hex() for n in range(80)]  # 480 KB
    variables = {f"BIG{n}": "v" * 120_000 for n in range(3)}
    run = agents(script, *arguments, request={"env": variables})

    assert run.result() == "success", run.agent_stderr()
    assert run.stdout[0].decode() == f"120000 81 {zlib.crc32(' '.join(arguments).encode())}\n"


def test_an_environment_that_is_too_large_for_the_kernel_is_named(agents: Runner) -> None:
    run = agents("print(1)\n", request={"env": {"SMALL": "1", "TOO_LARGE": "v" * 8 * MIB}})

    assert run.result() == "failed"
    assert "TOO_LARGE" in run.cause()["message"]
    assert "more than the kernel gives a process" in run.cause()["message"]


@pytest.mark.parametrize("size", [127 * KIB, 300_000, 8 * MIB])
def test_a_script_that_cannot_be_compiled_may_have_lines_of_any_length(agents: Runner, size: int) -> None:
    run = agents(f"x = 'first line'\ny = '{'x' * size}\n")

    assert run.result() == "failed"
    assert run.cause()["class"] == "user_code"
    assert "SyntaxError" in run.cause()["message"]
    assert len(run.cause()["traceback"]) < 20_000


@pytest.mark.slow
def test_an_agent_that_stalls_during_a_restart_goes_on_with_it(agents: Runner, tmp_path: Path) -> None:
    script = f"""
import os, sys, time
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(count, flush=True)
open({str(tmp_path)!r} + "/" + count + os.environ["RANK"], "w").close()
if count < "3":
    said = [{str(tmp_path)!r} + "/" + name for name in ("stopped", *(count + str(rank) for rank in range(4)))]
    while not all(map(os.path.exists, said)):  # who fails takes nobody along who has not printed yet
        time.sleep(0.01)
    sys.exit(1)
"""
    run = agents.start(script, nodes="2", nproc_per_node="2", max_restarts=3)
    run.until(lambda: all((tmp_path / f"0{rank}").exists() for rank in range(4)))
    os.kill(run.agent_pid(1), signal.SIGSTOP)
    (tmp_path / "stopped").touch()
    run.until(lambda: "round 1" in str(run.of("waiting")))  # node 1's own workers have long been ended
    os.kill(run.agent_pid(1), signal.SIGCONT)
    run.wait()

    assert run.result() == "success", run.of("done")
    assert [run.stdout[rank] for rank in range(4)] == [b"0\n1\n2\n3\n"] * 4


BREAKS = """
import os, threading
def run(thread, really=threading.Thread.run):
    if thread.name == os.environ.get("TEST_BREAK") and not os.path.exists(os.environ["TEST_BREAK_ONCE"]):
        open(os.environ["TEST_BREAK_ONCE"], "w").close()
        raise ValueError("broken on purpose")
    really(thread)
threading.Thread.run = run
"""


@pytest.mark.parametrize("thread", ["watch", "store", "agent", "search", "beacon"])
def test_no_thread_dies_alone(agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(BREAKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TEST_BREAK", thread)
    monkeypatch.setenv("TEST_BREAK_ONCE", str(tmp_path / "broken"))
    by_name = {"rendezvous": {"addr": "localhost", "ports": list(range(19_000, 19_020))}}
    run = agents("import time; time.sleep(600)\n", request=by_name if thread in ("search", "beacon") else {})

    assert run.result() == "failed"
    assert run.cause()["class"] == "node"
    assert run.cause()["message"] == f"the agent's thread '{thread}' failed: ValueError: broken on purpose"
    assert "sitecustomize.py" in run.cause()["traceback"]
    assert gone(*run.worker_pids())


DEAF = """
import os, selectors, sys
if "--spec" in sys.orig_argv:
    if os.environ["TEST_STDERR"] == "is full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
    else:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, bytes(4096))
        except BlockingIOError:
            os.set_blocking(writer, True)
        os.dup2(writer, 2)
    def select(*_):
        raise OSError(5, "broken on purpose")
    if os.environ.get("TEST_BREAK") == "loop":
        selectors.EpollSelector.select = select
"""


@pytest.mark.parametrize("stderr", ["is full", "takes nothing"])
@pytest.mark.parametrize("broken", ["script", "preload", "watch", "search", "loop"])
def test_what_failed_is_told_though_stderr_takes_nothing(
    agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, broken: str
) -> None:
    """It is a file on the run's disk, which may be full, or stall."""
    (tmp_path / "sitecustomize.py").write_text(DEAF + BREAKS)
    (tmp_path / "no_good.py").write_text("raise OSError('libx.so: not found')\n")
    for name, value in {"PYTHONPATH": str(tmp_path), "TEST_STDERR": stderr, "TEST_BREAK": broken}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TEST_BREAK_ONCE", str(tmp_path / "broken"))
    by_name = {"rendezvous": {"addr": "localhost", "ports": list(range(19_000, 19_020))}}
    run = agents(
        "def f(:\n" if broken == "script" else "import time; time.sleep(600)\n",
        request=by_name if broken == "search" else {}, preload=("no_good",) if broken == "preload" else (),
    )  # fmt: skip

    told = {
        "script": ("user_code", "SyntaxError: invalid syntax (script0.py, line 1)"),
        "preload": ("node", f"{sys.executable} cannot import no_good: OSError: libx.so: not found"),
        "loop": ("node", "OSError: [Errno 5] broken on purpose"),
    }
    thread = ("node", f"the agent's thread '{broken}' failed: ValueError: broken on purpose")
    assert run.result() == "failed"
    assert (run.cause()["class"], run.cause()["message"].partition(", says Python")[0]) == told.get(broken, thread)
    assert gone(*run.worker_pids())


def test_what_a_node_has_to_say_is_on_its_stderr_whoever_says_it(
    agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nif '--fork-server' in sys.orig_argv: print('the server starts')\n")
    (tmp_path / "no_good.py").write_text("import os\nos.write(2, b'x' * 200_000)\nraise OSError('libx.so: not found')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = agents("print(1)\n", preload=("no_good",))

    assert run.agent_stderr().count("the server starts\n") == 1
    assert run.agent_stderr().count("x") >= 200_000
    assert run.agent_stderr().count("OSError: libx.so: not found\n") == 1


FAILS_TO_SERVE = """
import atexit, os, sys
from launcher.agent.forkserver.workers_store import WorkersStore
atexit.register(lambda: print("an exit hook", flush=True))
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
store = WorkersStore()
store.fd = os.open(os.devnull, os.O_RDONLY)
store.serve(["/no such program"], {}, lambda: None)
print(os.waitstatus_to_exitcode(os.waitpid(store.pid, 0)[1]), flush=True)
"""


def test_a_store_that_cannot_start_ends_alone_though_stderr_is_full() -> None:
    done = subprocess.run([sys.executable, "-c", FAILS_TO_SERVE], cwd=ROOT, capture_output=True, timeout=LIMIT_S, text=True)

    assert done.stdout == "1\nan exit hook\n"


def test_a_fork_server_that_fails_says_why(agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import os, sys\ndef pipe():\n    raise OSError(24, 'Too many open files')\n"
    (tmp_path / "sitecustomize.py").write_text(text + "if '--fork-server' in sys.orig_argv:\n    os.pipe = pipe\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = agents("print(1)\n")

    assert run.result() == "failed"
    assert (run.cause()["class"], run.cause()["message"]) == ("node", "OSError: [Errno 24] Too many open files")
    assert "forkserver/server.py" in run.cause()["traceback"]


def test_a_process_of_the_gang_that_fails_before_it_begins_says_why(
    agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\n"
        "def start(thread, really=threading.Thread.start):\n"
        "    if thread.name == 'agent': raise RuntimeError(\"can't start new thread\")\n"
        "    really(thread)\n"
        "threading.Thread.start = start\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = agents("print(1)\n")

    assert run.result() == "failed"
    assert (run.cause()["class"], run.cause()["message"]) == ("node", "RuntimeError: can't start new thread")
    assert "group/process.py" in run.cause()["traceback"]


@pytest.mark.parametrize("name", ["", "h" * 100_000, "\udcff\x1b]0;x\x07\n", "\u202eevil"])
def test_a_host_may_have_any_name(agents: Runner, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DISTLAUNCH_HOST", name)
    run = agents("import sys; sys.exit(3)\n", nodes="2")

    assert run.result() == "failed"
    assert run.cause()["exit_code"] == 3
    assert run.cause()["host"] == (name or socket.gethostname())


@pytest.mark.parametrize("name", ["x" * 250 + ".py", "a b\n'\"$(x).py", "\udcff\udcfe.py", "-x.py"])
def test_a_script_may_have_any_name(agents: Runner, name: str) -> None:
    script = agents.directory / name
    script.write_text("import sys; print('ran', flush=True); raise ValueError('it was me')\n")
    run = agents(script)

    assert run.result() == "failed"
    assert run.stdout[0] == b"ran\n"
    assert run.cause()["message"] == "ValueError: it was me"
