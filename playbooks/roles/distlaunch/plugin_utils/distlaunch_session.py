"""One ssh connection per host for all requests: a Python there answers line by line until its stdin ends.

A request is a line of JSON, then as many bytes as it announces; an answer is a line that starts with a mark, as login
files may print before it. The other end is `launcher/agent/ssh/calls.py`, which `boot.py` there installs if necessary.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import random
import re
import select
import shlex
import socket
import subprocess
import tempfile
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Answer = dict[str, Any]

ANSWER = "distlaunch-host-1 "
_MARK = f"\n{ANSWER}".encode()
_BEGUN, _STARTS, _STARTED = "distlaunch-shell-1", "distlaunch-start-1", "distlaunch-python-1"
_STEPS = tuple(f"\n{step}\n".encode() for step in (_BEGUN, _STARTS, _STARTED))
"""What the shell prints before and after the setup lines, and Python at its start."""

_BLOCK_BYTES = 1 << 16
_TRIES = 4
_LARGE_BYTES = 1_000_000
_SENT_EVERY_S = 0.5
_ANSWER_BYTES = 16 << 20
_LAST_BYTES = 1 << 16
_LATE: Answer = {"problem": "no answer within the time limit", "late": True}
_BUSY = (
    "kex_exchange_identification", "Connection reset by peer", "Connection closed by ", "banner exchange",
)  # fmt: skip
"""What ssh prints if a server refuses connections because too many start at once (MaxStartups), or is too slow."""

_UNSHARED = ("-o", "ControlMaster=no", "-o", "ControlPersist=no")
"""Without these, ssh hides what its ProxyCommand prints."""

_NO_WAY = ("not logged in to", "Stdio forwarding request failed")
"""What it prints besides if a login node does not let it through."""

# A failed line ends the shell by itself, unless the lines cannot be parsed.
_CHECKED = 'code=$?; [ $code = 0 ] || { echo "distlaunch: setup failed with code $code: see above" >&2; exit $code; }; '
_SETUP_FAILED = r"^distlaunch: setup failed with code (\d+): (.*)$"

_NO_BASH = "^(?!/bin/bash:).*/bin/bash"
"""What the login's shell says, and not bash itself."""

# Without a locale, Python sets this one for its children (PEP 538); our Python gets the same as one of them.
_LOCALE = '[ "$LC_ALL$LC_CTYPE$LANG" ] || export LC_CTYPE=C.UTF-8; '


