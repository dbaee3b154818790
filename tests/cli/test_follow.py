"""Real runs on this machine, followed by a real launcher."""

from __future__ import annotations

import json
import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from launcher.system.proc import Identity
from tests.cli import steps
from tests.command import Cli

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.command import Result

WAITS = "import signal\nprint('ready', flush=True)\nwhile True:\n    signal.pause()\n"


@pytest.fixture(autouse=True)
def nothing_is_left(distlaunch: Cli) -> Iterator[None]:
    """Every process that a test's runs had is gone at its end, recorded or not."""
    yield
    _, left = psutil.wait_procs(processes(distlaunch), timeout=60)
    told = [process.as_dict(["pid", "cmdline", "cwd", "create_time"]) for process in left]
    for process in left:
        process.kill()
    assert not told


def processes(distlaunch: Cli) -> list[psutil.Process]:
    """Those that work for a test: with its directory in their command line, or as their working directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        where = " ".join([*(process.info["cmdline"] or ()), process.info["cwd"] or ""])
        if str(distlaunch.directory) in where:
            found.append(process)
    return found


def agents(distlaunch: Cli) -> list[Identity]:
    """The agents of all runs so far."""
    handles = [json.loads(path.read_text())["handle"] for path in distlaunch.runs.glob("*/run.json")]
    return [Identity(agent["pid"], agent["start_ticks"]) for handle in handles if handle for agent in handle["agents"]]


def recorded(distlaunch: Cli) -> dict[str, Any]:
    """The only run's result."""
    (path,) = distlaunch.runs.glob("*/result.json")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """What the process writes to stdout, up to a line with that text."""
    assert process.stdout
    seen = b""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"{text!r} did not come: {seen!r}, {process.stderr.read() if process.stderr else b''!r}")


def heard(process: subprocess.Popen[bytes], text: bytes) -> None:
    """Read its stderr up to a line with that text."""
    assert process.stderr
    seen = b""
    for line in process.stderr:
        seen += line
        if text in line:
            return
    raise AssertionError(f"{text!r} was not said: {seen!r}")


