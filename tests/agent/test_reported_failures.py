"""Whatever fails or stalls in a thread or a process of a node: the run ends or continues, and reports why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
from tests.agent.harness import LIMIT_S, all_exited

if TYPE_CHECKING:
    from tests.agent.harness import Runner

ROOT = Path(__file__).parents[2]
NOT_FORKED = ("PYTHONNOUSERSITE=1",)
"""A variable that Python reads when it starts: the agent starts the fork server anew."""


def test_a_question_about_a_worker_that_is_not_yet_known_to_run_is_answered() -> None:
    """If a worker dies at once, the group may ask why it ended before the message of its start is read."""
    ends: tuple[Channel[Any, Any], ...] = (*Channel.pair(), *Channel.pair())
    server, server_end, group, group_end = ends
    stderr, stderr_end = os.pipe()
    loop, told = Loop(), []
    names = ("place", "out", "stderr", "joining", "workers", "outcome", "stopping", "watchdog")
    parts: Any = {name: MagicMock() for name in names}
    parts["workers"].round = 0
    parts["outcome"].hang, parts["outcome"].final = None, False
    parts["stopping"].stops.reason = None
    parts["outcome"].analysis.of_workers.return_value = []
    parts["outcome"].analysis.of_node.return_value = {"class": "node"}
    children: Any = SimpleNamespace(channel=server, group=group, stderr=stderr, said=lambda: None)
    Messages(loop=loop, server=children, **parts).listen({})

    def ask() -> None:
        loop.forget(reader)
        group_end.send({"ask_cause": [0]})

    reader, writer = os.pipe()
    loop.on_input(reader, ask)
    # The loop sees this and the start in one turn, and what is then asked only in the next one.
    os.write(writer, b".")
    server_end.send({"started": {"pid": 1, "rank": 0, "round": 0}, "terminal": None})
    for _ in range(3):
        loop.turn(0.0)
        while group_end.ready():
            told.append(group_end.receive()[0])

    about = {"waited": {kind: [] for kind in cause.WAITED}, "final": False, "stopping": False}
    assert told == [{"cause": {"class": "node"}, **about}]
    for channel in (server, server_end, group, group_end):
        channel.close()
    loop.selector.close()
    loop.use_spare_files()
    limit_files(loop.soft_limit)
    for fd in (stderr, stderr_end, reader, writer):
        os.close(fd)


@pytest.mark.slow
def test_an_agent_that_stalls_during_a_restart_continues_it(agents: Runner, tmp_path: Path) -> None:
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
    run.until(lambda: "round 1" in str(run.of("waiting")))  # node 1's own workers have long been killed
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


HEARS_LATE = """
import os, threading, time
def run(thread, really=threading.Thread.run):
    if thread.name == "agent" and os.environ.get("TEST_HEARS_LATE"):
        channel = thread._target.__self__._channel
        def receive(usual=channel.receive):
            message, fds = usual()
            if message and "stop" in message:
                time.sleep(1)
            return message, fds
        channel.receive = receive
    really(thread)
threading.Thread.run = run
"""


@pytest.mark.parametrize("group_gets_it", [False, True])
def test_workers_that_a_stop_has_ended_have_not_failed_if_that_is_known_before_the_stop(
    agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_gets_it: bool
) -> None:
    """The process of the worker group hears of their end on another channel. `group_gets_it`: workers do as well."""
    (tmp_path / "sitecustomize.py").write_text(HEARS_LATE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TEST_HEARS_LATE", "1")
    means = {"sigterm_means": "preempted", "replaces_lost": True, "signals_reach_workers": group_gets_it}
    run = agents.start("import signal\nsignal.pause()\n", nodes="2", request=means)
    run.until(lambda: len(run.worker_pids()) == 2)

    os.kill(run.agent_pid(1), signal.SIGTERM)
    if group_gets_it:
        [worker] = [fields["pid"] for node, name, fields in run.events if name == "worker_started" and node == 1]
        os.kill(worker, signal.SIGTERM)
    run.wait()

    assert run.result() == "preempted", run.of("done")
    assert not run.of("failure")


@pytest.mark.parametrize("thread", ["watch", "store", "agent", "search", "beacon"])
def test_a_thread_that_fails_ends_the_run(
    agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
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
    assert all_exited(*run.worker_pids())


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
def test_a_failure_is_reported_even_if_stderr_takes_nothing(
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
    assert all_exited(*run.worker_pids())


def test_a_nodes_stderr_has_the_output_of_all_its_own_processes(
    agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif '--fork-server' in sys.orig_argv: print('the server starts')\n"
    )
    (tmp_path / "no_good.py").write_text(
        "import os\nos.write(2, b'x' * 200_000)\nraise OSError('libx.so: not found')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = agents("print(1)\n", preload=("no_good",), env=NOT_FORKED)

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


def test_a_workers_store_that_cannot_start_exits_alone_even_if_stderr_is_full() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILS_TO_SERVE], cwd=ROOT, capture_output=True, timeout=LIMIT_S, text=True
    )

    assert done.stdout == "1\nan exit hook\n"


def test_a_fork_server_that_fails_reports_why(agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import os, sys\ndef pipe():\n    raise OSError(24, 'Too many open files')\n"
    (tmp_path / "sitecustomize.py").write_text(text + "if '--fork-server' in sys.orig_argv:\n    os.pipe = pipe\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = agents("print(1)\n", env=NOT_FORKED)

    assert run.result() == "failed"
    assert (run.cause()["class"], run.cause()["message"]) == ("node", "OSError: [Errno 24] Too many open files")
    assert "forkserver/server.py" in run.cause()["traceback"]


def test_a_worker_groups_process_that_fails_before_it_begins_reports_why(
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
