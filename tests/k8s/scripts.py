"""What the pods of tests run. None needs torch, so agents start them at once; tests with torch use bundled scripts."""

from __future__ import annotations

WAITS = """
import os, signal, sys, time
def save(*_):
    if not os.path.exists(os.environ["DISTLAUNCH_DEADLINE_FILE"]):
        sys.exit(143)
    left = float(open(os.environ["DISTLAUNCH_DEADLINE_FILE"]).read()) - time.time()
    print("saving with", "time" if left > 5 else "no time", "left", flush=True)
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
attempt = os.environ.get("DISTLAUNCH_ATTEMPT")
if attempt:
    print("attempt", attempt, os.environ["DISTLAUNCH_ATTEMPT_REASON"], flush=True)
    sys.exit(0)
print("ready", flush=True)
while True:
    signal.pause()
"""
"""Waits to be stopped, and saves for half a second; prints which attempt it is, from the second one on."""

MEET = """
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1  # at that itself the workers' store is served
def connected():
    while True:
        try:
            return socket.create_connection(master, 10)
        except OSError:
            time.sleep(0.05)
if rank == 0:
    server, told = socket.create_server(("", master[1])), []
    while len(told) < world - 1:
        with server.accept()[0] as peer:
            told.append(peer.makefile().readline().split())
    total = 1 + sum(int(number) for number, *_ in told)
    for _, host, port in told:
        with socket.create_connection((host, int(port)), 30) as back:
            back.sendall(b"%d" % total)
else:
    mine = socket.create_server((socket.gethostbyname(socket.gethostname()), 0))
    with connected() as there:
        there.sendall("{} {} {}\\n".format(rank + 1, *mine.getsockname()).encode())
    total = int(mine.accept()[0].recv(20))
print(f"rank {rank}/{world}: sum {total} on {socket.gethostname()}", flush=True)
"""
"""The sum of rank + 1: sent to the master's address, and back to the address of each rank's host name, as with gloo."""

TICKS = """
import signal, sys, time
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
number = 0
while not told:
    print("tick", number, flush=True)
    number += 1
    time.sleep(0.01)
print(number, "ticks", flush=True)
"""
"""Writes lines until it is signalled."""

FAILS = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("only on one")
time.sleep(600)
"""

EATS = """
blocks = []
while True:
    blocks.append(bytearray(50_000_000))
"""
