"""The program that a login runs before there is an agent of ours: it installs the agent where that is missing, and becomes it.

It is sent on the command line, behind `python_version.py`, and imports nothing of the agent's until it has that. Its argument
is the mark of an answer. Its first request brings the rule about whose paths count (the text of `system/trust.py`): whose
directories these are, and that the agent is the one that its name says, is seen before any of it is run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from importlib import import_module
from typing import Any, Callable, Dict, NoReturn, Optional, Tuple

_INSTALL_S = 15.0
"""A host that has not installed the agent on a shared disk by then may have failed: another one does it, too."""

_PACKAGE = "distlaunch_agent"


class Home:
    """The directory of agents, snapshots and runs on this host, and in it the agent that is asked for."""

    def __init__(self, request: Dict[str, Any]) -> None:
        self._rule: Dict[str, Any] = {"__name__": "distlaunch_rule"}
        exec(request.pop("rule"), self._rule)  # noqa: S102 - the launcher's own
        self._trusted = request.pop("trusted")
        self.base = os.path.expanduser(request["dir"])
        self.path = os.path.join(self.base, "agents", request["agent"] + ".pyz")

    def prepare(self) -> None:
        """Make the directories; none is used in which somebody else has a hand."""
        for name in ("agents", "snapshots", "runs"):
            directory = os.path.join(self.base, name)
            _refuse(self._rule["make"](directory, 0o700, self._trusted))
            _refuse(self._rule["problem"](directory, self._trusted, searched=True))

    def turn(self) -> bool:
        """Whether it is for this host to install the agent; one of those that share the disk does, and the others wait for it."""
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
        """Ask for the agent, and unpack it; it is seen by others once it can answer. What was wrong with one that it replaces."""
        import shutil

        _say({"lacks": "agent"})
        size = json.loads(sys.stdin.buffer.readline())["bytes"]
        own = f"{self.path}.{os.getpid()}-{os.urandom(4).hex()}"
        umask = os.umask(0o077)
        replaced = None
        try:
            found = self._problem() if os.path.lexists(self.path) else None
            if found:
                replaced = found[0]
                os.rename(self.path, own + ".old")
                shutil.rmtree(own + ".old", ignore_errors=True)
            _unpack(sys.stdin.buffer.read(size), own)
            _calls(own)
            os.rename(own, self.path)
        except OSError:
            if not os.path.exists(self.path):
                raise
        finally:
            os.umask(umask)
            shutil.rmtree(own, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.rmdir(self.path + ".new")
        sys.path[:] = [each for each in sys.path if each != own]
        for name in [name for name in sys.modules if name.startswith(_PACKAGE)]:
            del sys.modules[name]
        _refuse(self._problem())
        return str(replaced) if replaced else None

    def _problem(self) -> Optional[Tuple[str, str]]:
        """Why the agent that is there must not be run, and what would mend it."""
        found: Optional[Tuple[str, str]] = self._rule["agent_problem"](self.path, self._trusted)
        return found


def main() -> Optional[Callable[[], None]]:
    """Hold the conversation; what a forked child is to become once it has left these frames, as `calls.converse` has it."""
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


def _unpack(archive: bytes, directory: str) -> None:
    """The agent as a directory, its byte-code to where Python looks for it."""
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        file.extractall(directory)
        tag = file.comment.decode()
    for place, _, names in list(os.walk(os.path.join(directory, _PACKAGE))):
        for name in [name for name in names if name.endswith(".pyc")]:
            os.renames(os.path.join(place, name), os.path.join(place, "__pycache__", f"{name[:-4]}.{tag}.pyc"))


def _calls(agent: str) -> Any:
    """The module that answers, of the agent in that directory."""
    sys.path.insert(0, agent)
    return import_module(f"{_PACKAGE}.ssh.calls")


def _refuse(found: Optional[Tuple[str, str]]) -> None:
    """End where something is wrong: with what it is, and what would mend it."""
    if found:
        _end(f"{found[0]}; mend it there: {found[1]}")


def _end(problem: str) -> NoReturn:
    _say({"problem": problem})
    sys.exit(0)


def _say(answer: Dict[str, Any]) -> None:
    sys.stdout.write(f"\n{sys.argv[1]}{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _task = main()
    if _task is None:
        os._exit(0)  # there is nothing to take apart
    _task()
