"""The program that a login runs before the host has an agent: it installs the agent if it is missing, and becomes it.

It is sent on the command line after `python_version.py`, and imports nothing of the agent before that is installed. Its
argument is the mark of an answer. Its first request has the rule about whose paths are trusted (the text of
`system/trust.py`): who owns the directories, and whether the agent matches its name, is checked before the agent runs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from importlib import import_module
from typing import Any, Callable, Dict, NoReturn, Optional, Tuple

_INSTALL_S = 15.0
"""A host that has not installed the agent on a shared disk by then may have failed: another one installs it, too."""

_PACKAGE = "distlaunch_agent"


class Home:
    """The directory of agents, snapshots and runs on this host, and the requested agent in it."""

    def __init__(self, request: Dict[str, Any]) -> None:
        self._rule: Dict[str, Any] = {"__name__": "distlaunch_rule"}
        exec(request.pop("rule"), self._rule)  # noqa: S102 - sent by the launcher
        self._trusted = request.pop("trusted")
        self.base = os.path.expanduser(request["dir"])
        self.path = os.path.join(self.base, "agents", request["agent"] + ".pyz")

    def prepare(self) -> None:
        """Create the directories; refuse those that another user can change."""
        for name in ("agents", "snapshots", "runs", "projects"):
            directory = os.path.join(self.base, name)
            _refuse(self._rule["make"](directory, 0o700, self._trusted))
            _refuse(self._rule["problem"](directory, self._trusted, searched=True))

    def turn(self) -> bool:
        """Whether this host has to install the agent; of those that share the disk, one does and the others wait."""
        mine, began = False, time.time()
        while not mine and (not os.path.lexists(self.path) or self._problem()):
            try:
                os.mkdir(self.path + ".new", 0o700)
                mine = True
            except FileExistsError:
                time.sleep(0.02)
                mine = time.time() - began > _INSTALL_S
        return mine

    def install(self) -> Optional[str]:
        """Request the agent, which others see once it can answer; returns what was wrong with an old one."""
        import zlib

        _say({"lacks": "agent"})
        size = json.loads(sys.stdin.buffer.readline())["bytes"]
        own = f"{self.path}.{os.getpid()}-{os.urandom(4).hex()}"
        umask = os.umask(0o077)
        replaced: Optional[str] = None
        try:
            found = self._problem() if os.path.lexists(self.path) else None
            if found:
                replaced = found[0]
                os.rename(self.path, own + ".old")
            with open(own, "xb") as file:
                file.write(zlib.decompress(sys.stdin.buffer.read(size)))
            os.replace(own, self.path)
        except OSError:  # another host that shares the disk may have installed it meanwhile
            if not os.path.exists(self.path):
                raise
        finally:
            os.umask(umask)
            _remove(own, own + ".old", self.path + ".new")
        _refuse(self._problem())
        return replaced

    def _problem(self) -> Optional[Tuple[str, str]]:
        """Why the installed agent must not be run, and the fix."""
        found: Optional[Tuple[str, str]] = self._rule["agent_problem"](self.path, self._trusted)
        return found


def main() -> Optional[Callable[[], None]]:
    """Hold the conversation; returns what a forked child is to become once it has left these frames, if it is one."""
    gc.disable()  # what is imported stays, and so does what is made for the agent
    request = json.loads(sys.stdin.buffer.readline())
    home = Home(request)
    try:
        home.prepare()
        if home.turn():
            replaced = home.install()
            if replaced:
                request["replaced"] = replaced
        calls = _calls(home.path)
    except OSError as error:
        _end(f"{error.filename or os.path.dirname(home.path)}: {error.strerror or error}")
    task: Optional[Callable[[], None]] = calls.converse(request)
    return task


def _remove(*paths: str) -> None:
    """Remove files and directories as far as they exist."""
    import shutil

    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)
        shutil.rmtree(path, ignore_errors=True)


def _calls(agent: str) -> Any:
    """The module that answers requests, from the agent's archive."""
    sys.path.insert(0, agent)
    import_module(f"{_PACKAGE}.bytecode").compiled()
    return import_module(f"{_PACKAGE}.ssh.calls")


def _refuse(found: Optional[Tuple[str, str]]) -> None:
    """If something is wrong, report it with its fix and exit."""
    if found:
        _end(f"{found[0]}; fix it there: {found[1]}")


def _end(problem: str) -> NoReturn:
    _say({"problem": problem})
    sys.exit(0)


def _say(answer: Dict[str, Any]) -> None:
    sys.stdout.write(f"\n{sys.argv[1]}{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _task = main()
    if _task is None:
        os._exit(0)  # nothing needs cleanup
    _task()
