"""What a file system of a cluster has of the files that were sent from here, so that only changes are sent.

Files are kept by content, in packs: tars whose members are named by the SHA-256 of what is in them. Every store has a
name of its own, so one that two clusters share is sent to once. What a store has is remembered here
(`~/.distlaunch/stores`), and each pack is looked up before it counts.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from typing import IO, TYPE_CHECKING

from launcher import output
from launcher.errors import StorageError
from launcher.login import remembered, remote
from launcher.payload.snapshot_file import Reader
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.login.connection import Login
    from launcher.payload.snapshot import Snapshot
    from launcher.payload.snapshot_file import File

_LOOK_S = 60.0
_CLEAN_S = 300.0
_UNWRITABLE, _UNREADABLE = 20, 24
_BLOCK_BYTES = 1 << 20

_LOCAL = ("bcachefs", "btrfs", "ext2/ext3", "f2fs", "jfs", "overlayfs", "ramfs", "tmpfs", "xfs", "zfs")
"""File systems that only their own host sees, unless it exports them, as `stat -f` calls them."""

_LOOK = r"""
umask 077
mkdir -p "$1/packs" "$1/runs" "$1/projects" "$1/claims" || exit 20
if [ ! -s "$1/store" ]; then
    printf '%s\n' "$2" > "$1/store.$$" || exit 20
    ln "$1/store.$$" "$1/store" 2>/dev/null || [ -s "$1/store" ] || cp "$1/store.$$" "$1/store" || exit 20
    rm -f "$1/store.$$"
fi
: > "$1/store.$$" || exit 20
rm -f "$1/store.$$"
printf 'store '
cat "$1/store" || exit 20
disk=$(stat -f -c %T "$1" 2>/dev/null)
case $disk in
LOCAL)
    for stream in "$1"/runs/*/nodes/0/stream; do
        [ ! -e "$stream" ] || { disk=; break; }
    done ;;
*) disk= ;;
esac
[ -z "$disk" ] || echo "disk $disk $(cat /proc/sys/kernel/hostname)"
top=$1
run=$3
shift 3
printf '%s\n' "$@" > "$top/claims/$run" || exit 20
shift
for name; do
    touch -c "$top/packs/$name"
    [ -s "$top/packs/$name" ] || echo "missing $name"
done
echo end
""".replace("LOCAL", "|".join(_LOCAL))

_CLEAN = r"""
cd "$1/packs" 2>/dev/null && cd .. && [ -d runs ] || exit 0
umask 077
find claims -type f -mtime +0 -exec rm -f {} + 2>/dev/null
line='
'
look() {
    uses=$line$(find runs claims -maxdepth 2 -type f '(' -name uses -o -path 'claims/*' ')' -exec cat {} +)$line
}
used() { case $uses in *"$line$1$line"*) ;; *) return 1 ;; esac; }
written() {
    [ "$(head -n 501 "$1/work.times" 2>/dev/null | wc -l)" -le 500 ] || return 0  # too many to look at
    touch -t 199912310000 "from.$$" && touch -t 200001020000 "to.$$" || return 0
    edited=$line$(sed 's/^[0-9]* //' "$1/work.times" 2>/dev/null)$line
    found=$(find "$1/work" -type f ! -name '*.pyc' '(' -newer "to.$$" -o ! -newer "from.$$" ')' 2>&1 |
        while IFS= read -r path; do
            name=${path#"$1/work/"}
            sum=
            case $edited in (*" $name$line"*) sum=$(sha256sum <"$path" 2>/dev/null) ;; esac
            case $edited in (*"$line${sum%% *} $name$line"*) ;; (*) echo "$path"; break ;; esac
        done)
    rm -f "from.$$" "to.$$"
    [ "$found" ]
}
look || exit 24
going=
for path in packs/*.tar packs/agent-*.pyz packs/*.going projects/*; do
    [ -e "$path" ] || continue
    whole=${path%.going}
    name=${whole##*/}
    if used "$name"; then
        [ -e "$whole" ] || mv "$path" "$whole"
        continue
    fi
    case $path in
    packs/agent-*.pyz) [ "$(find "$path" -mtime +0)" ] || continue ;;
    projects/*)
        [ -e "$path/state.json" ] || continue
        if written "$path"; then echo "stays $path"; continue; fi ;;
    esac
    [ "$path" != "$whole" ] || { rm -rf "$whole.going"; mv "$path" "$whole.going"; }
    going="$going $whole"
done
code=0
look || code=24
for whole in $going; do
    if [ $code = 0 ] && ! used "${whole##*/}"; then rm -rf "$whole.going"; fi
    [ ! -e "$whole.going" ] || [ -e "$whole" ] || mv "$whole.going" "$whole"
done
exit $code
"""
"""What may go is set aside, then `uses` and `claims` are read once more: a launch claims what it needs, then looks for
it. Nothing goes if one of these cannot be read. Files that were sent are from 2000-01-01, or are in `work.times` with
their content (`agent.outputs.times`); a project with any others stays, and one with so many in that list that to read
them would take minutes."""

USES = "uses"
"""The file in a run's directory that lists the packs and the project that it uses."""


