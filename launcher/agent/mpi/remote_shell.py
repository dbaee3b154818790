# The remote shell of mpirun: `HOST COMMAND`, which the agent of that node executes; ends with the command's exit code.

import _socket
import os
import sys

words = sys.argv[1:]
while words and words[0].startswith("-"):  # options of ssh
    del words[: 2 if words[0] in ("-l", "-p", "-o", "-i") else 1]
hub = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
try:
    hub.connect("\0" + os.environ["DISTLAUNCH_MPI_HUB"])
except (OSError, KeyError) as error:
    sys.exit(f"distlaunch: the agent of this node is not there: {error}")
data = b"\0".join([b"shell", *map(os.fsencode, words)])
hub.sendall(len(data).to_bytes(4, "big") + data)
code = b""
while len(code) < 4:
    part = hub.recv(4 - len(code))
    if not part:
        sys.exit(255)
    code += part
ended = int.from_bytes(code, "big", signed=True)
os._exit(ended if 0 <= ended < 256 else 255)
