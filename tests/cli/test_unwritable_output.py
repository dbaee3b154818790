"""Output that cannot be written: a closed pipe, a full disk, closed streams."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.command import Cli


@pytest.mark.parametrize("args", [["--help"], ["local", "--help"], ["ls"], ["config"], ["--version"]])
def test_a_reader_that_closes_the_pipe_is_not_an_error(distlaunch: Cli, args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)

    done = distlaunch(*args, stdout=write)
    os.close(write)

    assert (done.exit_code, done.stderr.replace(f"no runs in {distlaunch.runs}\n", "")) == (0, "")


def test_without_a_reader_the_exit_code_is_still_the_runs(distlaunch: Cli) -> None:
    distlaunch.write("fails.py", "print('a line')\nraise SystemExit(3)\n")
    distlaunch("local", "fails.py")
    read, write = os.pipe()
    os.close(read)

    commands = (["wait", "last"], ["status", "--exit-code", "last"], ["logs", "--exit-code", "last"])
    codes = [distlaunch(*args, stdout=write).exit_code for args in commands]
    plain = distlaunch("logs", "last", stdout=write).exit_code
    os.close(write)

    assert (codes, plain) == ([1, 1, 1], 0)


def test_a_result_that_cannot_be_written_is_an_error(distlaunch: Cli) -> None:
    with open("/dev/full", "wb") as full:
        done = distlaunch("--version", stdout=full)

    assert done.exit_code == 4
    assert os.strerror(errno.ENOSPC) in done.stderr


def test_closed_standard_streams_are_not_an_error(distlaunch: Cli) -> None:
    script = 'exec "$0" -m launcher config <&- >&- 2>&-'

    done = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable], env=distlaunch.env(), cwd=distlaunch.directory, timeout=60
    )

    assert done.returncode == 0
    assert (
        subprocess.run(
            ["/bin/sh", "-c", script.replace("config", "none"), sys.executable], env=distlaunch.env()
        ).returncode
        == 2
    )


@pytest.mark.parametrize(
    "words",
    [["--help"], [], ["--version"], ["doctor"], ["doctor", "k8s", "--help"], ["local", "-h"], ["ls", "-h"], ["config"]],
)
def test_output_that_cannot_be_printed_is_one_error(distlaunch: Cli, words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = distlaunch(*words, stdout=full)

    assert done.exit_code == 4
    assert "Traceback" not in done.stderr
    assert "error[storage]: cannot write to stdout: No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 2, "a warning before it"


def test_completion_that_cannot_be_printed_is_not_a_traceback(distlaunch: Cli) -> None:
    env: dict[str, str | None] = {
        "_DISTLAUNCH_COMPLETE": "complete_bash",
        "COMP_WORDS": "distlaunch lo",
        "COMP_CWORD": "1",
    }
    with open("/dev/full", "wb") as full:
        done = distlaunch(env=env, stdout=full)

    assert "local" in distlaunch(env=env).stdout.split()
    assert (done.exit_code, "Traceback" in done.stderr) == (4, False)


@pytest.mark.parametrize("where", ["full", "closed"])
def test_a_run_that_continues_is_named_if_its_id_cannot_be_printed(distlaunch: Cli, where: str) -> None:
    """A script that mistakes the failure for a failed launch would start a second run."""
    distlaunch.write("waits.py", "import signal\nsignal.pause()\n")
    if where == "full":
        stdout = os.open("/dev/full", os.O_WRONLY)
    else:
        unread, stdout = os.pipe()
        os.close(unread)
    try:
        done = distlaunch("local", "--detach", "waits.py", stdout=stdout)
        (run,) = [path.name for path in distlaunch.runs.iterdir()]
        ended = distlaunch("cancel", "--force", run, stdout=stdout)
    finally:
        os.close(stdout)

    assert done.exit_code == 4
    reason = "cannot write to stdout: No space left on device" if where == "full" else "no one reads stdout"
    assert f"error[storage]: {reason}; {run} continues\n  hint: to end it: distlaunch cancel {run}" in done.stderr
    assert ended.exit_code == (4 if where == "full" else 0)
    assert (f"{reason}; {run}: cancelled" in ended.stderr) == (where == "full")
    assert distlaunch("status", run, "--output", "json").json["result"]["state"] == "cancelled"
    with open("/dev/full", "wb") as full:
        again = distlaunch("requeue", run, stdout=full)
    assert distlaunch("cancel", "--force", run).exit_code == 0
    assert again.exit_code == 4
    assert f"{run} continues as attempt 1" in again.stderr
