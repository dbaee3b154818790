"""The agent streams of a run behind a login node: fetched into its directory by one connection, resumed where it broke.

Each byte goes to its own offset, as over SSH (`_copy.py`), and all readers read the files here.
"""

from __future__ import annotations

import os
import re
import selectors
import time
from typing import TYPE_CHECKING

from launcher.backends._copy import Copy
from launcher.backends._files import FileStream
from launcher.backends._patience import Patience
from launcher.errors import LaunchError
from launcher.login import remote
from launcher.login.hints import last_line
from launcher.system import pipes
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.backends._base import Chunk
    from launcher.login.connection import Login

_READ_BYTES = 1 << 20
_LONGEST_HEADER = 200
_NODES_PER_S = 1000
"""How many nodes' files are looked at in a second: a login node serves others, too."""

_HEADER = re.compile(rb"d ((?:tasks/\d+/)?(?:job\.out|nodes/\d+/(?:stream|stderr|last_words))) (\d+) (\d+)")

_FOLLOW = r"""
cd "$1" 2>/dev/null || { echo gone; exit; }
every=$2
once=$3
shift 3
for pair; do eval "o_${pair%%=*}=${pair##*=}"; done
quiet=0
while :; do
    sent=
    while read -r mode links user group size rest; do
        name=${rest##* }
        task=
        inner=$name
        case $name in tasks/*) task=${name#tasks/} task=_${task%%/*} inner=${name#tasks/*/} ;; esac
        case $inner in
            job.out) key=job$task ;;
            nodes/*/*) key=${inner#nodes/} key=${key%/*}_${inner##*/}$task ;;
            *) continue ;;
        esac
        case $key in *[!0-9a-z_]*) continue ;; esac
        eval "from=\${o_$key:-0}"
        if [ "$size" -gt "$from" ]; then
            printf 'd %s %s %s\n' "$name" "$from" $((size - from)) || exit
            tail -c +$((from + 1)) "$name" | head -c $((size - from)) || exit
            eval "o_$key=$size"
            sent=1
        fi
    done <<EOF
$(for top in '' tasks/*/; do
    ls -ln ${top}job.out ${top}nodes/*/stream ${top}nodes/*/stderr 2>/dev/null
done)
EOF
    if [ "$once" ]; then
        for name in $(grep -l '"event"' nodes/*/last_words tasks/*/nodes/*/last_words 2>/dev/null); do
            size=$(wc -c < "$name")
            printf 'd %s 0 %s\n' "$name" "$size"
            head -c "$size" "$name"
        done
        echo end
        exit
    fi
    quiet=$((quiet + every))
    if [ "$sent" ] || [ $quiet -gt 4 ]; then
        quiet=0
        echo k || exit
    fi
    sleep "$every" || exit
done
"""


class _GarbledError(Exception):
    """The login node has sent what the program does not print."""


class _Frames:
    """What the program prints, split into pieces of files."""

    def __init__(self, copies: _Copies) -> None:
        self._copies, self._rest = copies, b""
        self._file: Copy | None = None
        self._left = 0
        self._begun = False
        self.ended = ""
        """`end`: all was sent; `gone`: the run's directory is not there."""

    @property
    def answered(self) -> bool:
        """Whether the program runs."""
        return self._begun

    def feed(self, data: bytes) -> None:
        """Write what has arrived to the files here."""
        data, self._rest = self._rest + data, b""
        if not self._begun:
            _, mark, data = data.rpartition(remote.BEGUN) if remote.BEGUN in data else (b"", b"", data)
            if not mark:
                self._rest = data[-_LONGEST_HEADER:]
                return
            self._begun = True
        while data:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                if self._file:
                    self._file.add(part)
                continue
            line, newline, after = data.partition(b"\n")
            if not newline:
                self._rest = data
                if len(data) > _LONGEST_HEADER:
                    raise _GarbledError(repr(data[:40]))
                return
            data = after
            self._header(line)

    def _header(self, line: bytes) -> None:
        if line in (b"end", b"gone"):
            self.ended = line.decode()
        elif found := _HEADER.fullmatch(line):
            self._file = self._copies.of(found[1].decode())
            if self._file is not None and self._file.offset != int(found[2]):
                raise _GarbledError(f"{found[1]!r} continues at {found[2]!r}, not {self._file.offset}")
            self._left = int(found[3])
        elif line not in (b"k", b"") and not remote.ENDED.strip().startswith(line[:5]):
            raise _GarbledError(repr(line[:40]))