class Session:
    """A host, and the connection to it while there is one. An error is an answer, too: `{"problem": ...}`."""

    def __init__(self, argv: Sequence[str], python: str, program: str, setup: str = "") -> None:
        """`setup`: shell lines that run before Python."""
        self.argv, self.python, self.program, self.setup = argv, python, program, setup
        self.on_sent: Callable[[int, int], None] = lambda *_: None
        """Called from time to time while a large payload is sent, with the bytes sent and the total."""

        self.broken: Answer | None = None
        self._times: list[float] = []
        """When the last connection was opened, and came to each of `_STEPS`."""

        self._process: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._data = b""
        self._answer: Answer | None = None

    @property
    def login_s(self) -> float:
        """How long a connection takes, with the start of Python and without the setup lines, as far as that is known.

        The calls to a started run are such connections.
        """
        return sum(until - since for since, until in zip(self._times[::2], self._times[1::2], strict=False))

    def ask(self, request: Answer, payload: str | bytes | None = None, *, limit_s: float) -> Answer:
        """The answer to a request; `payload` is a path or bytes that follow it."""
        limit = time.monotonic() + limit_s
        tries = _TRIES if self._process is None and self.broken is None else 1
        while self.broken is None:
            if self._process is None:
                self._open()
            if self.broken is None:
                self._exchange(request, payload, limit)
            tries -= 1
            if self.broken is None:
                assert self._answer is not None
                return self._answer
            if not (self.broken.pop("busy", False) and tries):
                break
            self.broken = None
            time.sleep(random.uniform(0.2, 1.0) * (_TRIES - tries))  # noqa: S311 - no secret
        return dict(self.broken)

    def hand_over(self, launcher: socket.socket, about: bytes, request: Answer) -> None:
        """Make a last request, and send the connection to a launcher, which reads what comes."""
        if self._process is None or self._data:
            return
        stdin, stdout = _descriptors(self._process)
        process = os.pidfd_open(self._process.pid)
        try:
            os.write(stdin, json.dumps(request).encode() + b"\n")
            socket.send_fds(launcher, [about], [stdin, stdout, self._said.fileno(), process])
        finally:
            os.close(process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.returncode = 0  # it is the launcher's now
        self._process = None

    def close(self) -> None:
        """Close the connection; the Python there exits with it."""
        self._end()
        self._said.close()

    def _open(self) -> None:
        # No working directory on sys.path: its files may have any name. agent/forkserver/prefork.py needs -u.
        # Its first words are those that a Python 2 can run, too.
        first = f'import sys;print("");print("{_STARTED}");sys.stdout.flush();sys.path[:]=filter(None,sys.path);'
        argv = [self.python, "-u", "-c", first + self.program, ANSWER]
        # The path of Python may have blanks, or start with a tilde.
        words = [arg if arg.startswith("~/") and shlex.quote(arg[2:]) == arg[2:] else shlex.quote(arg) for arg in argv]
        start, begun = f"{_LOCALE}echo; echo {_STARTS}; exec {' '.join(words)}", f"echo; echo {_BEGUN}; "
        command = f"/bin/sh -c {shlex.quote(begun + start)}"
        if self.setup:  # in bash, as on Slurm; its lines do not read what is sent to Python
            lines = base64.b64encode(self.setup.encode()).decode()
            before = f'exec 3<&0 </dev/null; eval "$(printf %s {lines} | base64 -d)"; {_CHECKED}exec <&3 3<&-; '
            command = f"/bin/bash -c {shlex.quote(begun + before + start)}"
        options = ["-T", "-o", "BatchMode=yes", "-o", "ForwardAgent=no"]
        if self._times and self.argv[-2].startswith("ProxyCommand="):
            options += _UNSHARED
        self._times = [time.monotonic()]
        self._said.seek(0)  # ssh shares the offset: it must not start where the last one stopped
        self._said.truncate()
        try:
            self._process = subprocess.Popen(
                [self.argv[0], *options, *self.argv[1:], command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
            )  # fmt: skip
        except OSError as error:
            self.broken = {"problem": f"{self.argv[0]} cannot be started: {error.strerror}", "unreachable": True}
            return
        os.set_blocking(_descriptors(self._process)[0], False)
        self._data = b""

    def _exchange(self, request: Answer, payload: str | bytes | None, limit: float) -> None:
        """Send the request and read the answer; `broken` has the reason if there is none."""
        if isinstance(payload, str):
            with open(payload, "rb") as file:
                self._send_and_read(request, file, os.fstat(file.fileno()).st_size, limit)
        elif payload is not None:
            self._send_and_read(request, io.BytesIO(payload), len(payload), limit)
        else:
            self._send_and_read(request, None, 0, limit)

    def _send_and_read(self, request: Answer, file: IO[bytes] | None, size: int, limit: float) -> None:
        waiting = memoryview(json.dumps({**request, "bytes": size} if file else request).encode() + b"\n")
        assert self._process is not None
        stdin, stdout = _descriptors(self._process)
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        poll.register(stdin, select.POLLOUT)
        self._answer, told_at = None, time.monotonic()
        while self._answer is None and self.broken is None:
            left = limit - time.monotonic()
            events = dict(poll.poll(max(0.0, min(left, 1.0)) * 1000))
            if os.fstat(self._said.fileno()).st_size > _ANSWER_BYTES:
                self._break({"problem": f"it has printed more than {_ANSWER_BYTES >> 20} MB on stderr"})
                return
            if not events and left <= 0:
                self._break(_LATE)
                return
            if stdin in events:
                waiting = self._write(stdin, waiting, file)
                if file and size > _LARGE_BYTES and time.monotonic() > told_at + _SENT_EVERY_S:
                    told_at = time.monotonic()
                    self.on_sent(file.tell() - len(waiting), size)
                if not waiting:
                    poll.unregister(stdin)
            if stdout in events and not self._read(stdout):
                self._break(self._why(limit))
                return

    def _write(self, stdin: int, waiting: memoryview, file: IO[bytes] | None) -> memoryview:
        """Send and return what is left; nothing if the other end has closed, as its answer gives the reason."""
        try:
            waiting = waiting[os.write(stdin, waiting) :]
        except BlockingIOError:
            return waiting
        except OSError:
            return memoryview(b"")
        return waiting or memoryview(file.read(_BLOCK_BYTES) if file else b"")

    def _read(self, stdout: int) -> bool:
        """Process what has arrived; False at its end. Hosts are untrusted: their output is limited and validated."""
        data = os.read(stdout, _BLOCK_BYTES)
        self._data += data
        if len(self._data) > _ANSWER_BYTES:
            self._break({"problem": f"it has printed more than {_ANSWER_BYTES >> 20} MB that are no answer"})
            return True
        for step in _STEPS[len(self._times) - 1 :]:
            _, reached, rest = (b"\n" + self._data).partition(step)
            if not reached:
                break
            self._times.append(time.monotonic())
            self._data = rest
        _, mark, rest = (b"\n" + self._data).partition(_MARK)
        line, end, left = rest.partition(b"\n")
        if mark and end:
            self._data = left
            try:
                self._answer = json.loads(line)
            except (ValueError, RecursionError):
                self._answer = None
            if not isinstance(self._answer, dict):
                self._answer = None
                self._break({"problem": f"its answer is not an agent's: {line[:40]!r}"})
                return True
        return bool(data) or self._answer is not None

    def _why(self, limit: float) -> Answer:
        """What ssh, or the shell on the host, printed before it exited."""
        assert self._process is not None
        try:
            code = self._process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:  # it has only closed its stdout
            return _LATE
        self._said.seek(max(0, os.fstat(self._said.fileno()).st_size - _LAST_BYTES))
        said = self._said.read().decode(errors="replace").strip()
        if code == 255:
            busy = any(words in said for words in _BUSY) and not any(words in said for words in _NO_WAY)
            return {"problem": said or "ssh ended with code 255", "unreachable": True, "busy": busy}
        failed = re.search(_SETUP_FAILED, said, re.MULTILINE)
        if failed:
            reason = "".join(f" ({line})" for line in said[: failed.start()].strip().splitlines()[-1:])
            return {"problem": f"setup failed with code {failed[1]}: {failed[2]}{reason}", "setup": True}
        if code in (126, 127) and self.setup and re.search(_NO_BASH, said, re.MULTILINE):
            return {"problem": "/bin/bash cannot be started, in which --setup lines run", "setup": True}
        if code in (126, 127):
            return {"problem": f"there is no {self.python} (looked for along the PATH of a login without a terminal)"}
        last = (said or self._data.decode(errors="replace").strip() or "it said nothing").splitlines()[-1]
        return {"problem": f"{self.python} ended with code {code}: {last}"}

    def _break(self, why: Answer) -> None:
        self._end()
        self.broken = dict(why)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        for stop in (None, process.terminate, process.kill):
            if stop:
                stop()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
                break


def _descriptors(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """The descriptors of its stdin and stdout, which are pipes."""
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin.fileno(), process.stdout.fileno()
