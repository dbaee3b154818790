"""The first agent of a run on this machine, whose Python starts while the launcher is still being imported.

It is the first of a command's modules, and imports only what a run needs anyway. Of a run with several nodes, the
agents are forks of that process: Python and the agent's modules are loaded once, and shared.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from launcher import payload
from launcher.agent.named_tuple import NamedTuple

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from launcher.agent.warm import asking
    from launcher.system import detached, proc

_ROOM = 2048
"""Bytes of its command line, which that of the agent must fit in."""

MANY = 64
"""How many agents are forked, recorded and begin together."""

_ANSWER_S = 60.0
_READ_BYTES = 1 << 16
_STANDARD_STREAMS = 3
_OTHERS = frozenset(("--help", "-h", "--dry-run", "--python"))
"""Options with which no agent is started, or another one."""

_WARM = "--warm"


class _Started(NamedTuple):
    process: subprocess.Popen[bytes]
    archive: tuple[int, int]
    env: dict[str, str]
    cwd: str


_started: list[_Started] = []
_called: list[asking.Called] = []
"""With `--warm`: a connection to the server that stands, where an agent is prepared."""


def begin(words: Sequence[str]) -> None:
    """Start it, if a run of this command line may need it and its archive was packed by an earlier command."""
    if not _OTHERS.isdisjoint(words) or not sys.executable:
        return
    with contextlib.suppress(OSError):
        for number in range(_STANDARD_STREAMS):
            os.fstat(number)  # if one is closed, a pipe or a socket would take its place
        if _WARM in words:
            _call()
            return
        path = payload.kept_agent()
        _start(sys.executable, path, _state(path), os.getcwd())


def _call() -> None:
    from launcher.agent.warm import asking  # few runs leave a server

    if found := asking.call(sys.executable):
        _called.append(found)


def called() -> asking.Called | None:
    """The connection to the server that stands, which may be used until `drop`."""
    return _called[-1] if _called else None


def _start(python: str, path: str, archive: tuple[int, int], cwd: str) -> None:
    import subprocess  # not for a run that starts from what stands

    argv = [python, "-u", path, "--ahead", "-" * _ROOM]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(
        argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True, cwd=cwd or None
    )
    _started.append(_Started(process, archive, dict(os.environ), cwd))


def take(argv: Sequence[str], place: detached.Place, told: list[detached.Told]) -> bool:
    """Have it become the agent with this command line; False if it cannot, or there is none.

    It begins once it is recorded, and is appended to `told`, so that the caller can wait until it has begun.
    """
    if not _started:
        return False
    from launcher.agent.system.processes import start_ticks

    ours = _started[-1]
    ticks = start_ticks(ours.process.pid)
    if ticks is None or not _is_alike(ours, argv, place.cwd):
        drop()
        return False
    import json

    from launcher.system import detached, proc

    _started.clear()
    ours.process.returncode = 0  # found by identity, not waited for, as in `detached.start_detached`
    told.append(detached.Told(argv[0], ours.process, place.stderr))
    assert ours.process.stdout
    ours.process.stdout.close()
    wanted = _wanted(argv, place.stdout, place.stderr)
    place.record(proc.Identity(ours.process.pid, ticks))
    told[-1].tell(json.dumps(wanted).encode())
    return True


def can_fork(argv: Sequence[str], cwd: str) -> bool:
    """Whether it can fork for agents with such command lines, none of which is longer; it is started, if it is not."""
    if _started and _is_alike(_started[-1], argv, cwd):
        return True
    drop()
    from launcher.system import hangup

    with contextlib.suppress(OSError), open(argv[0], "rb") as file:
        if file.read(2) != b"#!" and _size(argv) <= _ROOM:  # a script may give each agent other surroundings
            with hangup.as_found():
                _start(argv[0], argv[2], _state(argv[2]), cwd)
    return bool(_started)


def fork(
    agents: Sequence[tuple[Sequence[str], Path]], record: Callable[[list[proc.Identity]], object], *, first: bool
) -> bool:
    """Have agents, each with its command line and the node's directory, begin once all of them are recorded.

    False if it has ended before it forks for the `first` ones. Raises `CommandError` if they cannot be started.
    """
    import json

    from launcher.agent.system.processes import start_ticks
    from launcher.errors import CommandError
    from launcher.system import proc

    wanted = [_wanted(argv, directory / "stream", directory / "stderr") for argv, directory in agents]
    pids = _answer(json.dumps(wanted).encode())
    if pids is None and first:
        return False
    if pids is not None:
        record([proc.Identity(pid, start_ticks(pid) or 0) for pid in pids])
    if pids is None or _answer(b"") is None:
        raise CommandError("agents cannot be started: the process that forks them has ended")
    return True


def _answer(line: bytes) -> list[int] | None:
    """What it answers to a line; None if it has ended. Raises `CommandError` if it cannot fork."""
    import json
    import select

    from launcher.errors import CommandError

    process = _started[-1].process
    assert process.stdin
    assert process.stdout
    said, poller = b"", select.poll()
    poller.register(process.stdout, select.POLLIN)
    with contextlib.suppress(BrokenPipeError):
        rest = line + b"\n"
        while rest:
            rest = rest[process.stdin.write(rest) :]
        while not said.endswith(b"\n"):
            if not poller.poll(1000 * _ANSWER_S):
                raise CommandError(f"agents cannot be started: no fork within {_ANSWER_S:.0f} s")
            more = os.read(process.stdout.fileno(), _READ_BYTES)
            if not more:
                break
            said += more
    if not said.endswith(b"\n"):
        return None
    answer = json.loads(said)
    if isinstance(answer, str):
        raise CommandError(f"agents cannot be started: {answer}")
    pids: list[int] = answer
    return pids


def _wanted(argv: Sequence[str], stdout: Path, stderr: Path) -> dict[str, Any]:
    """A request to become an agent, whose files for output are there."""
    from launcher.system import detached, input_file

    for path in (stdout, stderr):
        if path.exists():  # from an earlier attempt
            input_file.check(path)
        detached.private(path).close()
    return {"argv": argv, "outputs": [str(stdout), str(stderr)]}


def drop() -> None:
    """End it, and what was prepared, if it is not taken."""
    while _called:
        _called.pop().connection.close()
    while _started:
        with _started.pop().process as process:
            process.kill()


def _is_alike(ours: _Started, argv: Sequence[str], cwd: str) -> bool:
    """Whether it differs in nothing from what would be started with this command line."""
    from launcher.payload import agent_archive

    if _size(argv) > _ROOM or (argv[0], cwd, dict(os.environ)) != (sys.executable, ours.cwd, ours.env):
        return False
    with contextlib.suppress(OSError):
        return agent_archive.kept() is not None and _state(payload.kept_agent()) == ours.archive
    return False


def _size(argv: Sequence[str]) -> int:
    return sum(len(os.fsencode(word)) + 1 for word in argv)


def _state(path: str) -> tuple[int, int]:
    about = os.stat(path)
    return about.st_ino, about.st_mtime_ns
