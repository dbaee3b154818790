"""What all workers do together: the store and process groups."""

import os
import re
import subprocess
import sys
import time

from able import together, write


def connected(prefix):
    from datetime import timedelta

    import torch.distributed as dist

    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=600),  # the other rank may still be at its own probes
        wait_for_workers=False,
    )
    return dist.PrefixStore(prefix, store)


def meet(name):
    """All wait for all others, using only the store."""
    store = connected(f"meet {name}")
    store.add("came", 1)
    while store.add("came", 0) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)


@together
def store_as_a_client():
    from datetime import timedelta

    store = connected("able")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store.set(f"of {rank}", f"value {rank}")
    others = [store.get(f"of {number}").decode() for number in range(world)]
    total = 0
    store.add("sum", rank + 1)
    meet("sum")
    total = store.add("sum", 0)
    try:
        store.wait(["never"], timedelta(seconds=0.2))
        waited = "came"
    except Exception as error:
        waited = type(error).__name__, re.sub(r"[\d.:a-z-]+\]?:\d+", "ADDRESS", str(error).splitlines()[0])[:60]
    found = [
        store.check(["sum"]),
        store.check(["never"]),
        store.delete_key(f"of {rank}") if meet("read") is None else 0,
        store.compare_set(f"cas {rank}", "", "new").decode(),
        store.compare_set(f"cas {rank}", "wrong", "x").decode(),
        store.multi_get([f"cas {rank}"])[0].decode(),
        type(store.underlying_store).__name__,
    ]
    return [others, total, waited, found, os.environ["TORCHELASTIC_USE_AGENT_STORE"]]


@together
def groups_again_and_again():
    import torch
    import torch.distributed as dist

    found = []
    for number in range(3):
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if number == 0:
            dist.init_process_group("gloo")
        else:  # in the default store gloo finds the previous addresses, under torchrun too
            dist.init_process_group("gloo", store=connected(f"time {number}"), rank=rank, world_size=world)
        value = torch.ones(2) * (dist.get_rank() + 1)
        dist.all_reduce(value)
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, os.environ["RANK"])
        found.append(
            [
                value.tolist(),
                gathered,
                dist.is_torchelastic_launched(),
                type(dist.distributed_c10d._get_default_store()).__name__,
            ]
        )
        meet(f"group {number}")
        dist.destroy_process_group()
    return found


@together
def rank_0_ends_early():
    """The other ranks can still use the store."""
    store = connected("early")
    if os.environ["RANK"] == "0":
        store.set("pid", str(os.getpid()))
        sys.stdout.flush()
        write("rank_0_ends_early", "ended")
        os._exit(0)
    pid = int(store.get("pid"))
    while is_running(pid):
        time.sleep(0.01)
    store.set("after", "kept")
    again = connected("early")
    return [
        again.get("after").decode(),
        again.add("n", 3),
        subprocess.run(["true"], check=False).returncode,
        is_running(pid),
    ]


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
