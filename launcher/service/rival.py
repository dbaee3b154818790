"""One try of a run that is queued on several clusters: submitted and watched in a thread of its own."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.named_tuple import NamedTuple
from launcher.agent.protocol import Event
from launcher.errors import CommandError, LaunchError
from launcher.runs import directories, records, status
from launcher.runs.reader import StreamReader
from launcher.service import launch, limits, observe
from launcher.service.interrupts import Unattended
from launcher.system import listener

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable

    from launcher.backends._base import AnyBackend, Stream
    from launcher.results.run import RunState
    from launcher.runs.records import Run
    from launcher.service.launch import Launch

_AGAIN_S = 5.0
_LEAVES_S = 15.0
_CLAIMS = {"claim_wanted": "wants", "claim_held": "held"}
"""Events of node 0's agent, as they are reported."""


class _NeverSentError(CommandError):
    """Nothing of a try was submitted, and nothing will be."""


class News(NamedTuple):
    """What the thread of a try reports: `submitted`, `wants`, `held`, `ended`, `waits`, or a kind of message."""

    rival: Rival
    what: str
    text: str = ""
    more: tuple[str, ...] = ()
    """Further lines of a message."""


class Rival:
    """One try: submitted and watched in a thread of its own, as a cluster may take long to answer."""

    def __init__(self, run: Run, backend: AnyBackend, cluster: str, said: queue.Queue[News]) -> None:
        self.run, self.backend, self.cluster, self._said = run, backend, cluster, said
        self.detail = "being submitted"
        self.sent = self.over = False
        """Whether it was submitted; and whether nothing more is to be heard of it."""

        self.unsure = False
        """Whether its submission has failed, and something of it may still start."""

        self._left = False
        self._thread = threading.Thread(target=self._go, daemon=True, name=f"try {cluster}")

    def begin(self, send: Callable[[], Run]) -> None:
        """Start the thread; `send` submits the try, or finds what was."""
        self._send = send
        self._thread.start()

    def leave(self) -> None:
        """Wait until nothing of the try is watched any more."""
        self._thread.join(_LEAVES_S)

    def _tell(self, what: str, text: str = "", *more: str) -> None:
        self._said.put(News(self, what, text, more))

    def _go(self) -> None:
        with listener.lines_told_to(lambda kind, text, *more: self._tell(kind, f"{self.cluster}: {text}", *more)):
            try:
                self.run = self._send()
                self._tell("submitted")
                self._watch()
            except _NeverSentError as error:
                self._failed(error.message, nothing=True)
            except LaunchError as error:
                if error.hint:
                    self._tell("note", f"{self.cluster}: {error.hint}")
                self._failed(error.message)
            except KeyboardInterrupt:
                self._failed("it was cancelled while it was submitted")
            except Exception as error:  # noqa: BLE001 - one broken cluster must not end the others' tries
                self._failed(repr(error))

    def found(self) -> Run:
        """What a launcher that has ended has submitted of it, once its cluster answers."""
        while not self.over:
            try:
                found = observe.sent(self.run)
            except LaunchError as error:
                self._asks_again(error)
                continue
            if found.handle is None:
                raise _NeverSentError("it was never submitted")
            return found
        return self.run

    def _asks_again(self, error: LaunchError) -> None:
        self.detail = error.message
        self._tell("waits")
        time.sleep(_AGAIN_S)

    def _failed(self, why: str, *, nothing: bool = False) -> None:
        """Report the end. Something may start later, unless its cluster has `nothing`, and its launcher no doubt."""
        found = directories.read(self.run.path.parent, self.run.id)
        cut_off = found.handle is not None and not found.submitted and found.result is None
        self.unsure = not found.damaged and (bool(status.unsure(found)) or (cut_off and not nothing))
        if self.unsure:
            self.run = found
        self._tell("ended", why)

    def _watch(self) -> None:
        """Report when node 0 wants the claim, and an end without it."""
        while not (self.over or self._left):
            try:
                stream = self.backend.open_stream(self.run.known)
                try:
                    self._read(stream)
                finally:
                    stream.close()
            except LaunchError as error:
                self._asks_again(error)

    def _read(self, stream: Stream) -> None:
        reader = StreamReader(frozenset(), 0)
        ask_at, pause = 0.0, limits.POLL_S[0]
        while not self.over:
            for chunk in stream.read(limits.READ_TIMEOUT_S):
                for record in reader.feed(chunk.data) if chunk.node == 0 else ():
                    if isinstance(record, Event) and record.name in _CLAIMS:
                        self._tell(_CLAIMS[record.name])
            if time.monotonic() >= ask_at:
                pause = min(pause * 1.3, self.backend.ask_every_s)
                ask_at = time.monotonic() + pause
                if self._has_ended():
                    return

    def _has_ended(self) -> bool:
        state = observe.state_of(self.run)
        self.detail = state["detail"] or state["state"]
        self._tell("waits")
        if state["exit_code"] is None:
            return False
        if has_claim(self.run):  # at a shared place, and it has run since the last look
            self._tell("held")
        else:
            self._tell("ended", why_ended(state))
        self._left = True
        return True


def submit(made: Run, planned: Launch) -> Run:
    """Create the try, and submit it. Raises `LaunchError`."""
    records.create(made)
    return launch.send(planned.request.backend, planned.plan, made, Unattended())


def has_claim(run: Run) -> bool:
    """Whether node 0 of the try has reported that it has the claim."""
    return any(isinstance(record, Event) and record.name == "claim_held" for record in status.ends(run.stream_path(0)))


def why_ended(state: RunState) -> str:
    """Why a try has ended."""
    return (state["cause"]["message"] if state["cause"] else "") or state["state"]


def grant(run: Run, backend: AnyBackend) -> None:
    """Tell node 0's agent that its run has the claim. Raises `LaunchError`."""
    outputs = backend.open_outputs(run.known, 0)
    try:
        outputs.grant()
    finally:
        outputs.close()


def say(kind: str, text: str, *more: str) -> None:
    """Print a message that another thread has left to this one. `more`: its further lines."""
    if kind == "detail":
        output.detail("\n".join([text, *more]))
    else:
        (output.warn if kind == "warning" else output.note)(text, *more)