@dataclass(frozen=True, slots=True)
class Missing:
    """What a run needs and a store does not have."""

    store: str
    """The store's name."""

    packs: tuple[str, ...]
    """Packs that have the other files."""

    new: str
    """The name of a pack for these files; empty if there are none."""

    files: tuple[File, ...]
    agent: bool
    """Whether the agent is missing."""

    disk: tuple[str, str] = ("", "")
    """Its kind and the login node's own name, if it is a local one and no node has written there yet."""


class Store:
    """The store in a directory of a cluster's file system."""

    def __init__(self, login: Login, directory: str) -> None:
        self._login, self.directory = login, directory

    def missing(self, files: Snapshot | None, agent: str, run: str, project: str) -> Missing:
        """Look up what has to be sent, and claim what is there for the run. `agent`: the name of its file.

        Raises `StorageError` if the directory cannot be written to, and what `remote.run` raises.
        """
        wanted = {file.sha256: file for file in files.files if file.link is None} if files else {}
        asked = remembered.assumed(self._key())
        while True:
            known = remembered.packs(asked)
            packs = remembered.covering(known, wanted)
            store, absent, on = self._look(run, [project or "-", agent, *packs])
            if store == asked:
                left = remembered.covering(remembered.without(store, known, absent), wanted)
                if left.keys() <= packs.keys():
                    packs = left
                    break
            elif not remembered.packs(store):
                packs = {}
                break
            asked = store
        remembered.assume(self._key(), store)
        there = {sha for found in packs.values() for sha in found}
        need = tuple(file for sha, file in sorted(wanted.items()) if sha not in there)
        name = pack_of(need)
        return Missing(store, tuple(packs), name if need else "", need, agent in absent, on)

    def sent(self, missing: Missing) -> None:
        """Remember a pack that was sent."""
        if missing.new:
            known = {**remembered.packs(missing.store), missing.new: [file.sha256 for file in missing.files]}
            remembered.write(missing.store, known)

    def clean(self) -> list[str]:
        """Remove what no run uses. Returns the directories of projects that stay, as runs have written there."""
        answer = remote.run(self._login, _CLEAN, self.directory, timeout_s=_CLEAN_S)
        if answer.code == _UNREADABLE:
            why = remote.reason(answer.stderr)
            output.warn(f"{self._login.name}: what no run uses stays in {self.directory} for now: {why}")
        found = [line.partition(" ") for line in answer.text.splitlines()]
        return [f"{self.directory}/{path}" for word, _, path in found if word == "stays"]

    def _key(self) -> str:
        return f"{self._login.address} {self.directory}"

    def _look(self, run: str, names: list[str]) -> tuple[str, set[str], tuple[str, str]]:
        """The store's name, which of these are not there, and `Missing.disk`."""
        new = os.urandom(16).hex()
        answer = remote.run(self._login, _LOOK, self.directory, new, run, *names, timeout_s=_LOOK_S)
        head, end, _ = answer.text.partition("\nend\n")
        if answer.code == _UNWRITABLE or not (end and head.startswith("store ")):
            why = remote.reason(answer.stderr) or f"code {answer.code}"
            full = "No space" in why or "quota" in why
            hint = "remote_dir is a directory of yours on a file system that all nodes see"
            raise StorageError(
                f"{self._login.name}: {self.directory} cannot be used: {why}", hint="make room there" if full else hint
            )
        lines = head.splitlines()
        said = [line.partition(" ") for line in lines[1:]]
        on = next((tuple(rest.split(" ", 1)) for word, _, rest in said if word == "disk" and " " in rest), ("", ""))
        return lines[0].removeprefix("store "), {rest for word, _, rest in said if word == "missing"}, (on[0], on[1])


def pack_of(files: Sequence[File]) -> str:
    """The name of the pack with these files."""
    return hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()[:32] + ".tar"


def pack_bytes(files: Sequence[File]) -> int:
    """The size of the pack with these files."""
    size = sum(len(_member(file).tobuf(tarfile.PAX_FORMAT)) + _rounded(file.size, tarfile.BLOCKSIZE) for file in files)
    return _rounded(size + 2 * tarfile.BLOCKSIZE, tarfile.RECORDSIZE)


def write_pack(snapshot: Snapshot, files: tuple[File, ...], target: IO[bytes]) -> None:
    """Write the pack with these files of the snapshot. Raises `SpecError` if one has changed since it was taken."""
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for file in files:
            reader = Reader(snapshot.directory, file)
            tar.addfile(_member(file), io.BufferedReader(reader, _BLOCK_BYTES))
            reader.check()


def _member(file: File) -> tarfile.TarInfo:
    info = tarfile.TarInfo(file.sha256)
    info.size = file.size
    return info


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def listing(snapshot: Snapshot, packs: tuple[str, ...], directory: str, project: str) -> dict[str, object]:
    """The content of `files.json` for the agents; `project`: the project's name, if the run uses its directory."""
    files = [
        (file.path, f"{file.mode:o}" if file.link is None else "link", file.link or "", file.sha256)
        for file in snapshot.files
    ]
    where = f"{directory}/projects/{project}" if project else ""
    store = f"{directory}/packs"
    return {"store": store, "packs": list(packs), "digest": snapshot.digest, "project": where, "files": files}


def uses(packs: Sequence[str], project: str) -> bytes:
    """The content of `USES`."""
    return "".join(f"{name}\n" for name in (*packs, project) if name).encode("ascii")
