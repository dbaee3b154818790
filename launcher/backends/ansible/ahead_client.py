"""Stands in for one of Ansible's programs, which runs in a fork of `ahead_server.py`: `ADDRESS PROGRAM ARGUMENT...`.

Becomes the program itself if the server is gone or cannot run it. If this process is killed, so is the program.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys


def main() -> None:
    """Lend the program this process's files, variables and directory, and exit as it does."""
    address, argv = sys.argv[1], sys.argv[2:]
    code = _lend(address, argv)
    if code is None:
        os.execvp(argv[0], argv)
    sys.exit(code)


def _lend(address: str, argv: list[str]) -> int | None:
    """The program's exit code; None if the server did not run it."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.connect("\0" + address)
            _, owner, _ = struct.unpack("3i", server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if owner != os.getuid():
                return None
            request = {"argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}
            data = json.dumps(request).encode("ascii")
            socket.send_fds(server, [struct.pack("!I", len(data))], [0, 1, 2])
            server.sendall(data)
            answer = server.recv(64)
            return int(answer) if answer else None
    except OSError:
        return None


if __name__ == "__main__":
    main()
