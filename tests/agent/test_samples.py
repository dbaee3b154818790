"""Samples of a node: what its ranks use with their children, how far they are, and the limits of all of that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from launcher.agent.protocol import Event
from launcher.agent.samples import processes
from launcher.agent.stream import plain
from launcher.runs import events
from launcher.runs.samples import Decoder
from tests.agent.test_stream import until

if TYPE_CHECKING:
    from launcher.runs.samples import NodeSample
    from tests.agent.harness import Run, Runner

MIB = 1 << 20
WAIT = """\
import os, sys, time
def wait(name):
    while not os.path.exists(os.path.join(sys.argv[1], name)):
        time.sleep(0.02)
"""


def samples_of(run: Run, node: int = 0) -> list[NodeSample]:
    """All of a node's samples, as the launcher decodes them."""
    decoder, found = Decoder(), []
    for line in (run.directory / "nodes" / str(node) / "stream").read_bytes().splitlines():
        record = events.record(line)
        if isinstance(record, Event) and decoder.add(record) and (now := decoder.now):
            found.append(now)
    return found


def test_the_cpu_time_of_a_descendant_that_is_found_late_is_not_that_of_one_sample() -> None:
    trees, me = processes.Trees(None), os.getpid()
    trees.use([me])
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            until(lambda: (found := processes.read(child.pid)) is not None and found.cpu_s > 1.0)
            trees._look_again_at = float("inf")
            trees.use([me])
            trees._look_again_at = 0.0

            late = trees.use([me])[me]
            until(lambda: (found := processes.read(child.pid)) is not None and found.cpu_s > 2.0)
            then = trees.use([me])[me]
        finally:
            child.kill()

    assert late.cpu < 5.0
    assert 0.0 < then.cpu < 5.0


def test_a_rank_uses_what_its_descendants_use(agents: Runner) -> None:
    """Rank 1 does nothing itself; its grandchild holds memory and computes."""
    script = f"""{WAIT}
if os.environ["RANK"] == "1" and os.fork() == 0 and os.fork() == 0:
    held = b"x" * (200 << 20)
    while True:
        pass
wait("go")
"""
    run = agents.start(script, str(agents.directory), nproc_per_node="2", samples=1)
    run.until(lambda: any((rank.memory_bytes or 0) > 200 * MIB for s in samples_of(run) for rank in s.ranks[1:]))
    run.until(lambda: len(samples_of(run)) > 4)
    os.kill(run.worker_pids()[0], signal.SIGSTOP)
    run.until(lambda: samples_of(run)[-1].ranks[0].state == "T")
    os.kill(run.worker_pids()[0], signal.SIGCONT)
    (agents.directory / "go").touch()
    run.wait()

    idle, busy = samples_of(run)[3].ranks
    assert (idle.rank, busy.rank) == (0, 1)
    assert (busy.memory_bytes or 0) > 200 * MIB > 150 * MIB > (idle.memory_bytes or 0) > 0
    assert (busy.cpu or 0) > 0.1 > (idle.cpu or 0)


def test_progress_is_told_by_a_line_a_file_or_a_bar(agents: Runner) -> None:
    """Also between other lines, with its loss kept, and what is told just before the end."""
    script = rf"""{WAIT}
rank = os.environ["RANK"]
if rank == "0":
    print("::distlaunch progress step=3/10 loss=0.5")
    print("other lines\n" * 1000)
elif rank == "1":
    with open(os.environ["DISTLAUNCH_PROGRESS_FILE"], "w") as file:
        file.write("step=7/20 loss=1e-3 epoch=2\n")
elif rank == "2":
    sys.stderr.write("\r 12%|#2        | 120/1000 [00:05<00:38, 22.5it/s, loss=0.31]")
    sys.stderr.write("\r 13%|#3        | 130/1000 [00:05<00:38, 22.5it/s, loss=0.29]")
wait("go")
if rank == "0":
    print("::distlaunch progress step=10")
"""
    run = agents.start(script, str(agents.directory), nproc_per_node="4", samples=1)
    run.until(lambda: any(rank.step == 130 for s in samples_of(run) for rank in s.ranks))
    (agents.directory / "go").touch()
    run.wait()

    first, last = samples_of(run)[-2].ranks, samples_of(run)[-1].ranks
    assert [(rank.step, rank.steps, rank.loss) for rank in first] == [
        (3, 10, 0.5), (7, 20, 0.001), (130, 1000, 0.29), (None, None, None)
    ]  # fmt: skip
    assert (last[0].step, last[0].steps, last[0].loss) == (10, 10, 0.5), "what is not told again is as before"
    assert [rank.lines for rank in last] == [1003, 0, 0, 0]
    assert (last[0].told or 0) >= (first[0].told or 0) > 0