class _Copies:
    """The files here, by their names in the run's directory."""

    def __init__(self, run_dir: Path, nodes: int) -> None:
        self._run_dir, self._nodes = run_dir, nodes
        self._files: dict[str, Copy] = {}

    def of(self, name: str) -> Copy | None:
        """The copy of that file; None for one of a node that the run does not have."""
        node = name.split("/")[-2] if "nodes/" in name else "0"
        if int(node) >= self._nodes or not self._is_task(name):
            return None
        if name not in self._files:
            above, _, last = name.rpartition("/")
            self._files[name] = Copy(self._run_dir / above, last)
            self._files[name].begin()
        if name.endswith("/last_words"):  # written once, in place of what was set aside
            self._files[name].offset = 0
        return self._files[name]

    def _is_task(self, name: str) -> bool:
        """Whether a file of a task is one of an array's own."""
        return not name.startswith("tasks/") or (self._run_dir / "tasks" / name.split("/")[1]).is_dir()

    def begin(self) -> list[str]:
        """How much there is of each file, as the program takes it."""
        self._files.clear()
        tops = [self._run_dir, *self._run_dir.glob("tasks/*")]
        paths = [path for top in tops for pattern in ("job.out", "nodes/*/*") for path in top.glob(pattern)]
        names = [str(path.relative_to(self._run_dir)) for path in paths]
        known = [name for name in names if _HEADER.fullmatch(f"d {name} 0 0".encode())]
        return [f"{_key(name)}={copy.offset}" for name in known if (copy := self.of(name)) and copy.offset]


def _key(name: str) -> str:
    """The variable's name in the program."""
    *task, inner = name.removeprefix("tasks/").split("/", 1) if name.startswith("tasks/") else [name]
    return "_".join([*("job" if inner == "job.out" else inner.removeprefix("nodes/")).split("/"), *task])


class Follower:
    """One connection that fetches what is new, or the wait for the next one."""

    def __init__(self, login: Login, there: str, run_dir: Path, nodes: int, *, once: bool = False) -> None:
        """`there`: the run's directory on the cluster. `once`: end when all there is has been fetched."""
        self._login, self._there, self._nodes, self._once = login, there, nodes, once
        self._copies = _Copies(run_dir, nodes)
        self._frames = _Frames(self._copies)
        self._patience = Patience()
        self._words: Question[list[str]] | None = None
        self._pipe: pipes.Pipe | None = None
        self._selector = selectors.DefaultSelector()
        self.problem = ""
        self.finished = False

    def turn(self, timeout_s: float) -> None:
        """Connect if it is time to, then wait for data and write it."""
        if self._pipe is None:
            self._connect(timeout_s)
            return
        if self._selector.select(timeout_s):
            data = os.read(self._pipe.fd, _READ_BYTES)
            self._patience.heard()
            try:
                self._frames.feed(data)
            except _GarbledError as error:
                self._end(f"{self._login.name}: its answer is not the program's: {error}")
                return
            if self._frames.answered:
                self._patience.renew()
                self.problem = ""
            if self._frames.ended or not data:
                self.finished = bool(self._frames.ended)
                self._end("")
        elif self._patience.is_over():
            self._patience.grow()
            self._login.close()
            self._end(f"{self._login.name} does not answer")

    def _connect(self, timeout_s: float) -> None:
        if self._words is None:
            if self.finished or not self._patience.may_try():
                time.sleep(timeout_s)
                return
            self._words = Question(self._login.words, "login")
        if not self._words.answered(timeout_s):
            return
        words, self._words = self._words, None
        try:
            argv = words.answer()
            every = str(1 + self._nodes // _NODES_PER_S)
            once = "1" if self._once else ""
            text = remote.program(_FOLLOW, self._there, every, once, *self._copies.begin())
            self._pipe = pipes.Pipe([*argv, remote.command(text)])
        except LaunchError as error:
            self.problem = error.message
            self._patience.pause()
            return
        self._frames = _Frames(self._copies)
        self._selector.register(self._pipe.fd, selectors.EVENT_READ)
        self._pipe.send(text.encode(errors="surrogateescape"))
        self._patience.heard()

    def _end(self, problem: str) -> None:
        assert self._pipe
        self._selector.unregister(self._pipe.fd)
        code, said = self._pipe.end()
        self._pipe = None
        if not self.finished:
            self.problem = problem or last_line(said) or f"ssh ended with code {code}"
            self._patience.pause()

    def close(self) -> None:
        """End the connection."""
        if self._pipe is not None:
            self._end("")
        self._selector.close()


class LoginStream:
    """The streams of all nodes, while they are read."""

    def __init__(self, login: Login, there: str, run_dir: Path, nodes: int, offsets: Mapping[int, int]) -> None:
        self.follower = Follower(login, there, run_dir, nodes)
        self._files = FileStream(run_dir, nodes, offsets, job_output=True)

    def read(self, timeout_s: float) -> list[Chunk]:
        """What was appended to the files; fetches meanwhile."""
        limit = time.monotonic() + timeout_s
        while True:
            chunks = self._files.read(0.0)
            self.follower.turn(0.0 if chunks else max(0.0, min(0.1, limit - time.monotonic())))
            if chunks or time.monotonic() >= limit:
                return chunks or self._files.read(0.0)

    def close(self) -> None:
        """End the connection."""
        self.follower.close()
        self._files.close()


def fetch(login: Login, there: str, run_dir: Path, nodes: int, limit_s: float) -> str:
    """Fetch what is new once. Returns why that has failed, if it has."""
    follower = Follower(login, there, run_dir, nodes, once=True)
    limit = time.monotonic() + limit_s
    while not follower.finished and not follower.problem and time.monotonic() < limit:
        follower.turn(0.1)
    follower.close()
    return "" if follower.finished else follower.problem or f"no answer within {limit_s:.0f} s"
