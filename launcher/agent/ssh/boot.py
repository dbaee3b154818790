"""The program that a login runs before the host has an agent: it installs the agent if it is missing, and becomes it.

It comes with the first request, see `first.py`, and imports nothing of the agent before that is installed. Its argument
is the mark of an answer. Who owns the directories, and whether the agent matches its name, is checked before the agent
runs. The rule about whose paths are trusted (the text of `system/trust.py`) decides that, and has the words for what is
wrong. It is not compiled for what `_is_ours` can tell at a glance.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import json
import marshal
import os
import stat
import sys
import time
import zlib
from importlib import import_module
from importlib.util import MAGIC_NUMBER
from types import ModuleType
from typing import Any, Callable, Dict, NoReturn, Optional

_INSTALL_S = 15.0
"""A host that has not installed the agent on a shared disk by then may have failed: another one installs it, too."""

_PACKAGE = "distlaunch_agent"
_NS = 10**9


class Home:
    """The directory of agents, snapshots and runs on this host, and the requested agent in it."""

    def __init__(self, request: Dict[str, Any]) -> None:
        self._text, self._trusted, self._known = request.pop("rule"), request.pop("trusted"), dict[str, Any]()
        self._whole_ns: int = request.pop("whole_ns")
        self._name: str = request["agent"]
        self.base = os.path.expanduser(request["dir"])
        self.path = os.path.join(self.base, "agents", self._name + ".pyz")

    def prepare(self) -> None:
        """Create the directories; refuse those that another user can change."""
        for directory in [os.path.join(self.base, name) for name in ("agents", "snapshots", "runs", "projects")]:
            if not (_is_ours(directory) and os.path.isdir(directory)):
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
        _say({"lacks": "agent"})
        told = json.loads(sys.stdin.buffer.readline())
        own = f"{self.path}.{os.getpid()}-{os.urandom(4).hex()}"
        umask = os.umask(0o077)
        replaced: Optional[str] = None
        try:
            found = self._problem() if os.path.lexists(self.path) else None
            if found:
                replaced = found.message
                os.rename(self.path, own + ".old")
            agent = zlib.decompress(sys.stdin.buffer.read(told["bytes"]), bufsize=told["unpacked"])
            with open(own, "xb") as file:
                file.write(agent)
                file.flush()
                safe = _is_on_disk(file.fileno())
            if safe and zlib.crc32(agent) == told["crc32"]:
                self._mark(own, self._whole_ns)
            os.replace(own, self.path)
        except OSError:  # another host that shares the disk may have installed it meanwhile
            if not os.path.exists(self.path):
                raise
        finally:
            os.umask(umask)
            _remove(own, own + ".old", self.path + ".new")
        _refuse(self._problem())
        return replaced

    def _problem(self) -> Any:
        """Why the installed agent must not be run, and the fix."""
        if _is_ours(os.path.dirname(self.path)) and _is_ours(self.path) and self._is_whole():
            return None
        return self._rule["agent_problem"](self.path, self._trusted)

    def _is_whole(self) -> bool:
        """Whether nothing has been written to it since its content was known to match its name."""
        try:
            about = os.lstat(self.path)
        except OSError:  # it was removed
            return False
        return stat.S_ISREG(about.st_mode) and about.st_mtime_ns % _NS == self._whole_ns

    def suspect(self) -> None:
        """Have it read whole the next time."""
        self._mark(self.path, 0)

    @staticmethod
    def _mark(path: str, fraction_ns: int) -> None:
        """Set its time to now, with this fraction of a second. If that fails, it is read whole each time."""
        now_ns = int(time.time()) * _NS
        with contextlib.suppress(OSError):
            os.utime(path, ns=(now_ns, now_ns + fraction_ns))

    @property
    def _rule(self) -> Dict[str, Any]:
        if not self._known:
            self._known["__name__"] = "distlaunch_rule"
            exec(zlib.decompress(binascii.a2b_base64(self._text)), self._known)  # noqa: S102 - sent by the launcher
        return self._known


def main(request: Dict[str, Any]) -> Optional[Callable[[], None]]:
    """Hold the conversation; returns what a forked child is to become once it has left these frames, if it is one."""
    home, places, calls = Home(request), request.pop("bytecode"), None
    try:
        home.prepare()
        for _ in range(2):
            replaced = home.install() if home.turn() else None
            if replaced:
                request["replaced"] = replaced
            calls = _calls(home.path, places)
            if calls is not None:
                break
            home.suspect()
    except OSError as error:
        _end(f"{error.filename or os.path.dirname(home.path)}: {error.strerror or error}")
    if calls is None:
        _end(f"{home.path} cannot be read, though it matches its name; remove it")
    try:
        task: Optional[Callable[[], None]] = calls.converse(request)
    except Exception:  # a module may be damaged that is imported later
        home.suspect()
        raise
    return task


def _is_ours(path: str) -> bool:
    """Whether the rule is sure to trust a path: no links, all of it root's or this user's, no other may write to it."""
    users, here = (0, os.getuid()), "/"
    names = [name for name in path.split("/") if name]
    if not os.path.isabs(path) or "." in names or ".." in names:
        return False
    try:
        steps = [os.lstat("/"), *(os.lstat(here := os.path.join(here, name)) for name in names)]
    except OSError:
        return False
    *way, last = steps
    return (
        all(about.st_uid in users and stat.S_ISDIR(about.st_mode) for about in way)
        and all(not about.st_mode & 0o022 or about.st_mode & stat.S_ISVTX for about in way)
        and last.st_uid in users
        and not last.st_mode & 0o022
        and (stat.S_ISDIR(last.st_mode) or stat.S_ISREG(last.st_mode))
    )


def _is_on_disk(fd: int) -> bool:
    """Wait until a file's content is on the disk; False if its file system has nothing of that kind."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
        return False
    return True


