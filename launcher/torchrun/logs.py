"""Where workers' lines go: to the terminal unchanged, to files, or to both with a prefix, in torchrun's layout."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.errors import StorageError
from launcher.torchrun.options import TorchrunUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.agent.protocol import Output

    Way = Callable[[bytes], None]
    Keep = Callable[[bytes, bytes], None]
    """Takes a line's prefix and the line."""

STDOUT, STDERR = 1, 2
_BITS = {STDOUT: 1, STDERR: 2}
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_LINE_END = re.compile(rb"\r\n|\r|\n")


def streams(option: str, text: str) -> Callable[[int], int]:
    """Which streams of a local rank `--tee` or `--redirects` selects: 1 stdout, 2 stderr, 3 both."""
    if re.fullmatch(r"[0-3]", text):
        return lambda _: int(text)
    if not re.fullmatch(r"(\d:[0-3],)*\d:[0-3]", text):
        raise TorchrunUsageError(
            f"{option} {text!r}: write 0, 1, 2 or 3, or LOCAL_RANK:0..3 with commas between several"
        )
    by_rank = {int(rank): int(bits) for rank, _, bits in (part.partition(":") for part in text.split(","))}
    return lambda rank: by_rank.get(rank, 0)


class Wanted(NamedTuple):
    """What the options request for workers' lines."""

    log_dir: str | None
    redirects: Callable[[int], int]
    tee: Callable[[int], int]
    needs_files: bool
    """Whether the options require files, wherever they may be."""

    shown: frozenset[int] | None
    """Local ranks whose lines are shown; None: all."""

    template: str
    role: str
    filters: dict[int, list[str]]
    """Words by stream; lines that contain them are also copied to a file of their own."""


class Logs:
    """The logs of one node, over all of its attempts."""

    def __init__(
        self, wanted: Wanted, run: str, host: str, write: Callable[[int, bytes], None], say: Callable[[str], None]
    ) -> None:
        """`write` writes bytes to our own stdout or stderr; `say` prints a message to the user."""
        self._wanted, self._host, self._write, self._say = wanted, host, write, say
        self.directory = (
            self._run_directory(run)
            if wanted.log_dir != os.devnull and (wanted.log_dir or wanted.needs_files)
            else None
        )
        """The run's own directory, below the one that was requested."""

        self._attempts: dict[int, str] = {}
        self._ways: dict[tuple[int, int], Way] = {}
        self._lines: list[_Lines] = []
        self._files: list[int] = []

    def _run_directory(self, run: str) -> str:
        """Create a directory whose name is the run's id and an unused suffix."""
        import tempfile

        above = self._wanted.log_dir or tempfile.mkdtemp(prefix="torchelastic_")
        if not self._wanted.log_dir:
            self._say(f"workers' files are in {above}; --log-dir names another directory")
        try:
            os.makedirs(above, exist_ok=True)
            return tempfile.mkdtemp(prefix=f"{run.replace(os.sep, '_')}_", dir=above)
        except OSError as error:
            raise StorageError(f"--log-dir {above}: {error.strerror}") from error

    def begin(self, number: int, attempt: int, ranks: Sequence[int]) -> None:
        """Begin the round with that number, whose workers have these ranks, by local rank."""
        self.end()
        directory = os.path.join(self.directory, f"attempt_{attempt}") if self.directory else None
        if directory:
            self._attempts[number] = directory
            for local in range(len(ranks)):
                os.makedirs(os.path.join(directory, str(local)), exist_ok=True)
        kept = {stream: self._kept(directory, stream) for stream in _BITS}
        for local, rank in enumerate(ranks):
            for stream in _BITS:
                self._ways[rank, stream] = self._way(directory, stream, local, rank, kept[stream])

    def show(self, record: Output) -> None:
        """Pass on what a worker has written."""
        way = self._ways.get((record.rank, STDERR if record.stderr else STDOUT))
        if way is not None:
            way(record.data + b"\n" if record.ends_line else record.data)

    def end(self) -> None:
        """End the round, as its workers write nothing more."""
        for lines in self._lines:
            lines.end()
        for fd in self._files:
            os.close(fd)
        self._ways, self._lines, self._files = {}, [], []

    def keep_errors(self, directory: str) -> None:
        """Copy the workers' error files from this directory."""
        with contextlib.suppress(OSError):
            for name in os.listdir(directory) if self._attempts else ():
                number, _, local = name.removesuffix(".json").partition("-")
                into = os.path.join(self._attempts[int(number)], local, "error.json")
                with open(os.path.join(directory, name), "rb") as file, open(into, "wb") as kept:
                    kept.write(file.read())

    def _way(self, directory: str | None, stream: int, local: int, rank: int, kept: Keep) -> Way:
        wanted, bit = self._wanted, _BITS[stream]
        tees = wanted.tee(local) & bit
        hidden = wanted.shown is not None and local not in wanted.shown
        if directory is None or not (tees or wanted.redirects(local) & bit):
            return _nowhere if hidden and wanted.log_dir != os.devnull else lambda data: self._write(stream, data)
        fd = self._open(os.path.join(directory, str(local), f"{_NAMES[stream]}.log"))
        if not tees or hidden:
            return lambda data: self._append(fd, data)
        lines = _Lines(self._prefix(local, rank), lambda prefix, line: self._write(stream, prefix + line), kept)
        self._lines.append(lines)

        def both(data: bytes) -> None:
            self._append(fd, data)
            lines.put(data)

        return both

    def _kept(self, directory: str | None, stream: int) -> Keep:
        """A function that takes lines of all ranks of a stream and keeps those with the requested words."""
        words = [word.encode(errors="surrogateescape") for word in self._wanted.filters[stream]]
        if directory is None or not words:
            return _nowhere
        fd = self._open(os.path.join(directory, f"filtered_{_NAMES[stream]}.log"))

        def keep(prefix: bytes, line: bytes) -> None:
            if any(word in line for word in words):
                self._append(fd, prefix + line)

        return keep

    def _prefix(self, local: int, rank: int) -> bytes:
        role = self._wanted.role
        if not self._wanted.template:
            return f"[{role}{local}]:".encode(errors="surrogateescape")
        from string import Template

        known = {"role_name": role, "rank": rank, "local_rank": local, "hostname": self._host}
        return Template(self._wanted.template).safe_substitute(known).encode(errors="surrogateescape")

    def _open(self, path: str) -> int:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._files.append(fd)
        return fd

    def _append(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(fd, view) :]
        except OSError as error:
            self._say(f"lines are lost: {os.readlink(f'/proc/self/fd/{fd}')}: {error.strerror}")


class _Lines:
    """One worker's stream, split into lines as torchrun reads a file: a carriage return ends a line, too."""

    def __init__(self, prefix: bytes, *ways: Keep) -> None:
        self._prefix, self._ways = prefix, ways
        self._part, self._after_return = b"", False

    def put(self, data: bytes) -> None:
        if self._after_return and data[:1] == b"\n":
            data = data[1:]
        self._after_return = data[-1:] == b"\r"
        *lines, self._part = _LINE_END.split(self._part + data)
        for line in lines:
            self._send(line + b"\n")

    def end(self) -> None:
        if self._part:
            self._send(self._part)
            self._part = b""

    def _send(self, line: bytes) -> None:
        for way in self._ways:
            way(self._prefix, line)


def _nowhere(*_: bytes) -> None:
    """Take a stream that is neither shown nor kept."""
