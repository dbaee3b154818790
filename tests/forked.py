"""Processes for tests without the cost of imports: forked from one that has imported everything, else like any other.

`server.popen(argv, ...)` is `subprocess.Popen(argv, ...)`. What a fork could not do in the same way (another
interpreter, its options, variables that are read when a process starts, modules that hide the preloaded ones) is
started as usual.
"""

from __future__ import annotations

import atexit
import errno
import inspect
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
_TITLE_ROOM = "x" * 4096
_READ_AT_START = re.compile(
    r"(PYTHON|LD_|LC_|LANG|MALLOC_|GLIBC_|COVERAGE_|OMP_|MKL_|KMP_|GOMP_|OPENBLAS_|GOTO_|BLIS_|NUMEXPR_"
    r"|CUDA_|PYTORCH_|TORCH_)"
)
"""Variables that the interpreter or a library reads before any script runs."""

_MAY_DIFFER = re.compile(
    r"(PYTHONPATH|PYTHONUNBUFFERED|(OMP|OPENBLAS|GOTO)_NUM_THREADS|TORCH_NCCL_\w+|TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    r"|HOME|KUBECONFIG"
    r"|CUDA_VISIBLE_DEVICES|KMP_DUPLICATE_LIB_OK|KMP_INIT_AT_FORK)$"  # scikit-learn sets the last two when imported
)
"""Those that a child can still be given, or reads again; HOME and KUBECONFIG only set defaults that no test uses."""

_UNDERSTOOD = {"args", "env", "cwd", "stdin", "stdout", "stderr", "start_new_session", "bufsize"}
_UNDERSTOOD |= {"text", "encoding", "errors", "universal_newlines", "pipesize"}


class Process(subprocess.Popen[Any]):
    """A process that the server has forked; its owner handles it as one of its own."""

    def __init__(self, server: Server, argv: Sequence[str], **options: Any) -> None:
        self._server = server
        super().__init__(argv, **options)

    def _execute_child(self, *given: Any) -> None:
        names = inspect.signature(subprocess.Popen._execute_child).parameters  # type: ignore[attr-defined]
        how = dict(zip(names, (self, *given), strict=True))
        argv = [os.fsdecode(arg) for arg in how["args"]]
        cwd = os.path.abspath(os.fsdecode(how["cwd"] or os.getcwd()))
        request = {
            "argv": argv,
            "env": {os.fsdecode(name): os.fsdecode(value) for name, value in (how["env"] or os.environ).items()},
            "cwd": cwd,
            "umask": _umask(),
            "session": how["start_new_session"],
            "first_path": _first_path(argv, cwd),
        }
        fds = [fd if fd >= 0 else usual for usual, fd in enumerate((how["p2cread"], how["c2pwrite"], how["errwrite"]))]
        self._life, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._server.send(request, [theirs.fileno(), *fds])
            theirs.close()
            self.pid = json.loads(self._life.recv(1024) or b'{"pid": 0}')["pid"]
        except BaseException:
            theirs.close()
            self._life.close()
            raise
        if not self.pid:
            self._life.close()
            raise OSError(errno.ECHILD, "the fork server has ended")
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(how[name] for name in pipes))  # type: ignore[attr-defined]

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            own = self._life.dup() if self.returncode is None else None  # another thread may close the other one
        if own is not None:
            with own:
                if not select.select([own], [], [], timeout)[0]:
                    assert timeout is not None
                    raise subprocess.TimeoutExpired(self.args, timeout)
        self._internal_poll()
        return int(self.returncode)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None and self._child_created and select.select([self._life], [], [], 0)[0]:
                message = self._life.recv(1024)
                self.returncode = json.loads(message)["code"] if message else -9  # it dies with its server
                with suppress(OSError):
                    self._life.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits, which closing would not
                self._life.close()  # lets the server forget it
        code: int | None = self.returncode
        return code


