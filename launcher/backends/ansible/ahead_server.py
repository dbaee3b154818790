"""Imports Ansible once and runs its programs in forks: `FD SECONDS`, a listening socket and how long it may be idle.

Ansible reads its settings while it is imported. With `early` as a third argument, these variables come as a line of
JSON on stdin, and what reads none of them is imported before.

While the first of them runs, it loads what the next one will need: Ansible's own plugins and their documentation.
Runs in Ansible's own interpreter, and imports nothing of distlaunch. Exits when its stdin ends, with the launcher.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import hashlib
import importlib
import importlib.util
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
_EARLY = (
    "jinja2.nativetypes", "jinja2.sandbox", "yaml", "cryptography.hazmat.primitives.ciphers", "packaging.version",
    "multiprocessing.queues", "multiprocessing.synchronize", "email.message", "logging.handlers", "urllib.request",
    "configparser", "ctypes.util", "ipaddress", "pickle", "zipfile", "argparse", "getpass", "tempfile",
)  # fmt: skip
"""What Ansible imports of others. Of another version, it imports the rest itself."""

_PLUGINS = ("connection", "shell", "become", "callback", "vars", "inventory")
"""Kinds of which ansible-playbook loads all or most plugins, each with its documentation in YAML."""

_POLL_S = 0.01
"""How often it looks for results, of which there is one; its default is a thousand times a second."""

_COLLECTED = 20_000
"""Objects between two collections of garbage, of which there is little."""

_code: int | None = None
"""With which the program exits."""

_PROGRAMS = {"ansible-inventory": "ansible.cli.inventory", "ansible-playbook": "ansible.cli.playbook"}


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """Those variables that Ansible, or Python, reads while it is imported."""
    return {name: env[name] for name in env if name.startswith(_READ_AT_IMPORT) and name not in _MAY_DIFFER}


def main() -> Callable[[], None]:
    """Serve until no one needs it; in a fork, run one of Ansible's programs."""
    atexit.register(leave)  # the last hook, as it is the first one here
    listening, idle_s = socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2])
    listening.set_inheritable(False)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]  # its files may have the names of a plugin's modules
    gc.disable()  # what is imported stays
    if sys.argv[3:]:
        early()
    before = settings(os.environ)
    import_constants()
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()
    gc.set_threshold(_COLLECTED)
    gc.enable()
    routes = Routes(importlib.import_module("ansible.utils.collection_loader._collection_finder"))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    is_first = True
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
        if is_first:
            is_first = False
            routes.read()
            load_plugins()


def early() -> None:
    """Import what reads no settings of Ansible's, then take these. Exit if none come."""
    for name in _EARLY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    told = sys.stdin.buffer.readline()
    if not told:
        os._exit(0)
    os.environ.clear()
    os.environ.update(json.loads(told))


class Kept:
    """A file of Ansible's own in YAML that each program reads, kept as JSON, which is read 30 times as fast.

    It is kept beside Python's own bytecode of this module, by the digest of the YAML.
    """

    def __init__(self, name: str) -> None:
        """`name`: in Ansible's directory `config`."""
        self.text, self._json, self._file = b"", "", ""
        directory = os.path.dirname(sys.modules["ansible"].__file__ or "")
        with contextlib.suppress(OSError), open(os.path.join(directory, "config", name), "rb") as file:
            self.text = file.read()
        if self.text:
            digest = hashlib.sha256(self.text).hexdigest()[:32]
            self._file = f"{importlib.util.cache_from_source(__file__)}.{digest}.json"
            with contextlib.suppress(OSError, ValueError), open(self._file, encoding="utf-8") as file:
                json.loads(text := file.read())
                self._json = text

    def content(self) -> Any:
        """A copy of what the file has; None if that is not kept."""
        return json.loads(self._json) if self._json else None

    def keep(self, found: Any) -> None:
        """Keep what has been read, if JSON can hold it."""
        if not self._file or not is_plain(found):
            return
        self._json = json.dumps(found)
        if not sys.dont_write_bytecode:
            with contextlib.suppress(OSError):  # as Python does without its own bytecode
                os.makedirs(os.path.dirname(self._file), exist_ok=True)
                with open(part := f"{self._file}.{os.getpid()}", "w", encoding="utf-8") as file:
                    file.write(self._json)
                os.chmod(part, os.stat(__file__).st_mode & 0o666)
                os.replace(part, self._file)


