"""What the user sees of one node: its workers' lines, and little else."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.protocol import NOT_NEEDED, Decoder, Event, Output
from launcher.torchrun.logs import STDERR, Logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.job import Job
    from launcher.torchrun.logs import Wanted

_READ_BYTES = 1 << 18
_LOOK_S = 0.1
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_PEER_TIMEOUT = ("--peer-timeout", "--rdzv-conf keep_alive_interval")
"""The option that names the limit of silence, as backends have it and as torchrun has."""

_SPAWN = ("use --start-method spawn to avoid the restart", "nothing is lost but the time of this restart")
"""What can be done, on the backends and here: torchrun's option of that name has no effect on scripts."""

_ANOTHER_RUN = " (a run of its own needs an --rdzv-id of its own)"


class Show:
    """Reads the agent's stream to its end."""

    def __init__(self, wanted: Wanted, job: Job, node_rank: int, host: str, say: Callable[[str], None]) -> None:
        self.done: dict[str, Any] | None = None
        """How the node ended, as its agent reported."""

        self._job, self._node_rank, self._say = job, node_rank, say
        self._round = -1
        self._node = os.path.join(job.directory, "nodes", str(node_rank))
        self._logs = Logs(wanted, job.run, host, self._write, say)
        self._signal = ""
        self._batch, self._batch_fd = bytearray(), STDERR

    def follow(self, stream: int) -> None:
        """Show everything in the stream."""
        decoder = Decoder()
        while data := self._read(stream):
            for record in decoder.feed(data):
                if isinstance(record, Output):
                    self._logs.show(record)
                elif isinstance(record, Event):
                    self._event(record.name, record.fields)
            self._flush()
        self._logs.end()
        self._flush()
        self._logs.keep_errors(os.path.join(self._node, "errors"))

    @staticmethod
    def _read(stream: int) -> bytes:
        """The next part of the stream, once our own output is read."""
        while output.congested():
            output.drain(_LOOK_S)
        return os.read(stream, _READ_BYTES)

    def report(self) -> bool:
        """Print why the node failed, if it did. Returns whether it succeeded."""
        done = self.done or {"result": "failed", "cause": None}
        if done["result"] == "success":
            return True
        from launcher.agent import failures
        from launcher.console import summary

        cause = done.get("cause")
        if cause is None:
            cause = {"class": failures.Failure.NODE, "message": "the agent exited without reporting a result"}
            with (
                contextlib.suppress(OSError),
                open(os.path.join(self._job.directory, "stderr"), encoding="utf-8", errors="replace") as file,
            ):
                cause["traceback"] = file.read()[-_READ_BYTES:]
        else:
            self._leave_error(cause)
        lines = [line.replace(*_PEER_TIMEOUT) for line in summary.cause_lines(cause)]
        if self._signal and cause.get("class") in failures.ENDS:  # its sender and reason are unknown
            lines = [f"ended by {self._signal}"]
        output.report(f"distlaunch: {output.paint(lines[0], 'red')}", *(f"  {line}" for line in lines[1:]))
        return False

    def _event(self, name: str, about: dict[str, Any]) -> None:
        if name == "rendezvous":
            self._round = about["round"]
            self._logs.begin(self._round, about["restarts"], about["ranks"])
        elif name == "preload_output":
            self._write(STDERR, str(about.get("text")).encode())
        elif name == "warning":
            message = str(about.get("message")).replace(*_PEER_TIMEOUT).replace(*_SPAWN)
            self._note(f"warning: {message}{_ANOTHER_RUN if message == NOT_NEEDED else ''}")
        elif name == "lines_lost":
            self._note(f"warning: {about.get('lines')} lines were lost: {about.get('reason')}")
        elif name == "waiting":
            limit = about.get("limit_s")
            self._note(f"waits for {about.get('what')}" + ("" if limit is None else f", for at most {limit:g} s"))
        elif name == "restart":
            why = (about.get("cause") or {}).get("message")
            self._note(f"restart {about.get('restarts')} of {about.get('max_restarts')}: {why}")
        elif name == "stopping":
            name, by = str(about.get("signal")), about.get("by")
            self._signal = f"{name} on node {by.get('node')}, {by.get('host')}" if by else name
            self._note(f"workers get {name}, and have {self._job.grace_s:g} s to end")
        elif name == "done":
            self.done = about

    def _note(self, text: str) -> None:
        self._flush()
        self._say(text)

    def _leave_error(self, cause: dict[str, Any]) -> None:
        """Copy the error file of this node's first failed worker to where our parent expects it, as torchrun does."""
        path = os.environ.get(_ERROR_FILE)
        errors = os.path.join(self._node, "errors")
        if not path or cause.get("local_rank") is None or not os.path.isdir(errors):
            return
        ours = cause.get("node") == self._node_rank
        names = [name for name in os.listdir(errors) if name.startswith(f"{self._round}-")]
        if ours:
            names = [name for name in names if name == f"{self._round}-{cause['local_rank']}.json"]
        first = min((os.path.join(errors, name) for name in sorted(names)), key=_raised_at, default=None)
        if first is not None:
            with contextlib.suppress(OSError), open(first, "rb") as file, open(path, "wb") as into:
                into.write(_with_code(file.read(), cause) if ours else file.read())

    def _write(self, fd: int, data: bytes) -> None:
        if fd != self._batch_fd:
            self._flush()
            self._batch_fd = fd
        self._batch += data

    def _flush(self) -> None:
        """Write the collected output."""
        if self._batch:
            output.write(self._batch_fd, bytes(self._batch))
            self._batch.clear()


def _raised_at(path: str) -> float:
    """When the error in the file was raised; torch's own files have whole seconds."""
    import json

    with contextlib.suppress(OSError, ValueError, TypeError, KeyError), open(path, "rb") as file:
        about = json.load(file)
        return float(about.get("raised_at") or about["message"]["extraInfo"]["timestamp"])
    return float("inf")


def _with_code(text: bytes, cause: dict[str, Any]) -> bytes:
    """The error file with the worker's exit code added, or its negative signal number, as torchrun writes it."""
    import json

    with contextlib.suppress(ValueError, TypeError, KeyError):
        code = -signal.Signals[cause["signal"]] if cause["exit_code"] is None else cause["exit_code"]
        about = json.loads(text)
        about["message"]["errorCode"] = code
        return json.dumps(about).encode()
    return text
