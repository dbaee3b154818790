"""What it costs to watch a run: `distlaunch top` of many ranks, and the samples of an agent.

    python benchmarks/watching.py [--seconds 30] [--nodes 64] [--ranks 8] [--only top,samples]

`top` runs on a terminal of 60 lines, and draws once a second. Its run has one real agent. The streams of all nodes are
written here, as agents would: a line a second from each rank, and samples every 10 s. Measured is the CPU time of its
process after the start.

The samples are those of a real agent with that many ranks, each with two children. With a sample every second it uses
more CPU time than with none. A tenth of that is the cost of the samples every 10 s.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TARGETS = {"top": 0.05, "samples": 0.001}
"""The highest shares of a CPU."""

_START_S = 5.0
_SAMPLE_S = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")
WAITS = "import subprocess, sys, time\nx = [subprocess.Popen(['sleep', '3600']) for _ in range(2)]\ntime.sleep(3600)\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=8, help="per node")
    parser.add_argument("--only", default="top,samples")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        env = {**environment(scratch), "TERM": "xterm"}
        Path(scratch, "waits.py").write_text(WAITS, encoding="utf-8")
        if "top" in options.only:
            used = top(scratch, env, options.nodes, options.ranks, options.seconds)
            show("top", used, f"{options.nodes} nodes x {options.ranks} ranks at 1 Hz")
        if "samples" in options.only:
            show(
                "samples", samples(scratch, env, options.ranks, options.seconds), f"an agent with {options.ranks} ranks"
            )


def show(name: str, share: float, what: str) -> None:
    """Print one row."""
    target = TARGETS[name]
    print(f"{name:8s} {what}: {share:.3%} of a CPU, ratio to the target of {target:.1%}: {share / target:.2f}")


@contextmanager
def started(scratch: str, env: Mapping[str, str], ranks: int, every_s: int) -> Iterator[Path]:
    """A detached run of that many ranks; its directory."""
    argv = [sys.executable, "-m", "launcher", "local", "--detach", "--output", "json", "--samples", str(every_s)]
    argv += ["--nproc-per-node", str(ranks), "waits.py"]
    done = subprocess.run(argv, cwd=scratch, env=env, check=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout)["result"]
    try:
        until_started(Path(found["path"]), ranks)
        yield Path(found["path"])
    finally:
        cancel = [sys.executable, "-m", "launcher", "cancel", "--force", found["run"]]
        subprocess.run(cancel, cwd=scratch, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def until_started(run: Path, ranks: int) -> None:
    """Wait until all workers have started."""
    limit = time.monotonic() + 60
    while (run / "nodes/0/stream").read_bytes().count(b'"worker_started"') < ranks:
        if time.monotonic() > limit:
            raise SystemExit(f"{run}: no {ranks} workers within 60 s")
        time.sleep(0.1)


def cpu_s(pid: int) -> float:
    """The CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


# -- top --------------------------------------------------------------------------------------------------------------


def top(scratch: str, env: Mapping[str, str], nodes: int, ranks: int, seconds: float) -> float:
    """The share of a CPU that `distlaunch top` uses."""
    with started(scratch, env, ranks, 0) as run:
        enlarge(run, nodes)
        over = threading.Event()
        writer = threading.Thread(target=write, args=(run, nodes, ranks, over))
        writer.start()
        try:
            return of_top(scratch, env, run, nodes * ranks, seconds)
        finally:
            over.set()
            writer.join()


def enlarge(run: Path, nodes: int) -> None:
    """Let the run have that many nodes, all of the one agent that it has."""
    path = run / "run.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    (one,) = about["plan"]["nodes"]
    about["plan"]["nodes"] = [{**one, "node_rank": node, "host": f"n{node}"} for node in range(nodes)]
    about["handle"]["agents"] = about["handle"]["agents"] * nodes
    path.write_text(json.dumps(about), encoding="utf-8")


