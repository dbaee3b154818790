"""The run as a remote shell: a command for another node goes over the run's store, and its exit code comes back."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple

if TYPE_CHECKING:
    from ..store.interface import Store
    from .hub import Caller

_LOOK_S, _LOOK_AT_MOST_S = 0.02, 0.1
_LOOK_LATER_S = 0.25
_FEW_NODES = 100
"""Of more nodes, each looks less often: together they ask the store as often as this many."""

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
        self._waiting: Dict[str, Caller] = {}
        """Remote shells, by the keys of their exit codes."""

        self._running: List[Tuple[str, subprocess.Popen[bytes]]] = []
        self._taken = 0
        self.killed = 0
        """The signal that ended a command here, if one did."""

        self._look_at = self._answers_at = 0.0
        self._pause_s = _LOOK_S

    def ask(self, caller: Caller) -> None:
        """Pass on a remote shell's command."""
        host, *command = (os.fsdecode(word) for word in caller.words[1:])
        if host not in self._hosts:
            sys.stderr.write(f"distlaunch: mpirun asks for the host {host}, which the run does not have\n")
            caller.answer(_NO_NODE)
            caller.close()
            return
        node = self._hosts.index(host)
        number = self._store.add(f"shells/{node}", 1) - 1
        self._store.set(f"shell/{node}/{number}", json.dumps(" ".join(command)))
        self._waiting[f"shell/{node}/{number}/code"] = caller

    def attend(self, *, starting: bool) -> None:
        """Execute what was asked for here, if the ranks are still starting, and collect exit codes."""
        now = time.monotonic()
        if starting and now >= self._look_at:
            self._look_at = now + self._pause_s * max(1.0, len(self._hosts) / _FEW_NODES)
            self._pause_s = min(1.2 * self._pause_s, _LOOK_AT_MOST_S)
            (command,) = self._store.peek([f"shell/{self._node}/{self._taken}"])
            if command is not None:
                self._execute(json.loads(command))
        for key, process in [ended for ended in self._running if ended[1].poll() is not None]:
            self._running.remove((key, process))
            self._store.set(key, str(process.returncode))
            code = process.returncode
            self.killed = self.killed or (-code if code < 0 else code - _BY_SIGNAL if code in _KILLED else 0)
        if self._waiting and now >= self._answers_at:
            self._answers_at = now + _LOOK_LATER_S
            keys = list(self._waiting)
            for key, code in zip(keys, self._store.peek(keys)):
                if code is not None:
                    caller = self._waiting.pop(key)
                    caller.answer(int(code))
                    caller.close()

    def _execute(self, command: str) -> None:
        """Start it as sshd would: by the user's shell, whose syntax mpirun has chosen."""
        key, shell = f"shell/{self._node}/{self._taken}/code", "/bin/sh"
        self._taken += 1
        try:
            own = pwd.getpwuid(os.getuid()).pw_shell
        except KeyError:  # a container may run as a user without a name
            own = ""
        if own.endswith(_OTHER_SHELLS) and os.access(own, os.X_OK):
            shell = own
        process = subprocess.Popen(
            [shell, "-c", command],
            env=self._env,
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
        )
        self._running.append((key, process))

    def close(self) -> None:
        """Let go of remote shells."""
        for caller in self._waiting.values():
            caller.close()
        self._waiting = {}
