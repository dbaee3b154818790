"""`distlaunch stacks` shows where each rank is, and names the one that hangs, however it does."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.hangs.conftest import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.command import Cli
    from tests.hangs.conftest import DeadFile


def stacks(distlaunch: Cli, run: str, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = distlaunch("stacks", run, *words, "--output", "json").json["result"]
    return found


def until(distlaunch: Cli, run: str, pattern: str) -> str:
    """What the last rank does, once that matches."""
    limit = time.monotonic() + LIMIT_S
    while True:
        groups = stacks(distlaunch, run)["groups"]
        said = next((group["summary"] for group in groups if group["ranks"] == [3]), "")
        if re.fullmatch(pattern, said) and groups[0]["ranks"] == [0, 1, 2]:
            return str(groups[0]["summary"])
        assert time.monotonic() < limit, groups


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "pattern"),
    [
        ("stopped", r"does not answer: T \(stopped\)"),
        ("asleep", r"is in time\.sleep\(\) \(hang\.py:9\)"),
        ("left out", r"is in (time\.sleep\(\)|odd) \(hang\.py:1[12].*\)"),
    ],
)
def test_the_rank_that_does_not_come_is_named(
    distlaunch: Cli, start: Callable[..., str], hang: str, how: str, pattern: str
) -> None:
    run = start("--nodes", "2", "--nproc-per-node", "2", hang, how)

    assert until(distlaunch, run, pattern) == "wait in all_reduce (hang.py:23)"


@pytest.mark.torch
def test_a_rank_in_a_read_from_a_dead_file_system_is_shown_in_the_kernels_words(
    distlaunch: Cli, start: Callable[..., str], hang: str, dead_file: DeadFile
) -> None:
    run = start("--nodes", "2", "--nproc-per-node", "2", hang, dead_file.path)

    until(distlaunch, run, r"does not answer: D \(disk sleep\), read of " + re.escape(dead_file.path) + r", in .*")


THREADS = """
import os, signal, subprocess, threading, time
child = subprocess.Popen(["sleep", "600"])
def aside():
    time.sleep(600)
threading.Thread(target=aside, daemon=True).start()
before = sorted(os.listdir("/proc/self/fd"))
print("ready", flush=True)
while True:
    signal.sigtimedwait([signal.SIGUSR1], 1)
    print("lives" if child.poll() is None and sorted(os.listdir("/proc/self/fd")) == before else "harmed", flush=True)
"""


def test_other_threads_are_shown_and_neither_the_script_nor_its_children_are_disturbed(
    distlaunch: Cli, start: Callable[..., str]
) -> None:
    run = start(str(distlaunch.write("threads.py", THREADS)), ranks=1)

    (group,) = [stacks(distlaunch, run) for _ in range(3)][-1]["groups"]
    shown = distlaunch("stacks", "--all", run).stdout

    (frames,) = group["threads"]
    assert [frame["function"] for frame in frames if "threads.py" in frame["file"]] == ["aside"]
    assert "thread 1\n    aside (" in shown
    limit = time.monotonic() + LIMIT_S
    while not re.search("lives|harmed", written := distlaunch("logs", run).stdout):
        assert time.monotonic() < limit
    assert "harmed" not in written


DEEP = """
import sys, threading, time
depth, others = map(int, sys.argv[1:])
for _ in range(others):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
def deeper(depth):
    if depth:
        deeper(depth - 1)
    print("ready", flush=True)
    while True: time.sleep(600)
deeper(depth)
"""


def test_a_script_that_is_deep_in_calls_is_shown(distlaunch: Cli, start: Callable[..., str]) -> None:
    run = start(str(distlaunch.write("deep.py", DEEP)), "500", "0", ranks=1)

    (group,) = stacks(distlaunch, run)["groups"]

    assert group["summary"] == "is in time.sleep() (deep.py:10)"


def test_a_script_with_many_threads_is_shown_by_its_main_thread_or_not_at_all(
    distlaunch: Cli, start: Callable[..., str]
) -> None:
    """The dump of more than a hundred ends before the main thread, so its last thread is another one."""
    run = start(str(distlaunch.write("deep.py", DEEP)), "0", "120", ranks=1)

    (group,) = stacks(distlaunch, run)["groups"]

    assert group["summary"] == "is in time.sleep() (deep.py:10)" or re.fullmatch(
        r"does not answer: S \(sleeping\), .*; it has more than 100 threads", group["summary"]
    )


OWN = """
import os, signal, time
signal.signal(62, lambda *_: print("mine", flush=True))
print("ready", flush=True)
time.sleep(600)
"""


def test_a_script_that_handles_the_signal_itself_gets_it(distlaunch: Cli, start: Callable[..., str]) -> None:
    run = start(str(distlaunch.write("own.py", OWN)), ranks=1)

    (group,) = stacks(distlaunch, run)["groups"]

    assert (group["frames"], group["state"].split(",")[0]) == ([], "S (sleeping)")
    assert "mine" in distlaunch("logs", run).stdout


@pytest.mark.parametrize("words", [["--start-method", "spawn"], ["--no-python"]], ids=["spawned", "no Python"])
def test_what_cannot_be_asked_is_shown_in_the_kernels_words(
    distlaunch: Cli, start: Callable[..., str], words: list[str]
) -> None:
    path = distlaunch.write("plain", "#!/bin/sh\necho ready\nexec sleep 600\n")
    if words != ["--no-python"]:
        path = distlaunch.write("plain.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    path.chmod(0o755)
    run = start(*words, str(path), ranks=1)

    (group,) = stacks(distlaunch, run, "--rank", "0")["groups"]

    assert group["frames"] or re.fullmatch(r"S \(sleeping\), (clock_)?nanosleep, in .*", group["state"]), group
    assert distlaunch("status", run, "--output", "json").json["result"]["state"] == "running"


def test_a_run_that_has_ended_or_ranks_that_it_does_not_have_are_one_clear_error(
    distlaunch: Cli, start: Callable[..., str]
) -> None:
    script = str(distlaunch.write("waits.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"))
    run = start(script, ranks=1)

    assert "has no running rank of those" in distlaunch("stacks", run, "--rank", "5").stderr
    assert "invalid rank list 'x'" in distlaunch("stacks", run, "--rank", "x").stderr
    distlaunch("cancel", run)
    assert f"{run} has ended" in distlaunch("stacks", run).stderr


def test_a_node_whose_agent_does_not_answer_is_named(
    distlaunch: Cli, start: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import json
    import os

    from launcher.service import stacks as service

    script = str(distlaunch.write("waits.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"))
    run = start("--nodes", "2", "--nproc-per-node", "1", script, ranks=2)
    agent = json.loads((distlaunch.runs / run / "nodes/1/agent.json").read_text())["pid"]
    os.kill(agent, signal.SIGSTOP)
    try:
        monkeypatch.setattr(service, "_LIMIT_S", 3.0)
        from launcher.runs import directories

        found = service.take(directories.find(distlaunch.runs, run))
    finally:
        os.kill(agent, signal.SIGCONT)

    assert [group["ranks"] for group in found["groups"]] == [[0]]
    assert [(node["node"], node["why"]) for node in found["silent"]] == [(1, "no answer")]
