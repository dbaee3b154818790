"""Of a rank that writes more than the limit, the first and the latest lines are kept."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from launcher.service import logs
from tests.agent.test_stream import lines_of, size_of, until

if TYPE_CHECKING:
    from tests.agent.harness import Runner

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
    """The others lose nothing, the disk holds no more of it than the limit, and each gap is reported in its place."""
    run = agents.start(FLOOD, str(agents.directory), "20000000", nproc_per_node="2", max_restarts=1, log_limit="2MB")
    node = run.directory / "nodes/0"
    until(lambda: all((agents.directory / f"written-{rank}-0").exists() for rank in (0, 1)))
    until(lambda: size_of(node.glob("latest/1.stdout.*")) > 100_000)
    assert size_of(path for path in node.rglob("*") if path.is_file()) < 2_200_000
    run.until(lambda: run.of("warning"))
    latest = {b"[0:1] 1 199999 ", b"0.1! last words of 1\n"}
    until(lambda: all(said in b"".join(logs._latest_blocks(node / "latest", 0)) for said in latest))
    (agents.directory / "go").touch()
    run.wait()

    assert run.result() == "success"
    assert [line for line in lines_of(run, 0) if line != "after 0"] == [
        f"0 {n} ".ljust(99, "x") for n in range(1000)
    ] * 2
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
    assert {(event["reason"], *event["ranks"]) for event in told} == {
        ("the limit for each rank is 2MB (--log-limit)", 1)
    }
    assert len(told) < 30
    assert "rank 1 has written 1MB: of the rest, only the latest lines are kept" in run.of("warning")[0]["message"]
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


def test_lines_above_the_limit_are_kept_or_counted_even_from_a_process_that_outlives_its_worker(agents: Runner) -> None:
    run = agents.start(LEAVES, str(agents.directory), "3000000", nproc_per_node="2", log_limit="1MB")
    run.until(lambda: run.of("worker_exited"))
    (agents.directory / "go").touch()
    run.until(lambda: b"the end" in run.stdout[0])
    os.kill(run.agent_pid(), signal.SIGTERM)
    run.wait()

    lines = [line for line in lines_of(run, 0) if line.startswith("left")]
    assert lines[-1].split()[1] == "29999"
    assert sum(event["lines"] for event in run.of("lines_lost")) == 30_000 - len(lines) > 0