def test_a_loss_that_is_no_number_any_more_is_not_the_last_one_that_was(agents: Runner) -> None:
    script = rf"""{WAIT}
def tell(step, loss):
    if os.environ["RANK"] == "0":
        print(f"::distlaunch progress step={{step}}/1000 loss={{loss}}")
    else:
        sys.stderr.write(f"\r 12%|#2        | {{step}}/1000 [00:05<00:38, 22.5it/s, loss={{loss}}]")
tell(1, 0.31)
wait("go")
tell(900, "nan" if os.environ["RANK"] == "0" else "inf")
wait("end")
"""
    run = agents.start(script, str(agents.directory), nproc_per_node="2", samples=1)

    def told() -> list[tuple[int | None, float | None]]:
        return [(rank.step, rank.loss) for sample in samples_of(run)[-1:] for rank in sample.ranks]

    run.until(lambda: told() == [(1, 0.31), (1, 0.31)])
    (agents.directory / "go").touch()
    run.until(lambda: [step for step, _ in told()] == [900, 900])
    assert told() == [(900, None), (900, None)]
    (agents.directory / "end").touch()
    run.wait()


def test_a_short_run_tells_its_progress_once_and_else_has_no_sample(agents: Runner) -> None:
    told = agents.start("print('::distlaunch progress step=5/5')\n", nproc_per_node="1")
    told.wait()
    silent = agents.start("print('hello')\n", nproc_per_node="1")
    silent.wait()

    (sample,) = samples_of(told)
    assert [(rank.step, rank.steps, rank.cpu) for rank in sample.ranks] == [(5, 5, None)]
    assert samples_of(silent) == []


def test_without_samples_there_is_no_file_for_progress(agents: Runner) -> None:
    script = "import os; print('::distlaunch progress step=5/5'); print('DISTLAUNCH_PROGRESS_FILE' in os.environ)\n"
    run = agents.start(script, nproc_per_node="1", samples=0)
    run.wait()

    assert bytes(run.stdout[0]).splitlines()[-1] == b"False"
    assert samples_of(run) == []


def test_a_sample_names_only_what_has_changed(agents: Runner) -> None:
    """The pid of a restarted rank is another: nothing of its progress is left."""
    script = f"""{WAIT}
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    print("::distlaunch progress step=5/5")
    wait("fail")
    sys.exit(3)
wait("go")
"""
    run = agents.start(script, str(agents.directory), nproc_per_node="1", samples=1, max_restarts=1)
    run.until(lambda: len(run.of("sample")) >= 3)
    (agents.directory / "fail").touch()
    run.until(lambda: samples_of(run)[-1].ranks and samples_of(run)[-1].ranks[0].step is None)
    (agents.directory / "go").touch()
    run.wait()

    whole, *later = run.of("sample")
    rarely = {"cpus", "rank_steps", "memory_total_mib"}
    assert (whole["whole"], rarely & set(whole), rarely & set(later[0])) == (True, rarely, set())
    assert samples_of(run)[1].cpus == os.cpu_count()
    assert samples_of(run)[1].ranks[0].steps == 5


def test_in_a_log_for_people_there_are_fewer_samples_and_they_are_restored(agents: Runner) -> None:
    script = f"""{WAIT}
print("::distlaunch progress step=1/2 loss=-0.5")
wait("go")
"""
    run = agents.start(script, str(agents.directory), samples=1, request={"plain_stream": True})
    stream = run.directory / "nodes/0/stream"
    run.until(lambda: stream.read_bytes().count(b"distlaunch: sample ") == 2)
    (agents.directory / "go").touch()
    run.wait()

    decoder, times = Decoder(), []
    for line in stream.read_bytes().splitlines():
        record = events.record(plain.decode(line, 0))
        if isinstance(record, Event) and decoder.add(record) and (now := decoder.now):
            times.append(now.time)
            assert [(rank.rank, rank.step, rank.steps, rank.loss) for rank in now.ranks] == [(0, 1, 2, -0.5)]
    assert len(times) == 3, "the last one is that at the end"
    assert times[1] - times[0] > 2.5, "three times the interval"


@pytest.mark.parametrize("missing", [1, 2])
def test_after_a_gap_only_what_is_named_is_known(missing: int) -> None:
    decoder = Decoder()
    first = {"time": 1.0, "sample": 0, "whole": True, "cpus": 4, "cpu": 1.0, "ranks": [0], "rank_step": [1]}
    second = {"time": 2.0, "sample": missing, "ranks": [0], "rank_step": [2]}
    decoder.add(Event("sample", first))
    decoder.add(Event("sample", second))

    assert decoder.now is not None
    assert decoder.now.cpus == (4 if missing == 1 else None)
    assert [rank.step for rank in decoder.now.ranks] == [2]


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"sample","time":1,"node":0,"sample":0,"ranks":[0,1],"rank_cpu":[1,2,3],"rank_step":["x"]}',
        b'{"event":"sample","time":1,"node":0,"sample":-1,"whole":3,"ranks":7,"gpu_use":[null],"cpu":1e999}',
        b'{"event":"sample","time":1,"node":0,"ranks":[],"rank_cpu":[1],"gpu_use":[],"gpu_power_w":[1,2]}',
        b'{"event":"sample"}',
    ],
)
def test_a_damaged_sample_breaks_nothing(line: bytes) -> None:
    decoder = Decoder()
    record = events.record(line)
    assert isinstance(record, Event)
    decoder.add(record)
    now = decoder.now

    assert now is None or all(rank.step is None for rank in now.ranks)
