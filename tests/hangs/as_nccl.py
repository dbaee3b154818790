"""A rank whose process group has a flight recorder as NCCL's: it writes the dump, and ends, as ProcessGroupNCCL does.

There is no GPU. The collectives are gloo's, and so are the recorder's entries. What gloo leaves out of a dump is added
as NCCL's has it: the library's name, the group's name and ranks, the states, and where the collective was called. The
file is the one that NCCL would write, at the same moments: a timeout here, a timeout of another rank, or a pipe.

    python as_nccl.py HOW [SECONDS]
"""

from __future__ import annotations

import datetime as dt
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HOW, TIMEOUT_S = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
PREFIX = os.environ.get("TORCH_FR_DUMP_TEMP_FILE", "")
PIPE = os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
ODD = WORLD - 1

places: list[list[dict[str, Any]]] = []
"""Of each collective, the frames from which it was called, innermost first."""

done: list[int] = []
"""The collectives that are complete, by number."""


def dump() -> bytes:
    """What the recorder has, as NCCL writes it."""
    found = pickle.loads(c10d._dump_fr_trace(includeStackTraces=False))
    found["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(WORLD)))}}
    for at, entry in enumerate(found["entries"]):
        entry["profiling_name"] = entry["profiling_name"].replace("gloo:", "nccl:")
        entry["state"] = "completed" if at < len(done) else "started"
        entry["frames"] = places[at]
        entry["is_p2p"] = HOW == "p2p"
    return pickle.dumps(found, protocol=2)


def write() -> None:
    data = dump()
    if HOW == "half" and RANK == 0:
        data = data[: len(data) // 2]
    if HOW == "hostile" and RANK == 0:
        data = b"cos\nsystem\n(S'touch hacked'\ntR."
    if HOW == "huge" and RANK == 0:
        with open(f"{PREFIX}{RANK}", "wb") as file:
            file.truncate(1 << 30)
        return
    with open(f"{PREFIX}{RANK}", "wb") as file:
        file.write(data)


def monitor() -> None:
    """As NCCL's heartbeat monitor: looks once a second for a timeout elsewhere, and for something in the pipe."""
    fd = -1
    if PIPE:
        os.mkfifo(f"{PIPE}{RANK}.pipe")
        fd = os.open(f"{PIPE}{RANK}.pipe", os.O_RDONLY | os.O_NONBLOCK)
    while True:
        time.sleep(0.2)
        if fd >= 0 and os.read(fd, 128):
            write()
        if store.check(["timed out"]):
            who = store.get("timed out").decode()
            write()
            time.sleep(1)
            if int(who) == RANK:
                continue
            said = (
                f"Received a dump signal due to a collective timeout from  rank {who} and we will try our best to dump"
            )
            print(f"[rank{RANK}]:[E ProcessGroupNCCL.cpp:1999] [PG ID 0] {said}", file=sys.stderr, flush=True)
            time.sleep(2)
            os.abort()


def call(collective: Any, *args: Any) -> None:
    """A collective; after a timeout, the process ends as NCCL's watchdog ends it."""
    stack = traceback.extract_stack()[-2::-1]
    places.append([{"name": each.name, "filename": each.filename, "line": each.lineno} for each in stack])
    try:
        collective(*args)
    except RuntimeError:
        if HOW != "only pipe":
            store.set("timed out", str(RANK))
            time.sleep(2)
        said = (
            f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={len(places)}, OpType=ALLREDUCE, Timeout)"
        )
        print(f"[rank{RANK}]:[E ProcessGroupNCCL.cpp:632] [Rank {RANK}] {said}", file=sys.stderr, flush=True)
        os.abort()
    done.append(len(places))


def main() -> None:
    ones = torch.ones(4)
    for _ in range(16):
        call(dist.all_reduce, ones)
    print("ready", flush=True)
    if RANK == ODD and HOW == "killed":
        os.kill(os.getpid(), signal.SIGSTOP)
    if RANK == ODD and HOW == "other":
        call(dist.broadcast, ones, 0)
    elif RANK == ODD:
        time.sleep(600)
    call(dist.all_reduce, ones)


signal.signal(signal.SIGABRT, signal.SIG_DFL)
dist.init_process_group("gloo", timeout=dt.timedelta(seconds=TIMEOUT_S))
store = c10d.PrefixStore("dump", dist.distributed_c10d._get_default_store())
threading.Thread(target=monitor, daemon=True).start()
main()