def write(run: Path, nodes: int, ranks: int, over: threading.Event) -> None:
    """Write the streams of all nodes."""
    paths = [run / "nodes" / str(node) for node in range(nodes)]
    for node, path in enumerate(paths):
        path.mkdir(parents=True, exist_ok=True)
        own = list(range(node * ranks, node * ranks + ranks))
        begin: list[dict[str, Any]] = [
            {"event": "agent_started", "host": f"n{node}", "pid": 1},
            {"event": "rendezvous", "ranks": own},
        ]
        begin += [{"event": "worker_started", "rank": rank, "pid": rank} for rank in own]
        text = "".join(line({**event, "time": time.time(), "node": node}) for event in begin)
        (path / "stream").write_text(text, encoding="ascii")
    second = 0
    while not over.wait(1.0):
        for node, path in enumerate(paths):
            own = list(range(node * ranks, node * ranks + ranks))
            text = "".join(f"{node}.{rank}| step {second}, loss {1 / (second + 1):.4f}\n" for rank in own)
            if second % _SAMPLE_S == node % _SAMPLE_S:
                text += line(sample(node, own, second))
            with (path / "stream").open("a", encoding="ascii") as file:
                file.write(text)
        second += 1


def line(event: Mapping[str, Any]) -> str:
    """An event as a line."""
    return json.dumps(event, separators=(",", ":")) + "\n"


def sample(node: int, own: list[int], second: int) -> dict[str, Any]:
    """A whole sample, in which all values differ from the one before."""
    each = len(own)
    return {
        "event": "sample", "time": time.time(), "node": node, "sample": second // 10, "whole": True,
        "cpus": 64, "cpu": 8.0 + second % 7, "memory_mib": 50_000 + second, "memory_total_mib": 500_000,
        "received": 1e9 + second, "sent": 1e9 + second, "rdma_received": 2e10 + second, "rdma_sent": 2e10,
        "gpu_use": [90 + second % 9] * each, "gpu_memory_mib": [70_000 + second] * each, "gpu_power_w": [600] * each,
        "ranks": own, "rank_cpu": [1.0 + second % 3] * each, "rank_memory_mib": [5000 + second] * each,
        "rank_lines": [second] * each, "rank_step": [second * 4] * each, "rank_steps": [100_000] * each,
        "rank_loss": [1 / (second + 1)] * each, "rank_time": [time.time()] * each,
    }  # fmt: skip


def of_top(scratch: str, env: Mapping[str, str], run: Path, ranks: int, seconds: float) -> float:
    """Run `top` on a terminal; the share of a CPU that it uses after its start."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(scratch)
        os.execve(sys.executable, [sys.executable, "-m", "launcher", "top", run.name], dict(env))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
    shown, limit = read(terminal, _START_S), time.monotonic() + 60
    while time.monotonic() < limit and not (b"LINES/S" in shown and f", ranks {ranks}".encode() in shown):
        shown += read(terminal, 1.0)
    before, began = cpu_s(pid), time.monotonic()
    shown += read(terminal, seconds)
    share = (cpu_s(pid) - before) / (time.monotonic() - began)
    os.write(terminal, b"q")
    read(terminal, 1.0)
    _, status = os.waitpid(pid, 0)
    if status or b"LINES/S" not in shown or f", ranks {ranks}".encode() not in shown:
        raise SystemExit(f"top has not shown the run: {shown[-2000:]!r}")
    return share


def read(terminal: int, seconds: float) -> bytes:
    """What is written to the terminal within that time."""
    shown, end = b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                shown += os.read(terminal, 1 << 16)
            except OSError:  # the program has ended
                break
    return shown


# -- samples ----------------------------------------------------------------------------------------------------------


def samples(scratch: str, env: Mapping[str, str], ranks: int, seconds: float) -> float:
    """The share of a CPU that the samples of an agent use at their usual interval."""
    with_, without = (of_agent(scratch, env, ranks, every_s, seconds) for every_s in (1, 0))
    return max(0.0, with_ - without) / _SAMPLE_S


def of_agent(scratch: str, env: Mapping[str, str], ranks: int, every_s: int, seconds: float) -> float:
    """The share of a CPU that an agent uses with samples at this interval; 0: without."""
    with started(scratch, env, ranks, every_s) as run:
        time.sleep(_START_S)
        pid = json.loads((run / "run.json").read_text(encoding="utf-8"))["handle"]["agents"][0]["pid"]
        before, began = cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_s(pid) - before) / (time.monotonic() - began)
        taken = (run / "nodes/0/stream").read_bytes().count(b'"event":"sample"')
        if bool(taken) != bool(every_s):
            raise SystemExit(f"{taken} samples with --samples {every_s}")
        return share


if __name__ == "__main__":
    main()