def is_plain(found: Any) -> bool:
    """Whether it is the same after a way through JSON."""
    if type(found) is dict:
        return all(type(name) is str for name in found) and all(map(is_plain, found.values()))
    return all(map(is_plain, found)) if type(found) is list else type(found) in (str, int, float, bool, type(None))


def import_constants() -> None:
    """Import Ansible's constants, which reads the description of all of its settings, 90 KB."""
    manager: Any = importlib.import_module("ansible.config.manager")
    read, kept = getattr(manager, "yaml_load", None), Kept("base.yml")
    if not read:  # another version does that otherwise
        return

    def load(file: Any) -> Any:
        text = file.read()
        if text != kept.text:
            return read(text)
        if (found := kept.content()) is None:
            kept.keep(found := read(text))
        return found

    manager.yaml_load = load
    try:
        importlib.import_module("ansible.constants")
    finally:
        manager.yaml_load = read


class Routes:
    """Where Ansible's own collection has its plugins, 370 KB of YAML.

    `finder`: Ansible's module that reads it; if another version does that otherwise, nothing is changed.
    """

    def __init__(self, finder: Any) -> None:
        self._read: Any = getattr(finder, "_meta_yml_to_dict", None)
        self._kept = Kept("ansible_builtin_runtime.yml")
        self._known = self._kept.content()
        if self._read:
            finder._meta_yml_to_dict = self

    def __call__(self, text: bytes, name: Any) -> Any:
        """What Ansible calls."""
        return self._read(text, name) if self._known is None or text != self._kept.text else self._known

    def read(self) -> None:
        """Read and keep it, if it is not."""
        if self._known is None and self._read:
            self._kept.keep(found := self._read(self._kept.text, ("ansible.builtin", "runtime.yml")))
            self._known = found


def load_plugins() -> None:
    """Load Ansible's own plugins of the kinds that are loaded whole; those of users and sites, only the programs do."""
    loaders = importlib.import_module("ansible.plugins.loader")
    for kind in _PLUGINS:
        with contextlib.suppress(Exception):  # of another version of Ansible: its program does it
            loader = getattr(loaders, f"{kind}_loader")
            own = [path for path in loader._get_paths_with_context() if path.internal]
            loader._get_paths_with_context = lambda own=own: own
            try:
                list(loader.all(class_only=True))
            finally:
                del loader._get_paths_with_context


def answer(connection: socket.socket, before: Mapping[str, str]) -> Callable[[], None]:
    """Run the program that the client names, with what it lends, and report its exit code."""
    _, owner, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if owner != os.getuid():
        os._exit(1)
    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as sent:
        request = json.loads(sent.read(struct.unpack("!I", head)[0]))  # it ends here if the client was killed
    name = os.path.basename(request["argv"][0])
    ready = len(os.listdir("/proc/self/task")) == 1 and len(files) == 3 and has_pidfds()
    if name not in _PROGRAMS or settings(request["env"]) != before or not ready:
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


def has_pidfds() -> bool:
    """Whether this kernel has them, since 5.3, and this Python, if it was built with headers of such a kernel."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


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
    constants = sys.modules["ansible.constants"]
    if getattr(constants, "DEFAULT_INTERNAL_POLL_INTERVAL", None) == 0.001:
        constants.DEFAULT_INTERNAL_POLL_INTERVAL = _POLL_S  # type: ignore[attr-defined]
    sys.argv[:] = [*request["argv"], *(["--forks", forks] if forks else [])]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=stream.isatty())
    main: Callable[[], None] = importlib.import_module(_PROGRAMS[name]).main
    return lambda: run(main)


def run(program: Callable[[], None]) -> None:
    """Run the program, and note its exit code for `leave`."""
    global _code  # noqa: PLW0603 - one process exits once
    try:
        program()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):  # Python prints others
            _code = (end.code or 0) & 0xFF
        raise
    _code = 0


def leave() -> None:
    """Exit, as the last exit hook, without taking all that was imported apart, which takes 30 ms."""
    if _code is not None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(_code)


if __name__ == "__main__":
    main()()