def _remove(*paths: str) -> None:
    """Remove files and directories as far as they exist."""
    for path in paths:
        for remove in (os.unlink, os.rmdir):
            with contextlib.suppress(OSError):
                remove(path)
        if os.path.lexists(path):  # a directory with something in it, in place of an agent
            import_module("shutil").rmtree(path, ignore_errors=True)


def _calls(agent: str, places: Dict[str, Any]) -> Any:
    """The module that answers requests, from the agent's archive; None if that is damaged, or was removed.

    `places`: where it has its bytecode.
    """
    sys.path[:] = [agent, *(path for path in sys.path if path != agent)]
    if places["magic"] != MAGIC_NUMBER.hex():
        import_module(f"{_PACKAGE}.bytecode").compiled()
        return import_module(f"{_PACKAGE}.ssh.calls")
    try:
        with open(agent, "rb") as file:
            reader, packed = (os.pread(file.fileno(), *places[name]) for name in ("reader", "all"))
        bytecode = ModuleType(f"{_PACKAGE}.bytecode")
        exec(marshal.loads(reader), bytecode.__dict__)  # noqa: S302,S102 - the agent, which was checked
        bytecode.serve(packed, agent)
        return import_module(f"{_PACKAGE}.ssh.calls")
    except (FileNotFoundError, EOFError, ValueError, TypeError):
        for known in (sys.modules, sys.path_importer_cache):
            for name in [name for name in known if name.startswith((_PACKAGE, agent))]:
                del known[name]
        return None


def _refuse(found: Any) -> None:
    """If the rule has found a problem, report it with its fix and exit."""
    if found:
        _end(f"{found.message}; fix it there: {found.hint}")


def _end(problem: str) -> NoReturn:
    _say({"problem": problem})
    sys.exit(0)


def _say(answer: Dict[str, Any]) -> None:
    sys.stdout.write(f"\n{sys.argv[1]}{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _task = main(globals()["_request"])
    if _task is None:
        os._exit(0)  # nothing needs cleanup
    _task()
