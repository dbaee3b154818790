"""Any program: each rank sends its number to rank 0, which sends the sum back; all also know every node's address."""

import os
import socket
import time

from then import then

rank, size = int(os.environ["DISTLAUNCH_RANK"]), int(os.environ["DISTLAUNCH_WORLD_SIZE"])
address, port = os.environ["DISTLAUNCH_MASTER_ADDR"], int(os.environ["DISTLAUNCH_MASTER_PORT"])
hosts = os.environ["DISTLAUNCH_HOSTS"].split(",")
assert len(hosts) == size // int(os.environ["DISTLAUNCH_LOCAL_WORLD_SIZE"]), hosts
assert rank == int(os.environ["DISTLAUNCH_NODE_RANK"]) * size // len(hosts) + int(os.environ["DISTLAUNCH_LOCAL_RANK"])
there = (address, hosts[0])[rank % 2]  # both are node 0


def connect():
    while True:
        try:
            return socket.create_connection((there, port), timeout=60)
        except ConnectionRefusedError:
            time.sleep(0.05)  # rank 0 does not listen yet


if rank == 0:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server(("", port), family=family, backlog=size)
    streams = [listener.accept()[0].makefile("rw") for _ in range(size - 1)]
else:
    streams = [connect().makefile("rw")]


def read(stream):
    """The next number; the launcher ends this rank if the other one has gone."""
    return int(stream.readline() or time.sleep(600) or 0)


def exchange(mine):
    """The sum over all ranks."""
    if rank == 0:
        mine += sum(map(read, streams))
    for stream in streams:
        stream.write(f"{mine}\n")
        stream.flush()
    return mine if rank == 0 else read(streams[0])


print(f"rank {rank} of {size} on {os.uname().nodename}: sum {exchange(rank + 1)}", flush=True)
then(rank, lambda: exchange(0))
