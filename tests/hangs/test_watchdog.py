"""The watchdog names the rank for which all others wait, does as it was told, and lets those compute that compute."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from testbed import wait_until

if TYPE_CHECKING:
    from tests.command import Cli, Result
    from tests.hangs.conftest import DeadFile

pytestmark = pytest.mark.torch
NODES = ("--nodes", "2", "--nproc-per-node", "2")
WAITS = "ranks 0, 1, 2 wait in all_reduce (hang.py:23)"


def hangs(distlaunch: Cli) -> list[dict[str, Any]]:
    """The `hang` events of the only run."""
    return events(distlaunch, "hang", node=0)


def events(distlaunch: Cli, name: str, *, node: int) -> list[dict[str, Any]]:
    """What a node of the only run has said."""
    (stream,) = distlaunch.runs.glob(f"*/nodes/{node}/stream")
    lines = [line for line in stream.read_text().splitlines() if line.startswith(f'{{"event":"{name}"')]
    return [json.loads(line) for line in lines]


def launch(distlaunch: Cli, *words: str) -> Result:
    return distlaunch("local", *NODES, "--hang-after", "3s", "--grace", "2s", "--output", "json", *words)


@pytest.mark.parametrize(
    ("how", "does"),
    [
        ("stopped", "does not answer: T (stopped)"),
        ("asleep", "is in time.sleep() (hang.py:9)"),
        ("left out", "is in time.sleep() (hang.py:12)"),
    ],
)
def test_a_run_ends_with_the_odd_rank_as_its_cause(distlaunch: Cli, hang: str, how: str, does: str) -> None:
    run = launch(distlaunch, "--on-hang", "end", "--max-restarts", "3", hang, how)

    (event,) = hangs(distlaunch)
    assert (event["odd"], event["action"]) == ([3], "end")
    cause = run.json["result"]["cause"]
    assert (run.exit_code, cause["class"], cause["rank"]) == (1, "no_progress", 3)
    assert cause["message"].endswith(f"{does}; {WAITS}"), cause["message"]
    assert run.json["result"]["restarts"] == 0


def test_a_rank_in_a_dead_file_system_is_named(distlaunch: Cli, hang: str, dead_file: DeadFile) -> None:
    words = ("--on-hang", "end", "--detach", hang, dead_file.path)
    run = launch(distlaunch, *words).json["result"]["run"]
    wait_until("the end of rank 2", lambda: events(distlaunch, "worker_exited", node=1), limit_s=120)
    dead_file.end()  # no signal ends its wait

    distlaunch("wait", run)

    cause = distlaunch("status", run, "--output", "json").json["result"]["cause"]
    does = rf"rank 3 \(\S+\) does not answer: D \(disk sleep\), read of {re.escape(dead_file.path)}, in "
    assert (cause["class"], cause["rank"]) == ("no_progress", 3)
    assert re.search(does, cause["message"]), cause["message"]


READS = "import sys\nopen(sys.argv[1]).read()\n"


def test_no_worker_is_started_again_beside_one_that_no_signal_ends(distlaunch: Cli, dead_file: DeadFile) -> None:
    script = str(distlaunch.write("reads.py", READS))

    run = distlaunch(
        "local", "--hang-after=2s", "--on-hang=restart", "--max-restarts=3", "--grace=1s", "--output=json",
        script, dead_file.path,
    )  # fmt: skip

    cause = run.json["result"]["cause"]
    assert (run.exit_code, cause["class"]) == (1, "node")
    stuck = rf"rank 0 \(pid \d+\) has survived SIGKILL: D \(disk sleep\), \w+ of {re.escape(dead_file.path)}, in "
    assert re.match(stuck, cause["message"]), cause["message"]


RECOVERS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
print("ready", flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 3:
    time.sleep(600)
dist.all_reduce(ones)
"""


def test_a_restart_goes_on(distlaunch: Cli) -> None:
    script = str(distlaunch.write("recovers.py", RECOVERS))

    run = launch(distlaunch, "--on-hang", "restart", "--max-restarts", "1", script)

    assert run.exit_code == 0, run.stderr
    assert run.json["result"]["restarts"] == 1
    assert [event["action"] for event in hangs(distlaunch)] == ["restart"]


BUSY = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)


def python():
    until = time.monotonic() + 10
    while time.monotonic() < until:
        sum(range(1000))


def one_call():
    began, matrix = time.monotonic(), torch.rand(64, 64)
    while time.monotonic() - began < 10:
        torch.linalg.matrix_power(matrix, 1 << 16)


print("ready", flush=True)
if sys.argv[1] == "all" or dist.get_rank() == 0:
    {"python": python, "native": one_call}[sys.argv[2]]()
dist.barrier()
"""


@pytest.mark.parametrize("who", ["all", "one"])
@pytest.mark.parametrize("how", ["python", "native"])
def test_a_long_silent_computation_is_no_hang(distlaunch: Cli, who: str, how: str) -> None:
    script = str(distlaunch.write("busy.py", BUSY))

    run = launch(distlaunch, "--on-hang", "end", script, who, how)

    assert run.exit_code == 0, run.stderr
    assert hangs(distlaunch) == []


REDUCES = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
much, step, until = sys.argv[1] == "much", 0, time.monotonic() + 12
data = torch.zeros(4_000_000 if much else 1)
print("ready", flush=True)
while not data[0]:
    data.zero_()
    data[0] = time.monotonic() > until
    dist.all_reduce(data)
    step += 1
    if not much:
        open(os.environ["DISTLAUNCH_PROGRESS_FILE"], "w").write(f"step={step}")
        time.sleep(dist.get_rank())
"""


@pytest.mark.parametrize("how", ["much", "told"])
def test_collectives_one_after_the_other_are_no_hang(distlaunch: Cli, how: str) -> None:
    """Ranks move much data in them, or tell their progress."""
    script = str(distlaunch.write("reduces.py", REDUCES))

    run = launch(distlaunch, "--on-hang", "end", script, how)

    assert run.exit_code == 0, run.stderr
    assert hangs(distlaunch) == []


LATE = """
import datetime, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
ones = torch.ones(1)
dist.all_reduce(ones)
if dist.get_rank() == 3:
    time.sleep(600)
dist.all_reduce(ones)
"""


def test_after_a_timeout_the_cause_says_where_the_rank_was_that_did_not_come(distlaunch: Cli) -> None:
    script = str(distlaunch.write("late.py", LATE))

    run = distlaunch("local", *NODES, "--output", "json", script)

    cause = run.json["result"]["cause"]
    assert (cause["class"], cause["rank"]) == ("collective", 3)
    host = run.json["result"]["nodes"][1]["host"]
    assert f"rank 3 ({host}) never called all_reduce: it is in time.sleep() (late.py:8)" in cause["message"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--hang-after", "1s"], "hang-after '1s' is below 2s"),
        (["--hang-after", "soon"], "hang-after 'soon'"),
        (["--on-hang", "pray"], "on-hang 'pray' is not known"),
    ],
)
def test_bad_values_are_one_clear_error(distlaunch: Cli, words: list[str], says: str) -> None:
    run = distlaunch("local", "--dry-run", *words, str(distlaunch.write("x.py", "")))

    assert run.exit_code == 2
    assert says in run.stderr
