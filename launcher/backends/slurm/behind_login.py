"""Runs of a cluster behind its login node: their streams, files and terminals."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.outputs.signs import GRANTED
from launcher.agent.protocol import Event
from launcher.agent.terminal import attach
from launcher.backends import _login_stream
from launcher.backends._login_outputs import LoginOutputs
from launcher.backends.slurm import allocation
from launcher.backends.slurm.handle import directory_of, remote_of
from launcher.errors import CommandError, RequestError, StorageError
from launcher.login import remote
from launcher.login.store import Store
from launcher.runs import events, status
from launcher.runs.handle import unreadable
from launcher.system import numbers, pipes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.backends.slurm.handle import SlurmHandle
    from launcher.backends.slurm.site import Site
    from launcher.login.connection import Login

_FETCH_S = 30.0
_CALL_S = 30.0
_REMOVE_S = 300.0
_NODES_PER_S = 50
"""Of how many nodes the last events are read in a second."""

_LAST_EVENTS = r"""
events() { LC_ALL=C grep -a '^{"event"' | tail -n 2; }
cd "$1" || exit
for file in nodes/*/stream $(grep -l '"event"' nodes/*/last_words 2>/dev/null); do
    [ -e "$file" ] || continue
    size=$2
    found=$(tail -c "$size" "$file" | events)
    while [ -z "$found" ] && [ "$size" -lt "$(wc -c <"$file")" ]; do
        size=$((size * 64))
        found=$(tail -c "$size" "$file" | events)
    done
    printf '%s\n' "$found"
done
"""
"""`-a`: workers may print anything. A node that is lost after much output has its last event far from the end."""

_fetched: dict[str, float] = {}
"""When the streams of a run were last fetched whole, on the monotonic clock."""

_gone: set[str] = set()
"""Runs whose directory on the cluster could not be read."""


def stream(login: Login, handle: SlurmHandle, offsets: Mapping[int, int]) -> _login_stream.LoginStream:
    """The streams of a run's nodes."""
    return _login_stream.LoginStream(login, remote_of(handle), directory_of(handle), handle["nodes"], offsets)


def refresh(login: Login, handle: SlurmHandle) -> None:
    """Fetch what is new; warns if that cannot be done, and only earlier output is here."""
    if problem := look(login, handle, time.monotonic()):
        output.warn(f"{problem}; this is what came before")
    elif handle["run_dir"] in _gone:
        whose = f"which {handle['user']} does not let others read, or " if "user" in handle else ""
        output.warn(f"{login.name}: its nodes write to {handle['remote']}, {whose}which is not there")


def look(login: Login, handle: SlurmHandle, since: float) -> str:
    """Fetch what is new of all tasks, unless that was done after `since`. Returns why that has failed, if it has.

    `since`: when Slurm was asked last, on the monotonic clock: what a node has written before it ended is there then.
    """
    run_dir, begun = handle["run_dir"], time.monotonic()
    if _fetched.get(run_dir, float("-inf")) >= since:
        return ""
    problem, readable = _login_stream.fetch(login, handle["remote"], Path(run_dir), handle["nodes"], _FETCH_S)
    if not problem:
        _fetched[run_dir] = begun
    (_gone.discard if readable else _gone.add)(run_dir)
    return problem


def printed(login: Login, handle: SlurmHandle) -> int:
    """How much its jobs have written to `job.out`, in bytes."""
    file = f"{remote_of(handle)}/job.out"
    answer = remote.run(login, '[ ! -e "$1" ] || wc -c <"$1"', file, timeout_s=_CALL_S)
    if answer.code or not (answer.text.strip() or "0").isdigit():
        raise CommandError(f"{login.name}: {file} cannot be read: {remote.reason(answer.stderr)}")
    return int(answer.text.strip() or 0)


