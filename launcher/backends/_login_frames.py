"""What a login node prints of a run's files, and the copies of these here: each byte goes to its own offset."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.backends._copy import Copy
from launcher.login import remote

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_HEADER = 200
_HEADER = re.compile(rb"d ((?:tasks/\d+/)?(?:job\.out|nodes/\d+/(?:stream|stderr|last_words))) (\d+) (\d+)")

FOLLOW = r"""
cd "$1" 2>/dev/null || { echo gone; exit; }
every=$2
once=$3
shift 3
for pair; do eval "o_${pair%%=*}=${pair##*=}"; done
quiet=0
words=
left=
last_words() {
    found=$(grep -l '"event"' nodes/*/last_words tasks/*/nodes/*/last_words 2>/dev/null)
    for name in $found $left; do
        size=$(wc -c < "$name")
        printf 'd %s 0 %s\n' "$name" "$size"
        head -c "$size" "$name"
    done
    left=$found
}
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
        last_words
        echo end
        exit
    fi
    # In each turn: how a node has ended may be in there, and a launcher gives it 2 s to arrive.
    now=$(head -c 160 nodes/*/last_words tasks/*/nodes/*/last_words 2>/dev/null)
    case $now in *'{'*) [ "$now" = "$words" ] || last_words ;; *) [ -z "$left" ] || last_words ;; esac
    words=$now
    quiet=$((quiet + every))
    if [ "$sent" ] || [ $quiet -gt 4 ]; then
        quiet=0
        echo k || exit
    fi
    sleep "$every" || exit
done
"""


class GarbledError(Exception):
    """The login node has sent what the program does not print."""


class Frames:
    """What the program prints, split into pieces of files."""

    def __init__(self, copies: Copies) -> None:
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
                    raise GarbledError(repr(data[:40]))
                return
            data = after
            self._header(line)

    def _header(self, line: bytes) -> None:
        if line in (b"end", b"gone"):
            self.ended = line.decode()
        elif found := _HEADER.fullmatch(line):
            self._file = self._copies.of(found[1].decode())
            if self._file is not None and self._file.offset != int(found[2]):
                raise GarbledError(f"{found[1]!r} continues at {found[2]!r}, not {self._file.offset}")
            self._left = int(found[3])
        elif line not in (b"k", b"") and not remote.ENDED.strip().startswith(line[:5]):
            raise GarbledError(repr(line[:40]))


class Copies:
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
