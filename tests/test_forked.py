"""The tests' fork server: to itself and its owner a process is like any other, and it ends with its owner."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from testbed import wait_until
from tests.command import ROOT, Cli
from tests.forked import Process, Server, started

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHOW = """
import atexit, json, os, signal, sys, threading
class Late:
    def __del__(self):
        os.write(1, b"destroyed\\n")
late = Late()
kept = open("kept", "w")
kept.write("flushed without being closed")
atexit.register(lambda: print("exit hook", flush=True))
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread joined"))).start()
fds = [fd for fd in range(3, 64) if os.path.exists(f"/proc/self/fd/{fd}")]
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "argv": sys.argv, "orig": sys.orig_argv, "path": sys.path, "env": dict(os.environ), "cwd": os.getcwd(),
    "file": __file__,
    "umask": os.umask(0), "name": __name__, "main": sorted(vars(sys.modules["__main__"])), "spec": str(__spec__),
    "fds": fds,
    "signals": {number: str(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
    "native": {name: status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt", "Threads")},
    "cmdline": open("/proc/self/cmdline", encoding="latin-1").read().rstrip("\\0").split("\\0"),
    "flags": str(sys.flags), "stdin": sys.stdin.read(),
    "streams": [[str(s), s.line_buffering, s.errors, s.isatty()] for s in (sys.stdin, sys.stdout, sys.stderr)],
    "leader": os.getsid(0) == os.getpid(), "group": os.getpgid(0) == os.getpid(),
}))
print("unflushed", end="")
sys.stderr.write("to stderr")
"""
RAISES = "import sys\ndef inner():\n    raise ValueError('boom')\nprint('before', end='')\ninner()\n"
PATIENT = (
    "import atexit, os, sys, time\natexit.register(lambda: os.write(1, b'hooks\\n'))\n"
    "print('up', flush=True)\ntime.sleep(600)\n"
)

ENV = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture(scope="module")
def server() -> Any:
    server = Server(["json", "threading", "subprocess", "multiprocessing.process"], env=ENV)
    yield server
    server.close()


def starters(server: Server) -> list[Callable[..., Any]]:
    def forked(argv: list[str], **options: Any) -> subprocess.Popen[Any]:
        assert server.why_not(argv, **options) is None
        return Process(server, argv, **options)

    return [forked, started]


def both(server: Server, argv: list[str], given: bytes = b"", **options: Any) -> tuple[Any, Any]:
    """The exit code and the output of a command, when it is forked and when it is started."""
    found = []
    for start in starters(server):
        with start(argv, **{"stdin": -1, "stdout": -1, "stderr": -1, "env": ENV, **options}) as process:
            stdout, stderr = process.communicate(given, timeout=60)
        found.append(
            (process.returncode, re.sub(rb"0x[0-9a-f]+", b"0x", stdout), re.sub(rb"0x[0-9a-f]+", b"0x", stderr))
        )
    return found[0], found[1]


def check_same(forked: bytes, real: bytes) -> None:
    """Fail unless both have seen the same."""
    (one, lines), (other, others) = seen(forked), seen(real)
    assert {name: (one.get(name), value) for name, value in other.items() if one.get(name) != value} == {}
    assert lines == others == [b"destroyed", b"exit hook", b"unflushedthread joined"]


def seen(stdout: bytes) -> tuple[Any, list[bytes]]:
    """What SHOW has printed as JSON, and its other lines."""
    lines = stdout.splitlines()
    return json.loads(next(line for line in lines if line.startswith(b"{"))), sorted(
        line for line in lines if not line.startswith(b"{")
    )


def test_a_script_sees_and_does_the_same(server: Server, tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/show.py").write_text(SHOW)
    argv = [sys.executable, "directory/show.py", "a b", "", "--", "ünï", "\udcff"]
    env = {**ENV, "PYTHONPATH": f"{tmp_path}:relative:{ROOT}", "ODD": "new\nline", "TZ": "Asia/Tokyo"}
    before = os.umask(0o027)
    try:
        for session, more in ((False, {}), (True, {"PYTHONUNBUFFERED": "1"})):
            forked, real = both(server, argv, b"given", cwd=tmp_path, env=env | more, start_new_session=session)

            check_same(forked[1], real[1])
            assert (forked[0], forked[2]) == (real[0], real[2]) == (0, b"to stderr")
            assert seen(forked[1])[0]["stdin"] == "given"
            assert (tmp_path / "kept").read_text() == "flushed without being closed"
    finally:
        os.umask(before)


def test_a_module_sees_the_same(server: Server, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__main__.py").write_text(SHOW)

    forked, real = both(server, [sys.executable, "-m", "package", "x"], cwd=tmp_path)

    check_same(forked[1], real[1])
    assert (forked[0], forked[2]) == (real[0], real[2])


@pytest.mark.parametrize(
    "script",
    [
        "", "raise SystemExit(3)", "raise SystemExit('words')", "raise SystemExit(-1)", RAISES, "x = (",
        "raise KeyboardInterrupt", "import os; os._exit(7)", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "import atexit\n@atexit.register\ndef hook():\n    raise ValueError('late')\n", "import nothing_of_that_name",
        "import sys; sys.stdout.close()", "import os; os.close(1); print('lost')",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'])",
    ],
)  # fmt: skip
def test_scripts_end_in_the_same_way(server: Server, tmp_path: Path, script: str) -> None:
    (tmp_path / "ends.py").write_text(script)

    forked, real = both(server, [sys.executable, "ends.py"], cwd=tmp_path)

    assert forked == real


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1])
def test_signals_have_the_same_effect(server: Server, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "patient.py").write_text(PATIENT)
    found = []
    for start in starters(server):
        with start([sys.executable, "patient.py"], cwd=tmp_path, env=ENV, stdout=-1, stderr=-1) as process:
            assert process.stdout.readline() == b"up\n"
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            child = psutil.Process(process.pid)  # it is to be interrupted where it sleeps, not before
            wait_until("it to sleep", lambda: child.status() == psutil.STATUS_SLEEPING, every_s=0.01)  # noqa: B023
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=60)
        assert process.wait() == process.poll() == process.returncode
        found.append((process.returncode, stdout, stderr))

    assert found[0] == found[1]
    assert found[0][0] == -number


def test_a_thread_that_waits_learns_of_an_end_that_another_thread_has_seen(server: Server) -> None:
    """Whichever of them takes the message."""
    for _ in range(50):
        process = server.popen(["time:sleep"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        waiting = threading.Thread(target=process.wait, daemon=True)
        waiting.start()
        while process.poll() is None:
            pass
        waiting.join(60)

        assert not waiting.is_alive()
        assert process.returncode == 1, "it calls sleep without a number"


def test_a_function_is_called_like_an_entry_point(server: Server) -> None:
    done = server.run(["platform:python_version"], env=ENV, capture_output=True, text=True)

    assert (done.returncode, done.stderr.strip()) == (1, sys.version.split()[0]), "sys.exit() prints what is no number"


@pytest.mark.parametrize(
    "options",
    [
        {"argv": ["/bin/echo", "x"]}, {"argv": [sys.executable, "-c", "pass"]}, {"argv": [sys.executable, "none.py"]},
        {"env": {"PYTHONHASHSEED": "1"}}, {"cwd": "shadows"}, {"preexec_fn": print}, {"env": {"LC_ALL": "C"}},
    ],
)  # fmt: skip
def test_what_a_fork_cannot_do_is_started_as_usual(server: Server, tmp_path: Path, options: dict[str, Any]) -> None:
    for directory in (tmp_path, tmp_path / "shadows"):
        directory.mkdir(exist_ok=True)
        (directory / "x.py").write_text("import sys; sys.exit(5)")
    (tmp_path / "shadows/json.py").write_text("")
    how = {"argv": [sys.executable, "x.py"], "env": ENV, **options, "cwd": tmp_path / options.get("cwd", "")}
    if "env" in options:
        how["env"] = {**ENV, **options["env"]}

    assert server.why_not(**how) is not None
    with server.popen(**how, stdout=-1, stderr=-1) as process:
        process.communicate(timeout=60)
    assert type(process) is subprocess.Popen


def test_commands_are_forked(distlaunch: Cli, cli_server: Server) -> None:
    """Otherwise the tests would still pass, but take twice as long."""
    argv = [sys.executable, "-m", "launcher", "ls"]

    assert cli_server.why_not(argv, env=distlaunch.env(), cwd=distlaunch.directory) is None


def test_a_module_that_runs_a_program_on_import_can_be_preloaded(tmp_path: Path) -> None:
    """As matplotlib does on its first import on a host, to find fonts."""
    (tmp_path / "runs_one.py").write_text(
        "import os, subprocess\nsubprocess.run(['true'], check=True)\nos.environ['ASKED']\n"
    )
    (tmp_path / "x.py").touch()
    server = Server(["runs_one"], [str(tmp_path)], {**ENV, "ASKED": "1"})
    try:
        argv = [sys.executable, "x.py"]
        assert server.why_not(argv, env={**ENV, "ASKED": "1"}, cwd=tmp_path) is None
        assert "ASKED" in str(server.why_not(argv, env={**ENV, "ASKED": "2"}, cwd=tmp_path))
    finally:
        server.close()


OWNER = """
import os, sys
from tests.forked import Server
server = Server(["json"])
children = [server.popen([sys.executable, "patient.py"], stdout=-1) for _ in range(2)]
for child in children:
    child.stdout.readline()
print(server._process.pid, *(child.pid for child in children), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, 0])
def test_the_server_and_its_children_end_with_their_owner(tmp_path: Path, number: int) -> None:
    (tmp_path / "patient.py").write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)\n" + PATIENT)
    env = {**ENV, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", OWNER], cwd=tmp_path, env=env, stdin=-1, stdout=-1) as owner:
        assert owner.stdout
        assert owner.stdin
        left = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(left) == 3
        if number:
            owner.send_signal(number)
        else:
            owner.stdin.close()
        _, alive = psutil.wait_procs(left, timeout=60)
        owner.wait(60)

    assert not alive
