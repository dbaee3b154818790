"""What it costs to follow a run of many nodes, whose streams are files here or on a shared file system.

    python benchmarks/following.py [--nodes 64,256,1000] [--ranks 8] [--seconds 20] [--talk 0,1]

`distlaunch attach` follows a run that has one real agent. The streams of all nodes are written here, as agents would:
what they send while they start, all at once; then heartbeats and samples every 10 s, and with `--talk 1` a line a
second from each rank, else from the first rank of the first and of the last node. Measured is the launcher's process:
its CPU time while the run starts and as a share of a CPU after that, and the most files that it has had open.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import environment
from benchmarks.watching import WAITS, cpu_s, enlarge, line, sample, started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_FILES = 200
MOST_CPUS = 1.0
_EVERY_S = 10
_SETTLED_S = 5.0
_LIMIT_S = 120.0


class Followed(NamedTuple):
    """What following one run has cost."""

    nodes: int
    start_cpu_s: float
    """Until it has printed the last node's first line, and some seconds more."""

    cpus: float
    """After that."""

    files: int
    mib: float
    lines: int
    """Lines of workers that it has printed, of `written`."""

    written: int


class Streams:
    """Writes the streams of all nodes, as many agents would."""

    def __init__(self, run: Path, nodes: int, ranks: int) -> None:
        self._paths = [run / "nodes" / str(node) / "stream" for node in range(nodes)]
        self._ranks = ranks
        self.written = 0
        """Lines of workers."""

        self._over = threading.Event()
        for path in self._paths:
            path.parent.mkdir(parents=True, exist_ok=True)

    def begin(self) -> None:
        """What nodes send until their workers run."""
        world = len(self._paths) * self._ranks
        for node, path in enumerate(self._paths):
            own = self._own(node)
            begin = [
                {"event": "agent_started", "host": f"n{node}", "pid": 1},
                {"event": "host_facts", "cpus": 64, "gpus": 8},
                {"event": "rendezvous", "ranks": [*own], "nodes": len(self._paths), "world_size": world},
                *({"event": "worker_started", "rank": rank, "pid": rank} for rank in own),
                {"event": "first_line", "rank": own[0]},
            ]
            path.write_text("".join(line({**event, "time": time.time(), "node": node}) for event in begin))

    def _own(self, node: int) -> range:
        return range(node * self._ranks, (node + 1) * self._ranks)

    @contextmanager
    def talking(self, *, every_rank: bool) -> Iterator[None]:
        """Write on in a thread."""
        thread = threading.Thread(target=self._talk, args=(every_rank,))
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _talk(self, every_rank: bool) -> None:
        second, began = 0, time.monotonic()
        while not self._over.wait(max(0.0, began + second + 1 - time.monotonic())):
            second += 1
            for node, path in enumerate(self._paths):
                text = ""
                if every_rank or path in (self._paths[0], self._paths[-1]):
                    own = self._own(node) if every_rank else self._own(node)[:1]
                    text = "".join(f"{node}.{rank}| step {second}\n" for rank in own)
                    self.written += len(own)
                if second % _EVERY_S == node % _EVERY_S:
                    now = {"time": time.time(), "node": node}
                    text += line({"event": "heartbeat", "workers": self._ranks, **now})
                    text += line(sample(node, [*self._own(node)], second))
                if text:
                    with path.open("a", encoding="ascii") as file:
                        file.write(text)


def follow(scratch: str, env: Mapping[str, str], nodes: int, ranks: int, seconds: float, *, talk: bool) -> Followed:
    """Follow one run."""
    with started(scratch, env, 1, 0) as run:
        enlarge(run, nodes)
        streams = Streams(run, nodes, ranks)
        streams.begin()
        out = Path(scratch, f"out-{nodes}-{talk}")
        argv = [sys.executable, "-m", "launcher", "attach", "--log-ranks", "all", run.name]
        with out.open("wb") as file, streams.talking(every_rank=talk):
            process = subprocess.Popen(argv, cwd=scratch, env=dict(env), stdout=file, stderr=subprocess.STDOUT)
            try:
                return _measured(process, out, streams, nodes, seconds)
            finally:
                process.kill()
                process.wait()


def _measured(process: subprocess.Popen[bytes], out: Path, streams: Streams, nodes: int, seconds: float) -> Followed:
    files, limit = 0, time.monotonic() + _LIMIT_S
    while not re.search(rb"^\[%d:\d+\] step" % (nodes - 1), out.read_bytes(), re.MULTILINE):
        files = max(files, _open_files(process.pid))
        if process.poll() is not None or time.monotonic() > limit:
            raise SystemExit(f"it has not followed the run: {out.read_text()[-2000:]}")
        time.sleep(0.1)
    time.sleep(_SETTLED_S)
    before, began = cpu_s(process.pid), time.monotonic()
    had, wrote = out.read_bytes().count(b"] step"), streams.written
    while time.monotonic() < began + seconds:
        files = max(files, _open_files(process.pid))
        time.sleep(0.1)
    share = (cpu_s(process.pid) - before) / (time.monotonic() - began)
    lines, written = out.read_bytes().count(b"] step") - had, streams.written - wrote
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return Followed(nodes, before, share, files, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, lines, written)


def _open_files(pid: int) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="64,256,1000")
    parser.add_argument("--ranks", type=int, default=8, help="per node")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--talk", default="0,1", help="1: every rank writes a line a second; 0: two ranks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        env = environment(scratch)
        Path(scratch, "waits.py").write_text(WAITS, encoding="utf-8")
        print("| nodes | lines/s | printed | start, CPU s | CPUs | ratio to 1 CPU | open files | MiB |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for talk in options.talk.split(","):
            for nodes in map(int, options.nodes.split(",")):
                one = follow(scratch, env, nodes, options.ranks, options.seconds, talk=talk == "1")
                print(
                    f"| {one.nodes} | {one.written / options.seconds:.0f} | {one.lines / max(1, one.written):.0%} "
                    f"| {one.start_cpu_s:.2f} | {one.cpus:.3f} | {one.cpus / MOST_CPUS:.2f} | {one.files} "
                    f"| {one.mib:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
