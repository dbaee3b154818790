"""Imports Ansible once for the two programs of a launch, ansible-inventory and ansible-playbook, ahead of both.

Most of their time is the import of Ansible. `ahead_server.py` imports it and forks for each of them; `ahead_client.py`
is started in their place, and lends the fork its files, variables and working directory. If anything would differ from
a program of its own, above all a setting of Ansible's, the client becomes that program instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IDLE_S = 60.0
"""The server exits if no program is started within this time."""

_HERE = Path(__file__).parent
_WAITING = 8
_END_S = 1.0


class Ahead:
    """An interpreter that imports Ansible. It exits when this process does."""

    def __init__(self, python: str, env: Mapping[str, str], *, early: bool = False) -> None:
        """`env`: the variables with which Ansible reads its settings. `early`: `tell` brings those of Ansible's own."""
        self._python, self._env = python, dict(env)
        self.address = f"distlaunch-{os.getpid()}-{secrets.token_hex(8)}"  # in Linux's abstract namespace
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind("\0" + self.address)
            listening.listen(_WAITING)
            self._process = subprocess.Popen(
                [python, str(_HERE / "ahead_server.py"), str(listening.fileno()), str(IDLE_S), *["early"] * early],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(env),
                pass_fds=[listening.fileno()], start_new_session=True, cwd="/",
            )  # fmt: skip

    def tell(self, python: str, env: Mapping[str, str]) -> bool:
        """Bring the settings; False if it is another Python, or other variables than Ansible's differ."""
        if (python, _others(env)) != (self._python, _others(self._env)) or self._process.poll() is not None:
            return False
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(dict(env)).encode("ascii") + b"\n")
            self._process.stdin.flush()
        except OSError:
            return False
        return True

    def words(self, argv: Sequence[str]) -> list[str]:
        """The command that runs one of Ansible's programs in a fork of the interpreter."""
        return [sys.executable, "-IS", str(_HERE / "ahead_client.py"), self.address, *argv]

    def kill(self) -> None:
        """End the server, which no one has used."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """End the server, which may still be importing. Programs that it has started continue."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_now: Ahead | None = None
_begun: list[Ahead] = []
_lock = threading.Lock()
_HELP = frozenset(("--help", "-h"))


def begin(words: Sequence[str]) -> None:
    """Begin the import for a command with these words, while the launcher is still being imported itself."""
    program = os.path.join(os.path.dirname(sys.executable), "ansible-inventory")
    if words and _HELP.isdisjoint(words):
        with contextlib.suppress(OSError):
            if python := _python_of(program):
                _begun.append(Ahead(python, os.environ, early=True))


def drop() -> None:
    """End it, if it was not needed."""
    while _begun:
        _begun.pop().kill()


def start(program: str, env: Mapping[str, str]) -> dict[str, str]:
    """Start the import for programs with these variables, if it can be seen which Python runs `program`.

    Returns the variables with those that ansible-runner adds, which `program` is to have then.
    """
    global _now
    python = _python_of(program)
    runner = find_spec("ansible_runner")
    if not (python and runner and runner.origin):
        return dict(env)
    whole = {**env, **_of_runner(env, Path(runner.origin).parent)}
    early = _begun.pop() if _begun else None
    if early is not None and not early.tell(python, whole):
        early.kill()
        early = None
    made = early or Ahead(python, whole)
    with _lock:
        _now, before = made, _now
    if before:
        before.close()
    return whole


def words(argv: Sequence[str]) -> list[str]:
    """`argv`, one of Ansible's programs; in a fork of the interpreter that has imported Ansible, if there is one."""
    with _lock:
        return _now.words(argv) if _now else list(argv)


def end() -> None:
    """Let the interpreter exit, once no further program is needed."""
    global _now
    with _lock:
        ended, _now = _now, None
    if ended:
        ended.close()


def _others(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that are not Ansible's."""
    return {name: value for name, value in env.items() if not name.startswith("ANSIBLE_")}


def _python_of(program: str) -> str:
    """The interpreter that the program's first line names; empty if it is anything else."""
    with open(program, "rb") as file:
        first = file.readline(256)
    words = os.fsdecode(first.removeprefix(b"#!")).split()
    named = words[0] if first.startswith(b"#!") and len(words) == 1 else ""
    return named if os.path.basename(named).startswith("python") and os.access(named, os.X_OK) else ""


def _of_runner(env: Mapping[str, str], package: Path) -> dict[str, str]:
    """The settings that ansible-runner adds. If another version adds others, the import is not used."""
    callbacks = [env.get("ANSIBLE_CALLBACK_PLUGINS"), str(package / "display_callback" / "callback")]
    return {
        "ANSIBLE_CALLBACK_PLUGINS": ":".join(filter(None, callbacks)),
        "ANSIBLE_STDOUT_CALLBACK": "awx_display",
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
        "ANSIBLE_CACHE_PLUGIN": "jsonfile",
    }
