"""Signals and Ctrl-C to a launcher that starts or follows a run."""

from __future__ import annotations

import json
import signal
from functools import partial

import pytest

from tests.cli import steps
from tests.cli.following import (
    WAITS,
    agents,
    end,
    nothing_is_left,  # noqa: F401 - a fixture
    recorded,
    until,
    until_stderr,
)
from tests.command import Cli, Result


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


def test_a_hangup_that_is_to_detach_leaves_the_run_and_blocks_no_signal_of_the_workers(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", "import signal\nprint(signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n" + WAITS)
    with distlaunch.start("local", "--on-hangup", "detach", "waits.py") as process:
        assert b"set()" in until(process, b"ready")
        process.send_signal(signal.SIGHUP)
        code, stderr = end(process)

    assert (code, "to come back: distlaunch attach waits-" in stderr) == (5, True)
    assert "state    running" in distlaunch("status", "last").stdout
    assert distlaunch("cancel", "--force", "last").exit_code == 0


CTRL_C = """
import os, signal, sys
from launcher.cli import main
from launcher.service import waiting
signal.signal(signal.SIGINT, signal.default_int_handler)
waiting.look = lambda run: os.kill(os.getpid(), signal.SIGINT)
sys.exit(main())
"""


def test_ctrl_c_ends_json_with_an_error_that_says_so(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    run = distlaunch("local", "--detach", "waits.py").stdout.strip()
    done = [distlaunch("wait", "--output", "json", run, python=("-c", CTRL_C), real=True)]
    with distlaunch.start("logs", "-f", "--output", "json", run) as process:
        assert process.stdout
        until(process, b"ready")
        process.send_signal(signal.SIGINT)
        last = process.stdout.readlines()[-1].decode()
    done.append(Result(process.returncode, last, ""))

    for each, command in zip(done, ("wait", "logs"), strict=True):
        assert each.exit_code == 130
        assert (each.json["command"], each.json["ok"], each.json["error"]["code"]) == (command, False, "interrupted")
    assert distlaunch("cancel", "--force", run).exit_code == 0


def test_the_second_ctrl_c_does_not_wait_for_the_grace_time(distlaunch: Cli) -> None:
    distlaunch.write("stubborn.py", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS)
    with distlaunch.start("local", "--grace", "100s", "stubborn.py") as process:
        until(process, b"ready")
        process.send_signal(signal.SIGINT)
        until_stderr(process, b"stopping: cancelled")
        process.send_signal(signal.SIGINT)
        code, stderr = end(process)

    assert code == 130
    assert "killing stubborn-" in stderr
    assert recorded(distlaunch)["state"] == "cancelled"


def test_force_is_not_lost_on_an_agent_that_receives_both_signals_at_once(distlaunch: Cli) -> None:
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
"""A module that, once preloaded, kills each forked process before anything else runs there: here only the worker."""


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
"""The launcher, with Ctrl-C at the MOMENT-th module that it imports, or step that it takes with files and processes."""


def test_ctrl_c_while_the_command_line_is_imported_is_quiet(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    distlaunch.write("interrupted.py", INTERRUPTED)
    steps = int(
        distlaunch(
            "imports", "0", "local", "--dry-run", "-q", "waits.py", python=("interrupted.py",), real=True
        ).stdout.split()[-1]
    )
    assert steps > 100

    for moment in range(1, steps * 9 // 10, steps // 12):  # what a dry run imports last, a launch does after its start
        done = distlaunch("imports", str(moment), "local", "waits.py", python=("interrupted.py",), real=True)

        assert (done.exit_code, done.stdout, done.stderr) == (130, "", ""), f"at import {moment} of {steps}"
    assert not distlaunch.runs.exists()


def interrupted_at(distlaunch: Cli, moment: int) -> bool:
    """Check a launch with Ctrl-C at that step; whether there is such a step, else Ctrl-C comes at the first line."""
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


def test_usr1_reaches_the_workers(distlaunch: Cli) -> None:
    handler = (
        "import signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: (print('got it', flush=True), sys.exit(0)))\n"
    )
    distlaunch.write("usr.py", handler + WAITS)
    with distlaunch.start("local", "usr.py") as process:
        until(process, b"ready")
        process.send_signal(signal.SIGUSR1)
        until(process, b"got it")
        code, stderr = end(process)

    assert code == 0, stderr