class Server:
    """One clean process that has imported `preload`, and forks from there."""

    def __init__(self, preload: Sequence[str], path: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        """`path`: where else to find modules that are preloaded. A name that ends in a dot: the bare package."""
        drop = ("PYTHONPATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS")
        self.env = {name: value for name, value in (env or os.environ).items() if name not in drop}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, str(ROOT / "tests/forked_server.py"), str(theirs.fileno()), _TITLE_ROOM]
            null = subprocess.DEVNULL
            self._process = started(argv, env=self.env, stdin=null, stdout=null, pass_fds=(theirs.fileno(),))
        self._control.sendall(json.dumps({"preload": list(preload), "path": list(path)}).encode())
        about = self._control.recv(1 << 20)
        if not about:
            self._control.close()
            raise RuntimeError(
                f"the fork server could not import {list(preload)}: it ended with {self._process.wait()}"
            )
        self.about: dict[str, Any] = json.loads(about)
        if self.about["threads"] != 1:
            self.close()
            raise RuntimeError(f"{list(preload)} start {self.about['threads'] - 1} threads, which a fork would lose")
        self._at_exit = atexit.register(self.close)

    def popen(self, argv: Sequence[Any], **options: Any) -> subprocess.Popen[Any]:
        """Start a process, by a fork if that makes no difference."""
        if self.why_not(argv, **options) is None:
            try:
                return Process(self, argv, **options)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:  # very long arguments
                    raise
        return started(argv, **options)

    def run(
        self,
        argv: Sequence[Any],
        *,
        input: Any = None,
        timeout: float | None = None,
        check: bool = False,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run`."""
        if options.pop("capture_output", False):
            options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if input is not None:
            options["stdin"] = subprocess.PIPE
        with self.popen(argv, **options) as process:
            try:
                stdout, stderr = process.communicate(input, timeout)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
        if check:
            done.check_returncode()
        return done

    def why_not(
        self, argv: Sequence[Any], *, env: Mapping[str, str] | None = None, cwd: Any = None, **options: Any
    ) -> str | None:
        """Why this process cannot be forked; None: it can be."""
        if not isinstance(argv, (list, tuple)) or set(options) - _UNDERSTOOD:
            return f"options {sorted(set(options) - _UNDERSTOOD)}"
        words = [os.fsdecode(arg) for arg in argv]
        directory = os.path.abspath(os.fsdecode(cwd or os.getcwd()))
        wanted = {os.fsdecode(name): os.fsdecode(value) for name, value in (os.environ if env is None else env).items()}
        return (
            _unlike_python(words, directory) or self._read_already(wanted) or self._shadowed(words, directory, wanted)
        )

    def _read_already(self, env: Mapping[str, str]) -> str | None:
        names = {name for name in {*env, *self.env} if _READ_AT_START.match(name)} | set(self.about["read"])
        read = [name for name in sorted(names) if env.get(name) != self.env.get(name) and not _MAY_DIFFER.match(name)]
        return f"{', '.join(read)}: read when a process starts" if read else None

    def _shadowed(self, words: list[str], cwd: str, env: Mapping[str, str]) -> str | None:
        """A file that an import would find instead of a module that has been imported already."""
        modules = self.about["modules"]
        entries = [_first_path(words, cwd), *(entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry)]
        for directory in (os.path.join(cwd, entry) for entry in entries):
            for file in os.listdir(directory) if os.path.isdir(directory) else ():
                name = file.partition(".")[0]
                path = os.path.join(directory, file)
                known = name in modules or name in ("sitecustomize", "usercustomize")
                is_module = file.endswith((".py", ".so", ".pyc")) or os.path.isfile(os.path.join(path, "__init__.py"))
                if (
                    known
                    and is_module
                    and not os.path.realpath(str(modules.get(name))).startswith(os.path.realpath(path))
                ):
                    return f"{path}: hides a module that has been imported already"
        return None

    def send(self, request: dict[str, Any], fds: list[int]) -> None:
        """Request a process."""
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], fds)
        except BrokenPipeError as error:
            raise OSError(errno.ECHILD, f"the fork server has ended: {self._process.poll()}") from error

    def close(self) -> None:
        """End the server, and what it has started."""
        atexit.unregister(self.close)
        self._control.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise


def _unlike_python(words: Sequence[str], cwd: str) -> str | None:
    """Whether this is another program than `python SCRIPT`, `python -m MODULE` or `MODULE:FUNCTION`."""
    if not os.path.isdir(cwd):
        return f"{cwd}: no working directory"
    if ":" in words[0] and "/" not in words[0]:
        return None
    if (
        words[0] != sys.executable
        or len(words) < 2
        or (words[1].startswith("-") and (words[1] != "-m" or len(words) < 3))
    ):
        return "another program, or options of the interpreter"
    if words[1] != "-m" and not os.path.isfile(os.path.join(cwd, words[1])):
        return f"{words[1]}: no script"
    return None


def started(argv: Sequence[Any], **options: Any) -> subprocess.Popen[Any]:
    """A process as from a terminal: tests under nohup, or started by a script with `&`, ignore signals that matter."""
    ignored = [
        number
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
        if signal.getsignal(number) == signal.SIG_IGN
    ]

    before = options.pop("preexec_fn", None)

    def heed_signals() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)
        if before is not None:
            before()

    if ignored or before is not None:
        options["preexec_fn"] = heed_signals
    process: subprocess.Popen[Any] = subprocess.Popen(argv, **options)
    return process


def _umask() -> int:
    """That of this process, without changing it."""
    with open("/proc/self/status") as status:
        return int(next(line.split()[1] for line in status if line.startswith("Umask:")), 8)


def _first_path(argv: Sequence[str], cwd: str) -> str:
    """`sys.path[0]`: the script's directory, or for a module the working directory."""
    if argv[0] == sys.executable and argv[1] != "-m":
        return os.path.dirname(os.path.realpath(os.path.join(cwd, argv[1])))
    return cwd
