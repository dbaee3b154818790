"""A rank that writes BENCH_LINES lines as fast as a pipe takes them: formatted before, in blocks, all ranks at once.

    rank 3 line 000041 xxxx...     80 bytes with the newline

Writes its times (begin and end, unix seconds; CPU seconds of that, and of the whole process) to the directory that
BENCH_DIRECTORY names. With BENCH_SILENT it prepares the lines and writes none.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path

BLOCK_BYTES = 1 << 16
LIMIT_S = 60.0


def text(rank: int, lines: int) -> bytes:
    """Everything that a rank writes."""
    tail = b" %s\n" % (b"x" * 60)
    return b"".join(b"rank %d line %06d" % (rank, number) + tail for number in range(lines))


def cpu_s() -> float:
    """CPU time that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Wait for the other ranks, write the lines, then the times."""
    rank, world_size, directory = (
        int(os.environ["RANK"]),
        int(os.environ["WORLD_SIZE"]),
        Path(os.environ["BENCH_DIRECTORY"]),
    )
    prepared = text(rank, int(os.environ["BENCH_LINES"]))
    written = memoryview(b"" if "BENCH_SILENT" in os.environ else prepared)
    (directory / f"ready-{rank}").touch()
    limit = time.monotonic() + LIMIT_S
    while sum((directory / f"ready-{other}").exists() for other in range(world_size)) < world_size:
        if time.monotonic() > limit:
            raise SystemExit("the other ranks did not start in time")
        time.sleep(0.005)
    began, before = time.time(), cpu_s()
    while written:
        written = written[os.write(1, written[:BLOCK_BYTES]) :]
    about = {"began": began, "ended": time.time(), "cpu_s": cpu_s() - before, "all_cpu_s": cpu_s()}
    (directory / f"times-{rank}").write_text(json.dumps(about))


if __name__ == "__main__":
    main()
