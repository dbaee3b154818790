"""What a rank does after the sum, by the script's arguments: it fails, waits, writes, or ends."""

import os
import signal
import sys
import time


def then(rank, meet):
    """`meet` is where all ranks wait for one another: those that do not fail wait there for the one that does."""
    what, _, value = (sys.argv[1:] or [""])[0].partition("=")
    if what == "lines":
        for number in range(int(value)):
            print(f"line {number} of rank {rank}")
    elif what == "wait":
        print("waits", flush=True)
        time.sleep(600)
    elif what:
        if what == "once":
            meet()  # the others have printed: they do not outlive this rank
        if rank == int(value):
            fail(what)
        meet()


def fail(what):
    """Fail in this way; `once` is to fail in the first round only."""
    if what == "once":
        if os.path.exists("failed"):
            return
        open("failed", "w").close()
    if what in ("raise", "once"):
        raise ValueError("this rank cannot go on")
    if what == "exit":
        sys.exit(7)
    os.kill(os.getpid(), {"segv": signal.SIGSEGV, "kill": signal.SIGKILL}[what])
    time.sleep(60)
