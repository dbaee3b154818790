"""Real runs on this host, followed by a real launcher."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.following import WAITS, agents, end, nothing_is_left, recorded, until  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from tests.command import Cli, Result


def test_arguments_after_the_script_reach_it_untouched(distlaunch: Cli) -> None:
    distlaunch.write(
        "args.py", "import os, sys\nos.write(1, repr([os.fsencode(a) for a in sys.argv[1:]]).encode() + b'\\n')\n"
    )
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


def test_one_rank_is_shown_byte_by_byte_and_success_is_reported(distlaunch: Cli) -> None:
    distlaunch.write(
        "out.py", "import os\nos.write(1, b'50%\\r100%\\n\\xff\\x00 no newline')\nos.write(2, b'err\\n')\n"
    )
    with distlaunch.start("local", "--nodes", "2", "out.py") as process:
        stdout, stderr = process.communicate(timeout=60)

    assert process.returncode == 0, stderr
    assert stdout == b"50%\r100%\n\xff\x00 no newline"
    assert re.search(rb"^err\n", stderr, re.MULTILINE)
    assert re.search(rb"started: 2 nodes, 2 ranks \(master 127.0.0.1:\d+\)", stderr)
    assert re.search(rb"success after .* out-", stderr)


def test_lines_of_several_ranks_are_labelled_and_whole(distlaunch: Cli) -> None:
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


def test_a_worker_killed_by_a_signal_fails_the_run_and_its_last_output_is_shown(distlaunch: Cli) -> None:
    distlaunch.write(
        "die.py",
        "import os, signal, sys\nprint('last words', file=sys.stderr, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n",
    )

    done = distlaunch("local", "-q", "die.py", env={"DISTLAUNCH_LOG_RANKS": "7"})

    assert done.exit_code == 1
    assert "signal SIGSEGV" in done.stderr
    assert "    last words" in done.stderr


def test_a_run_that_reaches_its_time_limit_exits_with_124(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)

    done = distlaunch("local", "--time", "2s", "--grace", "1s", "waits.py")

    assert (done.exit_code, recorded(distlaunch)["state"]) == (124, "timeout"), done.stderr


def test_a_run_continues_when_its_output_is_not_read(distlaunch: Cli) -> None:
    os.mkfifo(distlaunch.directory / "go")
    distlaunch.write(
        "out.py",
        "print('first', flush=True)\nopen('go').read()\nprint('x' * 300_000)\nopen('done', 'w')\nraise SystemExit(7)\n",
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


def test_an_agent_that_is_killed_is_the_cause(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    with distlaunch.start("local", "waits.py") as process:
        until(process, b"ready")
        agents(distlaunch)[0].send(signal.SIGKILL)
        code, stderr = end(process)

    assert code == 1
    assert re.search(r"^  a process was killed: the agent \(pid \d+\) was killed by SIGKILL$", stderr, re.MULTILINE), (
        stderr
    )
    assert "stderr" not in stderr, "what its workers, or an import, have written is not a reason"


def test_a_detached_run_is_seen_followed_and_cancelled_from_elsewhere(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    run = distlaunch("local", "--detach", "--nodes", "2", "--grace", "2s", "waits.py").stdout.strip()
    with distlaunch.start("logs", "-f", "last") as process:
        for _ in range(2):  # of both, in any order: the workers of a node are not known until it has reported them
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
    # It answers whether it has torch, and is removed by the time it is to be started.
    distlaunch.write("python", "#!/bin/sh\nrm ./python\n").chmod(0o755)

    done = distlaunch("local", "--python", "./python", "x.py")

    assert done.exit_code == 4
    assert recorded(distlaunch)["state"] == "failed"
    assert "failed" in distlaunch("ls").stdout


def test_the_use_of_a_bundled_script_is_reported(distlaunch: Cli) -> None:
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
def test_the_rule_for_threads_is_explained_on_request(
    distlaunch: Cli, workers: str, given: str | None, said: str
) -> None:
    distlaunch.write("threads.py", "import os\nprint(os.environ.get('OMP_NUM_THREADS'))\n")

    done = distlaunch("local", "--explain", "--nproc-per-node", workers, "threads.py", env={"OMP_NUM_THREADS": given})

    assert done.exit_code == 0, done.stderr
    assert f": {said}" in done.stderr
    assert done.stdout.strip() == str({"2": "1", "1": None}[workers] if given is None else given)
