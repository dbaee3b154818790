"""Switches NCCL's flight recorder on, with a directory of its own for each round, and asks it to write its dumps."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..contracts._contract import Variable
from ..named_tuple import NamedTuple
from ..system.scratch import within

_RENAMED = (2, 11)
"""Since this version torch surely reads the new names; versions before it read the old ones, and some of them both."""

_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMP = ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_ON_TIMEOUT")
_PIPE = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",)
_ENTRIES = "2000"
"""torch's own default, where it is on by default."""

_DISK_S = 1.0
_WRITES_S, _LOOK_S = 3.0, 0.05
"""NCCL looks at its pipe once a second."""

_CLOCKS_DIFFER_S = 2.0
"""A file server's clock may be behind the node's."""


class Recorder(NamedTuple):
    """Where the ranks of one node write their dumps in one round."""

    prefix: str
    """A rank's dump is the file with this name and its number."""

    pipe: str
    """A rank also dumps when something is written to the pipe of this name, its number and `.pipe`; empty: none."""

    role: str
    """Dumps know the ranks within a role."""

    first_rank: int
    """The number of ranks in the roles before this one."""

    since: float
    """When the round began, in unix seconds; 0 if these names are new: a clock may be set back."""

    def below(self, directory: str) -> Recorder:
        """The same with names that do not depend on the directory of the process, where the workers' is this one."""
        prefix, pipe = (name and os.path.join(directory, name) for name in (self.prefix, self.pipe))
        return self._replace(prefix=prefix, pipe=pipe)


def numbers(text: str) -> Tuple[int, ...]:
    """`2.15.0+cu130` as (2, 15); empty if it is no version."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else ()


def of_user(env: Mapping[str, str]) -> Optional[Recorder]:
    """The recorder that the user has switched on, of whatever backend, if it is known where it writes."""
    where = _set(env, _FILE)
    return Recorder(where, _set(env, _PIPE) or "", "", 0, time.time()) if where else None


def switched_on(
    env: Mapping[str, str], version: Tuple[int, ...], directory: str, scratch: str, number: int
) -> Tuple[Optional[Recorder], List[Variable]]:
    """The recorder of a round, and the variables that switch it on; what the user has set stands.

    Args:
        env: the workers' environment.
        version: torch's.
        directory: the round's directory for dumps; it is made.
        scratch: the node's directory in memory, for pipes.
        number: the number of the round.
    """
    new = version >= _RENAMED
    size, where, dump, pipe = (_set(env, names) for names in (_SIZE, _FILE, _DUMP, _PIPE))
    if not version or size == "0" or dump in ("0", "false", "FALSE", "n", "no"):
        return None, []
    if where is None and not within(_DISK_S, lambda: _made(directory), False):
        return None, []  # torch would only say that it cannot write there
    name = f"{scratch}/flight-{number}-"
    given = [
        (size, _named(_SIZE, new), _ENTRIES, "NCCL's last collectives are kept in memory"),
        (where, _named(_FILE, new), f"{directory}/rank_", "and written to this directory of the run"),
        (dump, _DUMP[0], "1", "after a timeout"),
        (pipe, _PIPE[0], name if _can_have_pipes(name) else "", "or when the watchdog asks for them"),
    ]
    variables = [Variable(*about) for value, *about in given if value is None and about[1]]
    values = [value if value is not None else about[1] for value, *about in given]
    return Recorder(values[1], values[3], "", 0, time.time() if where else 0.0), variables


def _set(env: Mapping[str, str], names: Sequence[str]) -> Optional[str]:
    return next((env[name] for name in names if name in env), None)


def _named(names: Sequence[str], new: bool) -> str:
    return names[0] if new else names[1]


def _made(directory: str) -> bool:
    with contextlib.suppress(OSError):
        os.makedirs(directory, exist_ok=True)
        return True
    return False


def _can_have_pipes(name: str) -> bool:
    """Whether a pipe can be made beside it: where NCCL cannot, it refuses to start."""
    with contextlib.suppress(OSError):
        os.mkfifo(f"{name}probe", 0o600)
        os.remove(f"{name}probe")
        return True
    return False


def have_written(recorder: Recorder, ranks: Sequence[int]) -> None:
    """Ask these ranks, which are alive, for their dumps, and wait for those that can be asked, for a limited time.

    `ranks` are numbers within the role.
    """
    asked = [rank for rank in ranks if _size(recorder, rank) == 0 and _ask(recorder, rank)]
    limit = time.monotonic() + _WRITES_S
    before: Dict[int, int] = {}
    while asked and time.monotonic() < limit:
        time.sleep(_LOOK_S)
        sizes = {rank: _size(recorder, rank) for rank in asked}
        asked = [rank for rank in asked if not sizes[rank] or sizes[rank] != before.get(rank)]
        before = sizes


def _ask(recorder: Recorder, rank: int) -> bool:
    """Write to a rank's pipe; whether it has one that it reads."""
    if not recorder.pipe:
        return False
    with contextlib.suppress(OSError):
        fd = os.open(f"{recorder.pipe}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.write(fd, b"1\n") > 0
        finally:
            os.close(fd)
    return False


def _size(recorder: Recorder, rank: int) -> int:
    """The size of its dump; 0 if there is none of this round: a name that the user chose may have been used before."""
    with contextlib.suppress(OSError):
        about = os.stat(f"{recorder.prefix}{rank}")
        return about.st_size if about.st_mtime >= recorder.since - _CLOCKS_DIFFER_S else 0
    return 0


def written(recorder: Recorder, ranks: Sequence[int]) -> Dict[int, str]:
    """The dumps of these ranks of this round that are there."""
    return {rank: f"{recorder.prefix}{rank}" for rank in ranks if _size(recorder, rank)}