def last_attempt(login: Login, handle: SlurmHandle) -> int:
    """The highest attempt in the last events of its nodes there. Raises `CommandError` if they cannot be read."""
    where, limit_s = remote_of(handle), _CALL_S + handle["nodes"] / _NODES_PER_S
    answer = remote.run(login, _LAST_EVENTS, where, str(2 * status.END_BYTES), timeout_s=limit_s)
    if answer.code:
        raise CommandError(f"{login.name}: {where} cannot be read: {remote.reason(answer.stderr)}")
    found = [events.record(line) for line in answer.stdout.splitlines()]
    return max((event.fields.get("attempt") or 0 for event in found if isinstance(event, Event)), default=0)


def terminal(site: Site, handle: SlurmHandle, node: int, rank: int | None, *, python: str) -> pipes.ProgramBridge:
    """Connect through a separate step, as `allocation.terminal` does."""
    assert site.login
    _require_remote(handle)
    file = f"{remote_of(handle)}/nodes/{node}/agent.json"
    answer = remote.run(site.login, 'cat "$1"', file, timeout_s=_CALL_S)
    try:
        about = dict(numbers.loads(answer.stdout))
    except (ValueError, TypeError, RecursionError):
        raise CommandError(f"{site.login.name}: {file} cannot be read: {remote.reason(answer.stderr)}") from None
    where = Path(remote_of(handle))
    words = allocation.terminal_words(site, handle, about, where, (node, rank), python=python)
    text = remote.program(f"exec {shlex.join(words)}")
    bridge = pipes.ProgramBridge([*site.login.words(), remote.command(text)])
    bridge.sock.sendall(text.encode(errors="surrogateescape"))
    bridge.wait_for(attach.CONNECTED, allocation.REACHED_S)
    return bridge


def outputs(login: Login, handle: SlurmHandle) -> LoginOutputs:
    """The directory where the workers write, as node 0 has reported it."""
    _require_remote(handle)
    where = handle.get("output_dir") or handle["remote"]
    return LoginOutputs(login, where, f"{remote_of(handle)}/{GRANTED}")


def place(site: Site, handle: SlurmHandle, directory: Path) -> None:
    """Note where the run's directory is, which cannot be read without a shell there."""
    assert site.login
    if site.has_shell:
        handle["remote"] = str(directory)
    else:
        handle["elsewhere"] = f"{site.login.name}:{directory}"
        output.note(f"{site.login.name} takes single commands only: states are shown, output stays in {directory}")


def _require_remote(handle: SlurmHandle) -> None:
    """Raise `RequestError` for a run whose directory cannot be read."""
    if "remote" not in handle:
        raise RequestError(unreadable(handle))


def not_again(handle: SlurmHandle) -> RequestError:
    """The error for a run that has ended and cannot be started again from here."""
    run = Path(handle["run_dir"]).name
    if "user" in handle:
        return RequestError(f"{run} belongs to {handle['user']}", hint="only they can start it again")
    return RequestError(f"{run} has ended, and its login node has no shell to start it again", hint="launch it again")


def mark_cancelled(login: Login, handle: SlurmHandle) -> bool:
    """Let the job's own file and its agents know that it is cancelled, not preempted; returns whether they do."""
    request = (directory_of(handle) / "cancel.json").read_bytes()
    body = 'cat > "$1/cancel.json.new" && mv -f "$1/cancel.json.new" "$1/cancel.json"'
    answer = remote.run(login, body, remote_of(handle), timeout_s=_CALL_S, stdin=request)
    if answer.code:  # a full disk is a reason to cancel
        output.warn(f"{login.name}: {remote.reason(answer.stderr)}; cancelling without a note for the agents")
    return not answer.code


def remove(login: Login, handle: SlurmHandle) -> None:
    """Remove the run's directory on the cluster, and what only this run has used. Raises `StorageError`."""
    where = handle["remote"]
    answer = remote.run(login, 'rm -rf "$1"', where, timeout_s=_REMOVE_S)
    if answer.code:
        raise StorageError(f"{login.name}: {where} cannot be removed: {remote.reason(answer.stderr)}")
    for directory in Store(login, str(Path(where).parent.parent)).clean():
        output.note(f"{login.name}: {directory} stays: runs have written files there")
