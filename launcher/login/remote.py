"""Programs in POSIX shell that run on a login node, where there may be no Python.

A program is sent on stdin, as no quoting is the same in all login shells (csh takes no line break). Its answer stands
between two marks, as login shells may print anything before it.
"""

from __future__ import annotations

import os
import selectors
import shlex
import subprocess
import tempfile
import time
from typing import IO, TYPE_CHECKING, Any

from launcher.agent.named_tuple import NamedTuple
from launcher.errors import BackendUnavailableError, CommandError
from launcher.login.feeder import Feeder
from launcher.system import proc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.login.connection import Login

BEGUN, ENDED = b"\x01distlaunch\n", b"\n\x01distlaunch-end "
_FIRST_S = 15.0
"""How long the login node may take before the program runs."""

_REASONS = ("No space left on device", "quota exceeded", "Read-only file system", "Permission denied")
_BYTES_PER_S = 100_000
_ANSWER_BYTES = 256 << 20
_SSH_FAILED = 255
_PATH = "command -v sbatch >/dev/null 2>&1 || . /etc/profile >/dev/null 2>&1"
"""Many sites put Slurm's commands into PATH for login shells only."""


_READ_S = 60.0
_READ = r"""
for path; do
    size=-
    if [ -f "$path" ] && [ -r "$path" ]; then
        size=$(wc -c < "$path")
        [ "$size" -le 1048576 ] || size=-
    fi
    printf '%s\n' "$size"
    [ "$size" = - ] || head -c "$size" "$path"
done
"""


class UnfinishedError(BackendUnavailableError):
    """The program runs there, and has not ended in time."""


class Answer(NamedTuple):
    """What a program has printed."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """Its stdout."""
        return self.stdout.decode(errors="replace")


def command(text: str) -> str:
    """The command that the login shell gets: it reads the program from stdin, and no byte after that."""
    return f"exec /bin/sh -c 'eval \"$(dd bs=1 count={len(text.encode())} 2>/dev/null)\"'"


def program(body: str, *args: str) -> str:
    """The whole program: the body in a subshell, with its arguments, between the marks."""
    words = shlex.join(args)
    begin = r"printf '\001distlaunch\n'; printf '\001distlaunch\n' >&2"
    end = r"printf '\n\001distlaunch-end %s\n' $?"
    return f"{begin}\n{_PATH}\nset -- {words}\n(\n{body}\n)\n{end}\n"


def run(
    login: Login,
    body: str,
    *args: str,
    timeout_s: float,
    stdin: bytes = b"",
    write: Callable[[IO[bytes]], None] | None = None,
) -> Answer:
    """Run the program, with these bytes on stdin, and what `write` writes.

    Raises `BackendUnavailableError` if the login node is not reached, or if the connection breaks meanwhile: the
    program may have run in part. What `write` raises is raised, after stdin was cut off there. `timeout_s` counts from
    when the login node has answered, and grows with what is written.
    """
    text = program(body, *args)
    code, out, err = _talk(
        login, [*login.words(), command(text)], text.encode(errors="surrogateescape") + stdin, write, timeout_s
    )
    err = err.rpartition(BEGUN.decode())[2]  # login files may print there, too
    begun = out.find(BEGUN)
    answer, mark, rest = out[begun + len(BEGUN) :].rpartition(ENDED)
    if begun < 0 or not mark or not rest.strip().isdigit():
        raise _unanswered(login, code, err, begun=begun >= 0)
    return Answer(int(rest), answer, err)


def reason(said: str) -> str:
    """The line of a program's stderr that says why: tar begins and ends with others."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if any(words in line for words in _REASONS)), lines[0] if lines else "")


def read(login: Login, paths: Sequence[str]) -> dict[str, bytes]:
    """The contents of those of these files that can be read, each of a megabyte at most."""
    found, data = {}, run(login, _READ, *paths, timeout_s=_READ_S).stdout
    for path in paths:
        size, _, data = data.partition(b"\n")
        if size.strip().isdigit():
            found[path], data = data[: int(size)], data[int(size) :]
    return found


def _unanswered(login: Login, code: int, err: str, *, begun: bool) -> BackendUnavailableError:
    if begun:
        why = proc.last_words(err) or f"ssh ended with code {code}"
        return BackendUnavailableError(f"the connection to {login.name} broke: {why}", in_part=True)
    if code == _SSH_FAILED:
        return login.unreachable(err)
    why = proc.last_words(err) or f"code {code}"
    hint = "if it takes single commands only: login_shell = 'none'"
    return BackendUnavailableError(f"the login shell of {login.name} runs no program: {why}", hint=hint)


def _late(login: Login, limit_s: float, *, begun: bool) -> BackendUnavailableError:
    """The error for no answer; if the connection carries nothing, the next command opens another."""
    if begun:
        why = f"{login.name} answers, and does not end what was asked within {limit_s:.0f} s"
        return UnfinishedError(why, in_part=True)
    login.leave()
    return BackendUnavailableError(f"{login.name} does not answer within {_FIRST_S:.0f} s")


def _talk(
    login: Login, argv: Sequence[str], stdin: bytes, write: Callable[[IO[bytes]], None] | None, limit_s: float
) -> tuple[int, bytes, str]:
    """Run ssh: its exit code, stdout and stderr."""
    out, begun, first = bytearray(), 0.0, time.monotonic() + _FIRST_S
    with tempfile.TemporaryFile() as said, Feeder(stdin, write) as feeder:
        how: dict[str, Any] = {"stdin": feeder.reads, "stdout": subprocess.PIPE, "stderr": said}
        with proc.child(argv, **how, start_new_session=True) as process, selectors.DefaultSelector() as selector:
            assert process.stdout
            selector.register(process.stdout, selectors.EVENT_READ)
            feeder.start()
            while True:
                limit = begun + limit_s + feeder.written / _BYTES_PER_S if begun else first
                left_s = limit - time.monotonic()
                if left_s < 0:
                    feeder.check()
                    raise _late(login, limit_s, begun=bool(begun))
                if not selector.select(left_s):
                    continue
                data = os.read(process.stdout.fileno(), proc.LAST_BYTES)
                out += data
                if not begun and BEGUN in out:
                    begun = time.monotonic()
                if len(out) > _ANSWER_BYTES:
                    raise CommandError(f"{login.name} has printed more than {_ANSWER_BYTES >> 20} MB")
                if not data:
                    break
            whole = _exits(process, limit) or ENDED in out
            feeder.check()
            if not whole:
                raise _late(login, limit_s, begun=bool(begun))
        said.seek(0)
        return process.returncode, bytes(out), said.read(proc.LAST_BYTES).decode(errors="replace")


def _exits(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait for its end, up to the limit on the monotonic clock; returns whether it has come."""
    try:
        process.wait(max(0.1, limit - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True
