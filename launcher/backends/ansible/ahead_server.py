"""Imports Ansible once and runs its programs in forks: `FD SECONDS`, a listening socket and how long it may be idle.

Runs in Ansible's own interpreter, and imports nothing of distlaunch. Exits when its stdin ends, with the launcher.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import Any, Callable, Mapping, Sequence

_READ_AT_IMPORT = ("ANSIBLE_", "_ANSIBLE_", "PYTHON", "LC_", "LANG", "HOME", "USER", "TZ", "LD_", "XDG_")
_MAY_DIFFER = {
    "ANSIBLE_FORKS",  # given on the command line
    "ANSIBLE_CACHE_PLUGIN_CONNECTION",  # read when the plugin is loaded
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED",  # set here, for both: the playbook reads what was just accepted
}
_MODULES = (
    "ansible.cli.inventory", "ansible.cli.playbook", "ansible.executor.playbook_executor",
    "ansible.plugins.strategy.linear", "ansible.plugins.inventory.ini", "ansible.plugins.callback.default",
)  # fmt: skip
_PROGRAMS = {"ansible-inventory": "ansible.cli.inventory", "ansible-playbook": "ansible.cli.playbook"}


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """Those variables that Ansible, or Python, reads while it is imported."""
    return {name: env[name] for name in env if name.startswith(_READ_AT_IMPORT) and name not in _MAY_DIFFER}


def main() -> Callable[[], None]:
    """Serve until no one needs it; in a fork, run one of Ansible's programs."""
    listening, idle_s = socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2])
    listening.set_inheritable(False)
    before = settings(os.environ)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]  # its files may have the names of a plugin's modules
    for name in _MODULES:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listening.fileno(), 0], [], [], idle_s)
        if listening.fileno() not in ready:
            os._exit(0)
        connection, _ = listening.accept()
        if not os.fork():
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return answer(connection, before)
        connection.close()


def answer(connection: socket.socket, before: Mapping[str, str]) -> Callable[[], None]:
    """Run the program that the client names, with what it lends, and report its exit code."""
    _, owner, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if owner != os.getuid():
        os._exit(1)
    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    request = json.loads(read(connection, struct.unpack("!I", head)[0]))
    name = os.path.basename(request["argv"][0])
    alone = len(os.listdir("/proc/self/task")) == 1
    if name not in _PROGRAMS or settings(request["env"]) != before or not alone or len(files) != 3:
        os._exit(0)  # the client becomes the program
    program = os.fork()
    if not program:
        connection.close()
        return become(request, files, name)
    with contextlib.suppress(OSError):  # it has done so itself
        os.setpgid(program, program)
    for file in (0, 1, 2, *files):  # its reader waits until all have closed it
        os.close(file)
    ended = os.pidfd_open(program)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(connection, select.POLLIN)
    if ended not in [fd for fd, _ in poll.poll()]:  # the client was killed
        os.killpg(program, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(b"%d" % (code if code >= 0 else 128 - code))
    os._exit(0)


def read(connection: socket.socket, size: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            os._exit(1)
        data += more
    return data


def become(request: Mapping[str, Any], files: Sequence[int], name: str) -> Callable[[], None]:
    """Take over what the client lends; returns what then runs the program."""
    os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    forks = request["env"].get("ANSIBLE_FORKS") if name == "ansible-playbook" else None
    sys.argv[:] = [*request["argv"], *(["--forks", forks] if forks else [])]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=stream.isatty())
    main: Callable[[], None] = importlib.import_module(_PROGRAMS[name]).main
    return main


if __name__ == "__main__":
    main()()
