"""A worker of one role: meets the role that its first argument names, at that role's port; then does what is next.

The words after it: `wait` for a minute, or with `for=S` for so many seconds; `fail` with exit code 3; `once`, to fail
so only in its role's first round; `rank=R`, to do these only as that rank of its role.
"""

import contextlib
import os
import socket
import sys
import time

target, words = sys.argv[1].upper(), sys.argv[2:]
role, rank = os.environ["DISTLAUNCH_ROLE"], os.environ.get("RANK") or os.environ["DISTLAUNCH_RANK"]
world = os.environ.get("WORLD_SIZE") or os.environ["DISTLAUNCH_WORLD_SIZE"]
address, _, port = os.environ[f"DISTLAUNCH_ROLE_{target}_MASTER"].rpartition(":")
hosts = len(os.environ[f"DISTLAUNCH_ROLE_{target}_HOSTS"].split(","))


def serve() -> None:
    server = socket.create_server(("", int(port)))
    print(f"{role} {rank} of {world} serves", flush=True)
    own, waiting = set(), []
    while True:
        peer, _ = server.accept()
        waiting.append((peer, peer.recv(100)))
        own |= {text for _, text in waiting if text.startswith(role.encode())}
        while waiting and len(own) == int(world) - 1:  # or the others, once they are done, would end those of this role
            peer, text = waiting.pop()
            with contextlib.suppress(OSError), peer:
                peer.sendall(text + f" met {role}".encode())


def meet() -> None:
    for _ in range(600):
        try:
            with socket.create_connection((address, int(port)), timeout=20) as peer:
                peer.sendall(f"{role} {rank} of {world}".encode())
                print(f"{peer.recv(100).decode()} on {hosts} hosts", flush=True)
                return
        except OSError:
            time.sleep(0.1)
    sys.exit("nobody serves")


if role.upper() == target and rank == "0":
    serve()
meet()
if all(word == f"rank={rank}" for word in words if word.startswith("rank=")):
    if "wait" in words:
        print("waits", flush=True)
        time.sleep(float(dict(word.split("=") for word in words if "=" in word).get("for", "60")))
    if "fail" in words or ("once" in words and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"):
        print("fails", flush=True)
        sys.exit(3)