def end(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit code and stderr."""
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr.decode()


def test_arguments_after_the_script_reach_it_untouched(distlaunch: Cli) -> None:
    distlaunch.write("args.py", "import os, sys\nos.write(1, repr([os.fsencode(a) for a in sys.argv[1:]]).encode() + b'\\n')\n")
    args: list[str | bytes] = [
        "a b",
        "it's",
        '"q"',
        "$HOME",
        "new\nline",
        "ünï",
        "--nodes",
        "-x",
        "--",
        "--help",
        "",
        "*",
        b"\xff\xfe",
    ]

    done = distlaunch("local", "args.py", *args)

    assert done.exit_code == 0, done.stderr
    assert done.stdout == repr([arg if isinstance(arg, bytes) else arg.encode() for arg in args]) + "\n"


def test_one_rank_is_shown_byte_by_byte_and_success_is_said(distlaunch: Cli) -> None:
    distlaunch.write("out.py", "import os\nos.write(1, b'50%\\r100%\\n\\xff\\x00 no newline')\nos.write(2, b'err\\n')\n")
    with distlaunch.start("local", "--nodes", "2", "out.py") as process:
        stdout, stderr = process.communicate(timeout=60)

    assert process.returncode == 0, stderr
    assert stdout == b"50%\r100%\n\xff\x00 no newline"
    assert re.search(rb"^err\n", stderr, re.MULTILINE)
    assert re.search(rb"started: 2 nodes, 2 ranks \(master 127.0.0.1:\d+\)", stderr)
    assert re.search(rb"success after .* out-", stderr)


def test_lines_of_several_ranks_are_marked_and_whole(distlaunch: Cli) -> None:
    code = "import os, sys\nfor i in range(300): sys.stdout.write(f'{os.environ[\"RANK\"]}:{i}:' + 'x' * 50 + '\\n')\n"
    distlaunch.write("out.py", code)

    done = distlaunch("local", "--nodes", "2", "--nproc-per-node", "2", "--log-ranks", "all", "out.py")

    lines = done.stdout.splitlines()
    assert len(lines) == 1200
    assert all(re.fullmatch(r"\[(\d):(\d)\] \2:\d+:x{50}", line) for line in lines)
    assert [line for line in lines if line.startswith("[1:3]")] == [f"[1:3] 3:{i}:{'x' * 50}" for i in range(300)]


def failing(distlaunch: Cli, *args: str) -> Result:
    distlaunch.write(
        "fail.py", "import os, signal\nif os.environ['RANK'] == '3':\n    raise ValueError('boom')\nsignal.pause()\n"
    )
    return distlaunch("local", "--nodes", "2", "--nproc-per-node", "2", *args, "fail.py")


def test_the_first_failure_is_shown_once_with_its_place_and_traceback(distlaunch: Cli) -> None:
    done = failing(distlaunch, "-q")

    assert done.exit_code == 1
    assert done.stderr.count("ValueError: boom") == 2, "in the summary and at the end of the one traceback"
    assert done.stderr.count("Traceback") == 1
    assert re.search(r"first failure: rank 3, host \S+, node 1, exit code 1", done.stderr)


def test_json_of_a_failed_run_has_error_and_result_alone_on_stdout(distlaunch: Cli) -> None:
    done = failing(distlaunch, "--output", "json")

    assert done.exit_code == 1
    assert done.json["ok"] is False
    assert done.json["error"]["code"] == "run_failed"
    assert done.json["result"]["state"] == "failed"
    assert done.json["result"]["cause"]["rank"] == 3
    assert done.json["result"]["exit_code"] == 1
    assert recorded(distlaunch)["cause"] == done.json["result"]["cause"]


def test_a_worker_killed_by_a_signal_fails_the_run_with_its_last_words(distlaunch: Cli) -> None:
    distlaunch.write(
        "die.py",
        "import os, signal, sys\nprint('last words', file=sys.stderr, flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    )

    done = distlaunch("local", "-q", "die.py", env={"DISTLAUNCH_LOG_RANKS": "7"})

    assert done.exit_code == 1
    assert "signal SIGSEGV" in done.stderr
    assert "    last words" in done.stderr


def test_the_time_limit_gives_124(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)

    done = distlaunch("local", "--time", "2s", "--grace", "1s", "waits.py")

    assert (done.exit_code, recorded(distlaunch)["state"]) == (124, "timeout"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_cancels_the_run(distlaunch: Cli, number: signal.Signals) -> None:
    distlaunch.write("waits.py", WAITS)
    with distlaunch.start("local", "--nodes", "2", "--grace", "2s", "waits.py") as process:
        until(process, b"ready")
        process.send_signal(number)
        code, stderr = end(process)

    assert code == 130, stderr
    assert "cancelling waits-" in stderr
    assert "Traceback" not in stderr
    assert recorded(distlaunch)["state"] == "cancelled"


def test_the_second_ctrl_c_does_not_wait_for_the_grace_time(distlaunch: Cli) -> None:
    distlaunch.write("stubborn.py", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS)
    with distlaunch.start("local", "--grace", "100s", "stubborn.py") as process:
        until(process, b"ready")
        process.send_signal(signal.SIGINT)
        heard(process, b"stopping: cancelled")
        process.send_signal(signal.SIGINT)
        code, stderr = end(process)

    assert code == 130
    assert "killing stubborn-" in stderr
    assert recorded(distlaunch)["state"] == "cancelled"


def test_force_is_not_lost_on_an_agent_that_hears_both_signals_at_once(distlaunch: Cli) -> None:
    distlaunch.write("stubborn.py", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS)
    run = distlaunch("local", "--detach", "--grace", "300s", "stubborn.py").stdout.strip()
    with distlaunch.start("logs", "-f", run) as process:
        until(process, b"ready")
        (agent,) = agents(distlaunch)
        agent.send(signal.SIGSTOP)  # two signals that wait are one
        asked = distlaunch("cancel", "--force", "--no-wait", run)
        agent.send(signal.SIGCONT)
        end(process)

    assert (asked.exit_code, asked.stdout) == (0, f"{run}: stopping\n")
    assert distlaunch("cancel", run).stdout == f"{run}: cancelled\n"


EARLY = """
import os, signal
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
"""
"""A module that, once it is preloaded, ends whatever is forked before anything else runs there: here that is the worker alone."""


def test_a_signal_that_comes_before_a_workers_first_line_is_not_lost(distlaunch: Cli) -> None:
    distlaunch.write("early.py", EARLY)
    distlaunch.write("script.py", "print('never')\n")

    done = distlaunch("local", "-q", "--preload", "early", "script.py")

    assert (done.exit_code, done.stdout) == (1, "")
    assert "signal SIGTERM" in done.stderr


INTERRUPTED = """
import os, signal, sys
def main(kind, moment, *args):
    seen = 0
    def is_step(event, args):
        if kind == "imports":
            return event == "import"
        if event == "open":
            return str(args[0]).endswith(("/spec.json", "/stream"))
        return event in ("os.rename", "subprocess.Popen") or (event == "os.mkdir" and "/nodes" not in args[0])
    def interrupt(event, args):
        nonlocal seen
        if is_step(event, args):
            seen += 1
            if seen == int(moment):
                open(f"reached {seen}", "w").close()
                os.kill(os.getpid(), signal.SIGINT)
    from launcher.cli import main
    sys.addaudithook(interrupt)
    code = main(args)
    if moment == "0":
        print(seen)
    return code
sys.exit(main(*sys.argv[1:]))
"""
"""The launcher, with a Ctrl-C at the MOMENT-th module that it imports, or step that it takes with files and processes."""


def test_ctrl_c_while_the_command_line_is_imported_is_quiet(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    distlaunch.write("interrupted.py", INTERRUPTED)
    steps = int(
        distlaunch("imports", "0", "local", "--dry-run", "-q", "waits.py", python=("interrupted.py",), real=True).stdout.split()[
            -1
        ]
    )
    assert steps > 100

    for moment in range(1, steps, steps // 12):
        done = distlaunch("imports", str(moment), "local", "waits.py", python=("interrupted.py",), real=True)

        assert (done.exit_code, done.stdout, done.stderr) == (130, "", ""), f"at import {moment} of {steps}"
    assert not distlaunch.runs.exists()


def interrupted_at(distlaunch: Cli, moment: int) -> bool:
    """Check what becomes of a launch with a Ctrl-C at that step; whether there is one, else it comes at the first line."""
    cli = Cli(distlaunch.directory / str(moment))
    cli.write("waits.py", WAITS)
    cli.write("interrupted.py", INTERRUPTED)
    reached = cli.directory / f"reached {moment}"
    with cli.start("steps", str(moment), "local", "--grace", "1s", "waits.py", python=("interrupted.py",)) as process:
        assert process.stdout
        process.stdout.readline()
        if not reached.exists():
            process.send_signal(signal.SIGINT)
        exit_code, stderr = end(process)
    assert exit_code == 130, f"at step {moment}: {stderr}"
    assert "Traceback" not in stderr, f"at step {moment}: {stderr}"
    for run in cli.runs.glob("[!.]*"):
        assert json.loads((run / "result.json").read_text())["state"] == "cancelled", f"at step {moment}"
    return reached.exists()


@pytest.mark.slow
def test_ctrl_c_at_any_step_of_a_launch_leaves_no_traceback_and_nothing_running(distlaunch: Cli) -> None:
    assert steps.count(partial(interrupted_at, distlaunch)) > 9


def test_a_run_goes_on_when_nobody_reads_its_output(distlaunch: Cli) -> None:
    os.mkfifo(distlaunch.directory / "go")
    distlaunch.write(
        "out.py", "print('first', flush=True)\nopen('go').read()\nprint('x' * 300_000)\nopen('done', 'w')\nraise SystemExit(7)\n"
    )
    with distlaunch.start("local", "out.py") as process:
        assert process.stdout
        until(process, b"first")
        process.stdout.close()
        process.stdout = None
        (distlaunch.directory / "go").write_text("")
        code, stderr = end(process)

    assert code == 1
    assert "Traceback" not in stderr
    assert (distlaunch.directory / "done").exists()
    assert recorded(distlaunch)["cause"]["exit_code"] == 7


def test_usr1_reaches_the_workers(distlaunch: Cli) -> None:
    handler = "import signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: (print('got it', flush=True), sys.exit(0)))\n"
    distlaunch.write("usr.py", handler + WAITS)
    with distlaunch.start("local", "usr.py") as process:
        until(process, b"ready")
        process.send_signal(signal.SIGUSR1)
        until(process, b"got it")
        code, stderr = end(process)

    assert code == 0, stderr


def test_an_agent_that_is_killed_is_the_cause(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    with distlaunch.start("local", "waits.py") as process:
        until(process, b"ready")
        agents(distlaunch)[0].send(signal.SIGKILL)
        code, stderr = end(process)

    assert code == 1
    assert re.search(r"^  a process was killed: the agent \(pid \d+\) was killed by SIGKILL$", stderr, re.MULTILINE), stderr
    assert "stderr" not in stderr, "what its workers, or an import, have written is no reason"


def test_a_detached_run_is_seen_followed_and_cancelled_from_elsewhere(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    run = distlaunch("local", "--detach", "--nodes", "2", "--grace", "2s", "waits.py").stdout.strip()
    with distlaunch.start("logs", "-f", "last") as process:
        for _ in range(2):  # of both, in any order: the workers of a node that has not told of them are not known yet
            until(process, b" ready")
        assert distlaunch("ls", "--output", "json").json["result"]["runs"][0]["state"] == "running"
        status = distlaunch("status", run, "--output", "json").json["result"]
        assert [(node["ranks"], node["workers"]) for node in status["nodes"]] == [([0], 1), ([1], 1)]

        done = distlaunch("cancel", run[:9])

        assert (done.exit_code, done.stdout) == (0, f"{run}: cancelled\n")
        assert end(process)[0] == 0
    assert "cancelled" in distlaunch("status", run).stdout
    assert distlaunch("cancel", run).stdout == f"{run}: cancelled\n"
    assert sorted(distlaunch("logs", run).stdout.splitlines()) == ["[0:0] ready", "[1:1] ready"]
    assert distlaunch("logs", run, "--rank", "1").stdout == "ready\n"
    assert distlaunch("logs", run, "--rank", "7").stderr.endswith(f"{run}: no line of rank 7\n")
    assert distlaunch("logs", run, "--node", "1").stdout == "[1:1] ready\n"
    assert distlaunch("logs", run, "--node", "2").exit_code == 2


def test_a_run_that_cannot_be_submitted_is_recorded_as_failed(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "import torch\n")
    # It answers the question whether it has torch, and is gone when it is to be started.
    distlaunch.write("python", "#!/bin/sh\nrm ./python\n").chmod(0o755)

    done = distlaunch("local", "--python", "./python", "x.py")

    assert done.exit_code == 4
    assert recorded(distlaunch)["state"] == "failed"
    assert "failed" in distlaunch("ls").stdout


def test_a_bundled_script_is_said_to_be_used(distlaunch: Cli) -> None:
    done = distlaunch("local", "--dry-run", "train.py")
    assert "using the bundled train.py" in done.stderr
    planned = distlaunch("local", "--dry-run", "--output", "json", "train.py").json["result"]["plan"]
    script = Path(planned["spec"]["command"][0])
    assert (script.is_absolute(), script.name, script.is_file()) == (True, "train.py", True)


@pytest.mark.parametrize(
    ("workers", "given", "said"),
    [
        ("2", None, "OMP_NUM_THREADS=1 (several workers share the host"),
        ("1", None, "OMP_NUM_THREADS is not set (one worker has the host"),
        ("2", "3", "OMP_NUM_THREADS=3 (as it was set)"),
    ],
)
def test_the_rule_for_threads_is_told_on_request(distlaunch: Cli, workers: str, given: str | None, said: str) -> None:
    distlaunch.write("threads.py", "import os\nprint(os.environ.get('OMP_NUM_THREADS'))\n")

    done = distlaunch("local", "--explain", "--nproc-per-node", workers, "threads.py", env={"OMP_NUM_THREADS": given})

    assert done.exit_code == 0, done.stderr
    assert f": {said}" in done.stderr
    assert done.stdout.strip() == str({"2": "1", "1": None}[workers] if given is None else given)
