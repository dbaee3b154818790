"""Twenty launchers at once want some of the GPUs of four hosts (directories); some are killed, or their agents.

Prints a line of JSON: how many have finished, were killed, and the leases that two have held at once. The arguments:
the directory with a directory per host, and a seed.
"""

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from launcher.agent.lease.lease import Holder, Wish
from launcher.agent.lease.lock_files import LockFiles

HOSTS, LAUNCHERS, ROUNDS = 4, 20, 2
top = Path(sys.argv[1])
chance = random.Random(int(sys.argv[2]))


def launcher(number: int, wants: list[list[int]], uses_s: list[float]) -> None:
    """Take the leases of some hosts in their order, as a start does, and use them in an agent on each."""
    for turn, uses in zip(wants, uses_s, strict=True):
        holders = [Holder(LockFiles(str(top / str(host)))) for host in range(HOSTS)]
        for host, workers in enumerate(turn):
            while (
                workers
                and not holders[host].take(Wish(f"run-{number}", str(workers), {}), wait_s=0.2, queue=True)["leased"]
            ):
                pass
        agents = [agent(holders, host, uses) for host, workers in enumerate(turn) if workers]
        for holder in holders:
            holder.close()
        for pid in agents:
            os.waitpid(pid, 0)


def agent(holders: list[Holder], host: int, uses_s: float) -> int:
    """Fork an agent that inherits the lease of its host alone, and writes whose each GPU is, again and again."""
    pid = os.fork()
    if pid:
        holders[host].hand_over(pid)
        return pid
    for other in holders[:host] + holders[host + 1 :]:
        other.close()
    owners = [top / f"owner-{host}-{gpu}" for gpu in holders[host].gpus or ()]
    for owner in owners:
        owner.write_text(str(os.getpid()))
    limit = time.monotonic() + uses_s
    while time.monotonic() < limit:
        time.sleep(0.005)
        for owner in owners:
            if owner.read_text() not in (str(os.getpid()), ""):
                (top / f"doubled-{owner.name}-{os.getpid()}").touch()
    os._exit(0)


def children(pid: int) -> list[int]:
    """The agents of a launcher."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def kill(pid: int) -> None:
    """Kill it, unless it has ended since it was seen."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Start all, kill some, and wait for the rest."""
    running = {}
    for number in range(LAUNCHERS):
        wants = [[chance.choice((0, 1, 1, 2)) for _ in range(HOSTS)] for _ in range(ROUNDS)]
        uses = [chance.uniform(0.02, 0.3) for _ in range(ROUNDS)]
        pid = os.fork()
        if not pid:
            launcher(number, wants, uses)
            os._exit(0)
        running[pid] = number
    killed, finished = 0, 0
    while running:
        time.sleep(chance.uniform(0.0, 0.2))
        if killed < LAUNCHERS // 3:
            victim = chance.choice(sorted(running))
            agents = children(victim)
            if agents and chance.random() < 0.5:
                kill(chance.choice(agents))  # its launcher goes on
            else:
                killed += 1
                for pid in [victim, *agents]:
                    kill(pid)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            del running[pid]
            finished += status == 0
    free = [Holder(LockFiles(str(top / str(host)))).look(Wish("after", "auto", {}))["free"] for host in range(HOSTS)]
    doubled = [path.name for path in top.glob("doubled-*")]
    print(json.dumps({"finished": finished, "killed": killed, "free": free, "doubled": doubled}))


main()
