# What mpirun starts in place of a worker: it asks the node's agent for the worker, and ends as the worker does.
#
# The fork server is every worker's parent. This process is known to the MPI in its place: it hands over its variables
# and the descriptor of its PMI connection, passes on the signals that the MPI sends, and takes over the exit code. Only
# modules in C are imported, as one such process is started per rank.

import _signal  # type: ignore[import-not-found]
import _socket
import os
import resource
import sys

hub = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
try:
    hub.connect("\0" + os.environ["DISTLAUNCH_MPI_HUB"].replace("%N", os.environ.get("SLURMD_NODENAME", "")))
except (OSError, KeyError) as error:
    sys.exit(f"distlaunch: the agent of this node is not there: {error}")
words = [b"rank", *(name + b"=" + value for name, value in os.environb.items())]
data = b"\0".join(words)
pmi = os.environ.get("PMI_FD", "")
fds = int(pmi).to_bytes(4, sys.byteorder) if pmi.isdigit() else b""
more = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)] if fds else []
hub.sendmsg([len(data).to_bytes(4, "big")], more)
hub.sendall(data)
if fds:
    os.close(int(pmi))


def pass_on(number: int, _: object) -> None:
    """Pass a signal of the MPI's on to the worker."""
    hub.send(bytes([number]))


for number in (1, 2, 3, 10, 12, 15, 20):
    _signal.signal(number, pass_on)
code = b""
while len(code) < 4:
    part = hub.recv(4 - len(code))
    if not part:  # the run is being stopped: the worker has its time, and the MPI must not end before
        _signal.alarm(600)
        while True:
            _signal.pause()
    code += part
ended = int.from_bytes(code, "big", signed=True)
if ended < 0:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in {-ended} - {9, 19}:
        _signal.signal(number, _signal.SIG_DFL)
    os.kill(os.getpid(), -ended)
os._exit(ended if 0 <= ended < 256 else 1)
