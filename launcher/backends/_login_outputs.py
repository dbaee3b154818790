"""The files that workers have written to a file system behind a login node, where there may be no Python."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from typing import IO, TYPE_CHECKING

from launcher.agent import notice
from launcher.agent.outputs import times
from launcher.agent.outputs.tree import TreeError, matcher
from launcher.backends._outputs import Ending, Listed, Listing, RemoteOutputs, check_name
from launcher.errors import CommandError, RequestError
from launcher.login import remote
from launcher.system import pipes, storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from launcher.login.connection import Login

_FILE = re.compile(rb"([fl]) (\d+) (-?\d+)(?:\.(\d+))? \./(.+)")
_LEFT_OUT = re.compile(rb"x ([^/]+) \./(.*)")
_DATA = re.compile(rb"d (\d+) (\d+) (-?\d+)(?:\.(\d+))?")
_AFTER = re.compile(rb"a (same|changed) (\S+)")
_FILES = 200_000
_SHOWN = 20
_LONGEST_WORD = 8192

_SERVE = r"""
LC_ALL=C
export LC_ALL
cd "$1" 2>/dev/null || { echo distlaunch-no-directory >&2; exit 24; }
top=$(pwd -P)
project=$(cat "$top.project" 2>/dev/null) && project=$(cd "$project" 2>/dev/null && pwd -P)
project=${project:-$top}
times='%s %.9Y'
stat -c "$times" . >/dev/null 2>&1 || times='%s %Y'
sum=-
command -v sha256sum >/dev/null 2>&1 && sum=sha256sum
export times top project
linked() {  # to a directory of that name in the project's, from a run's own
    [ "$project" != "$top" ] && [ "$(readlink -f "$1")" = "$project/${1#./}" ] && [ -d "$1" ]
}
printf '\ndistlaunch-outputs-1\n%s\n' "$sum"
while IFS= read -r request; do
    case $request in
    'list '*)
        start=${request#list }
        [ "$start" ] || [ ! -f "$top.times" ] || sed 's/^/t /' "$top.times"
        start=.${start:+/$start}
        (
        follow=-P
        if [ "$start" = . ] || linked "$start"; then follow=-H; fi
        set -- "$start"
        [ "$start" != . ] || for link in ./* ./.[!.]*; do
            if linked "$link"; then set -- "$@" "$link"; fi
        done
        find $follow "$@" -name '*
*' -exec printf 'x a line break in its name ./%s\n' '?' ';' -prune -o \
            -type f -exec stat -c "f $times %n" {} + -o -type l -exec sh -c '
            for link; do
                to=$(readlink -f "$link")
                case $to in
                "$top"/* | "$project"/*)
                    if [ -f "$link" ]; then
                        about=$(stat -L -c "$times" "$link") && printf "l %s %s\n" "$about" "$link"
                    elif [ "$to" = "$project/${link#./}" ]; then :
                    elif [ -d "$link" ]; then printf "x a link to a directory %s\n" "$link"
                    else printf "x a link to nothing %s\n" "$link"; fi ;;
                *) printf "x a link that leads out of the directory %s\n" "$link" ;;
                esac
            done' list {} + -o -type d -exec sh -c '
            for at; do
                [ -r "$at" ] && [ -x "$at" ] || printf "x Permission denied %s/\n" "$at"
            done' list {} + 2>/dev/null
        )
        printf 'end\n'
        ;;
    there) ls -p 2>/dev/null | sed 's/^/n /'; printf 'end\n' ;;
    grant) : >"$2" && printf 'end\n' ;;
    'take '*)
        mkdir -p -m 700 "${2%/*}/$3"
        (set -C && : >"${2%/*}/$3/${request#take }") 2>/dev/null && printf 'taken\n'
        printf 'end\n'
        ;;
    'read '*)
        request=${request#read }
        from=${request%% *}
        name=./${request#* }
        case $(readlink -f "$name") in "$top"/* | "$project"/*) ;; *) name= ;; esac
        if [ ! -f "$name" ] || [ ! -r "$name" ]; then
            printf 'e\n'
            continue
        fi
        about=$(stat -L -c "$times" "$name")
        size=${about%% *}
        [ "$from" -le "$size" ] || from=$size
        printf 'd %s %s\n' $((size - from)) "$about"
        tail -c +$((from + 1)) "$name" | head -c $((size - from))
        state=same
        found=-
        if [ "$sum" = - ]; then
            [ "$(stat -L -c "$times" "$name")" = "$about" ] || state=changed
        else
            while sleep 5 >/dev/null && echo k; do :; done 2>/dev/null &
            found=$(head -c "$size" "$name" | $sum)
            kill $! && wait $! 2>/dev/null
        fi
        printf 'a %s %s\n' $state "${found%% *}"
        ;;
    esac
done
"""


_PUT = r"""
cd "$1" || exit 1
top=$(pwd -P)
umask 077
part=.distlaunch-part.$$
mkdir "$part" && tar -xf - -C "$part" && cd "$part" && find . -type f -exec sh -c '
    for file; do mkdir -p "$0/${file%/*}" && mv -f "$file" "$0/$file" || exit 1; done' "$top" {} +
code=$?
rm -rf "$top/$part"
exit $code
"""
_PUT_S = 60.0


class LoginOutputs(RemoteOutputs):
    """Files in a directory that the login node sees, as `Outputs`."""

    def __init__(self, login: Login, directory: str, granted: str) -> None:
        """Waits for the login node; `granted`: the file for `grant`.

        Raises `CommandError` without an answer, `RequestError` if it sees no directory.
        """
        text = remote.program(_SERVE, directory, granted, notice.PLACE)
        bridge = pipes.ProgramBridge([*login.words(), remote.command(text)])
        bridge.sock.sendall(text.encode(errors="surrogateescape"))
        try:
            super().__init__(login.name, bridge)
        except CommandError as error:
            if "distlaunch-no-directory" not in error.message:
                raise
            raise RequestError(f"{login.name}: {directory} is not there, or you may not read it") from error
        self._login, self._directory = login, directory
        self._sums = self._line() != b"-"

    def listed(self, pattern: str) -> Listing:
        """As `Outputs` does."""
        fits, start = _matcher(pattern)
        files, left_out, edited, is_sent = [], [], b"", None
        for line in self._lines(b"list " + start):
            if line.startswith(b"t "):  # these come first
                edited += line[2:] + b"\n"
            elif match := _FILE.fullmatch(line):
                is_sent = is_sent or times.sent(edited)
                file = Listed(_name(match[5]), int(match[2]), _ns(match[3], match[4]))
                if fits(file.name) and (pattern or not is_sent(file.name, file.mtime_ns, match[1] == b"l")):
                    files.append(file)
            elif not (match := _LEFT_OUT.fullmatch(line)):
                raise self._odd(line)
            elif not match[2]:
                raise RequestError(f"{self._host}: {self._directory}: {match[1].decode()}")
            elif fits(name := _name(match[2])) or name.endswith("/"):
                left_out.append((name, match[1].decode(errors="replace")))
            if len(files) + len(left_out) > _FILES:
                raise RequestError(f"more than {_FILES} files match {pattern!r} in {self._directory}")
        for name, *_ in files:
            check_name(name)
        there = () if files or left_out else tuple(_name(line[2:]) for line in self._lines(b"there"))[:_SHOWN]
        return Listing(self._directory, tuple(sorted(files)), tuple(sorted(left_out)), there)

    def read(self, name: str, offset: int, sink: Callable[[bytes], None]) -> Ending:
        """As `Outputs` does: the sum tells whether what was sent has changed. What is appended meanwhile is left out.

        Without `sha256sum` there, all of the file is read, to compare what is here already, and its time tells.
        """
        found, skipped = hashlib.sha256(), 0 if self._sums else offset
        self._send(b"read %d " % (offset if self._sums else 0) + os.fsencode(name))

        def take(block: bytes) -> None:
            nonlocal skipped
            found.update(block)
            past, skipped = min(skipped, len(block)), max(0, skipped - len(block))
            if block[past:]:
                sink(block[past:])

        line = self._word()
        if line == b"e":
            raise RequestError(f"{self._host}: {name}: not a file that can be read, or a link that leads out")
        match = _DATA.fullmatch(line)
        if match is None:
            raise self._odd(line)
        self._pass(int(match[1]), take)
        after = _AFTER.fullmatch(self._word())
        if after is None:
            raise self._odd(line)
        total = after[2].decode() if self._sums else found.hexdigest()
        return Ending(int(match[2]), _ns(match[3], match[4]), total, after[1] == b"changed")

    def release(self) -> None:
        """No agent waits for that."""

    hold = await_end = release

    def grant(self) -> None:
        """As `Outputs` does."""
        list(self._lines(b"grant"))

    def take(self, name: str) -> bool:
        """As `Outputs` does."""
        return b"taken" in list(self._lines(b"take " + name.encode()))

    def put(self, files: Mapping[str, Path]) -> None:
        """As `Outputs` does."""

        def write(target: IO[bytes]) -> None:
            with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                for name, path in files.items():
                    with storage.storage_errors(path):
                        tar.add(path, name)

        answer = remote.run(self._login, _PUT, self._directory, timeout_s=_PUT_S, write=write)
        if answer.code:
            why = remote.reason(answer.stderr) or f"code {answer.code}"
            raise CommandError(f"{self._host}: files cannot be written in {self._directory}: {why}")

    def _lines(self, request: bytes) -> Iterator[bytes]:
        self._send(request)
        while (line := self._word()) != b"end":
            yield line

    def _send(self, request: bytes) -> None:
        self._start()
        self._send_all(request + b"\n")

    def _word(self) -> bytes:
        """The next line. Lines with a `k` keep the connection alive."""
        while (line := self._line()) == b"k":
            pass
        return line

    def _odd(self, line: bytes) -> CommandError:
        return CommandError(f"{self._host}: its answer is not the program's: {line[:40]!r}")


def _matcher(pattern: str) -> tuple[Callable[[str], bool], bytes]:
    try:
        return matcher(pattern)
    except TreeError as error:
        raise RequestError(str(error)) from error


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _ns(seconds: bytes, fraction: bytes | None) -> int:
    """Nanoseconds of a decimal number, which is negative before 1970."""
    ns = abs(int(seconds)) * 10**9 + int((fraction or b"").ljust(9, b"0")[:9] or 0)
    return -ns if seconds.startswith(b"-") else ns
