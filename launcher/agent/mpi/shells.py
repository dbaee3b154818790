"""The run as a remote shell: a command for another node goes over the run's store, and its exit code comes back.

Each node has an inbox there, of commands and exit codes, and a thread that waits for its next message.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import subprocess
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Sequence, Tuple

from ..store.interface import StoreError

if TYPE_CHECKING:
    from ..store.interface import Store
    from .hub import Caller

_WAIT_S = 30.0
_END_S = 1.0
_NO_NODE = 255
_BY_SIGNAL = 128
_KILLED = range(_BY_SIGNAL + 1, _BY_SIGNAL + 32)
"""How a shell ends if the command that it waited for was ended by a signal."""

_OTHER_SHELLS = ("csh", "tcsh", "fish")


class Shells:
    """One node's part: passes on what mpirun asks for here, and executes what it asks for elsewhere."""

    def __init__(self, node: int, hosts: Sequence[str], store: Store, env: Dict[str, str], cwd: str) -> None:
        """`hosts`: the names that mpirun knows. `store`: the round's part. `env`: that of commands."""
        self._node, self._hosts, self._store, self._env, self._cwd = node, list(hosts), store, env, cwd
        self._inbox = _Inbox(store, node)
        self._waiting: List[Caller] = []
        """Remote shells, by the numbers of their commands; closed ones stay."""

        self._running: List[Tuple[int, int, subprocess.Popen[bytes]]] = []
        """The commands here: the node that has asked, its number of the command, and the shell."""

        self.killed = 0
        """The signal that ended a command here, if one did."""

    def fileno(self) -> int:
        """A descriptor that is readable once there is something for `attend`."""
        return self._inbox.reader

    def ask(self, caller: Caller) -> None:
        """Pass on a remote shell's command."""
        host, *command = (os.fsdecode(word) for word in caller.words[1:])
        if host not in self._hosts:
            sys.stderr.write(f"distlaunch: mpirun asks for the host {host}, which the run does not have\n")
            caller.answer(_NO_NODE)
            caller.close()
            return
        about = {"command": " ".join(command), "node": self._node, "number": len(self._waiting)}
        self._waiting.append(caller)
        _send(self._store, self._hosts.index(host), about)

    def attend(self, *, starting: bool) -> None:
        """Execute what was asked for here, if the ranks are still starting, and pass on exit codes."""
        for message in self._inbox.take():
            if "code" in message:
                caller = self._waiting[message["number"]]
                caller.answer(message["code"])
                caller.close()
            elif starting:
                self._running.append((message["node"], message["number"], self._execute(message["command"])))
        for ended in [one for one in self._running if one[2].poll() is not None]:
            self._running.remove(ended)
            node, number, process = ended
            code = process.returncode
            _send(self._store, node, {"code": code, "number": number})
            self.killed = self.killed or (-code if code < 0 else code - _BY_SIGNAL if code in _KILLED else 0)

    def _execute(self, command: str) -> subprocess.Popen[bytes]:
        """Start it as sshd would: by the user's shell, whose syntax mpirun has chosen."""
        shell = "/bin/sh"
        try:
            own = pwd.getpwuid(os.getuid()).pw_shell
        except KeyError:  # a container may run as a user without a name
            own = ""
        if own.endswith(_OTHER_SHELLS) and os.access(own, os.X_OK):
            shell = own
        return subprocess.Popen(
            [shell, "-c", command],
            env=self._env,
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
        )

    def close(self) -> None:
        """Let go of remote shells."""
        self._inbox.close()
        for caller in self._waiting:
            caller.close()
        self._waiting = []


class _Inbox:
    """A node's messages, in order."""

    def __init__(self, store: Store, node: int) -> None:
        self._store, self._node = store, node
        self._new: Deque[Dict[str, Any]] = deque()
        self._closed = False
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        self._thread = threading.Thread(target=self._listen, name="remote shells", daemon=True)
        self._thread.start()

    def take(self) -> List[Dict[str, Any]]:
        """What has come since the last time."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 4096)
        return [self._new.popleft() for _ in range(len(self._new))]

    def close(self) -> None:
        """Wait for no more."""
        self._closed = True
        self._store.wake()
        self._thread.join(_END_S)
        if not self._thread.is_alive():
            os.close(self.reader)
            os.close(self._writer)

    def _listen(self) -> None:
        taken = 0
        with contextlib.suppress(StoreError):  # the run ends by that, which others notice
            while not self._closed:
                (message,) = self._store.wait({f"shell/{self._node}/{taken}": None}, _WAIT_S)
                if message is not None:
                    taken += 1
                    self._new.append(json.loads(message))
                    os.write(self._writer, b"\0")


def _send(store: Store, node: int, message: Dict[str, Any]) -> None:
    number = store.add(f"shells/{node}", 1) - 1
    store.set(f"shell/{node}/{number}", json.dumps(message))
