"""Tell of a run that is followed: what its node 0 offers to tell is taken on here, so that only one of them does."""

from __future__ import annotations

import json
import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent import notice, webhook
from launcher.agent.failures import Failure
from launcher.agent.notice import END, HANG, Notice
from launcher.agent.secret_files import NOTIFY_FILE
from launcher.errors import LaunchError
from launcher.settings.notify import Receivers
from launcher.system import input_file, storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.protocol import Event
    from launcher.backends._base import AnyBackend
    from launcher.runs.outcome import Outcome
    from launcher.runs.records import Run

_SEND_S, _SEND_AGAIN_S = 12.0, 4.0
"""How long sending may take; the latter once something could not be sent."""

_TAKE_S = 10.0
_SURE_S = 15.0
"""How long a run waits to start again until that counts as an end: the cluster may have been asked before it began."""

_KINDS = (notice.START, notice.FAILURE, HANG, END)


def teller_of(run: Run, backend: AnyBackend) -> Teller | None:
    """What sends notices of the run; None: it has no receivers, or none that this user may know."""
    receivers = _receivers(run)
    return Teller(run, backend, receivers) if receivers else None


def leave_to_agents(run: Run) -> None:
    """Note that no launcher follows the run from now on, so that node 0 waits for none. Raises `StorageError`."""
    if receivers := _receivers(run):
        text = receivers._replace(followed=False).to_text()
        storage.write_whole(run.path / NOTIFY_FILE, text.encode("ascii"), mode=0o600)


def _receivers(run: Run) -> Receivers | None:
    try:
        return Receivers.from_text(input_file.read(run.path / NOTIFY_FILE).decode("ascii"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Teller:
    """Tells of one run, in threads: receivers and hosts that do not answer hold up nothing."""

    def __init__(self, run: Run, backend: AnyBackend, receivers: Receivers) -> None:
        self._run, self._backend = run, backend
        self._lines = [_Line(url, receivers.secret) for url in (*receivers.webhooks, *receivers.others)]
        self._asked: queue.Queue[Notice | None] = queue.Queue()
        self._ends: dict[int, tuple[str, bool]] = {}
        """Of each attempt whose end node 0 has offered to tell: the state, and whether the run has waited since."""

        self._held: Notice | None = None
        """The end that was taken on: sent once the run's outcome is known, or that it waits to start again."""

        self._offered_at = 0.0

        self._after = ""
        """Why the attempt before the current one ended: only its cluster knew."""

        self._hangs = 0
        self._thread: threading.Thread | None = None
        self._taking, self._left = threading.Lock(), False
        """`_left`: nothing more is taken on. Decided together, as what is taken on must be sent."""

    def event(self, node: int, record: Event) -> None:
        """Take an event of a node into account."""
        made = self._offered(record) if node == 0 and record.name == "notice" else None
        if node and record.name == "hang" and not self._hangs:  # node 0 offers to tell of its own
            about = {"message": str(record.fields.get("message") or ""), "time": time.time()}
            made = Notice(HANG, self._run.id, _attempt(record), about, 1000 * node + 1)
        if node == 0 and record.name == "agent_started":
            self._after = str(record.fields.get("after") or "")
        if made is None:
            return
        self._hangs += made.what == HANG
        if made.what == END:
            swept = made.about.get("state") == Failure.CANCELLED  # a run that was cancelled does not start again
            self._ends.setdefault(made.attempt, (Failure.PREEMPTED if swept else str(made.about.get("state")), False))
            self._offered_at = time.monotonic()
        self._asked.put(made)
        if self._thread is None:
            self._thread = threading.Thread(target=self._take_on, name="notices", daemon=True)
            self._thread.start()

    def _offered(self, record: Event) -> Notice | None:
        """The notice, if the event is one as agents write it."""
        what, run = record.fields.get("what"), record.fields.get("run")
        with suppress(ValueError, TypeError):
            data = json.loads(str(record.fields.get("data")))
            about, number = data["about"], int(data["number"])
            if what in _KINDS and run in (self._run.id, self._run.path.name) and isinstance(about, dict):
                return Notice(str(what), str(run), _attempt(record), about, number)
        return None

    def _take_on(self) -> None:
        """Take on what is offered, at once: node 0 waits for that."""
        while (made := self._asked.get()) is not None and not self._left:
            with self._taking:
                if self._held is not None and made.attempt > self._held.attempt:
                    self._tell_end(self._why_before())
            self._ask_for(made)

    def _ask_for(self, made: Notice) -> None:
        """Take it on, unless somebody has. If its node cannot be asked, it tells that itself."""
        try:
            if made.number >= 1000:
                self._take(made, lambda: notice.take(str(self._run.path), made.id))
                return
            outputs = self._backend.open_outputs(self._run.known, 0)
            try:
                self._take(made, lambda: outputs.take(made.id))
            finally:
                outputs.close()
        except (LaunchError, OSError) as error:
            output.detail(f"{made.what} is left to node 0 to tell: {error}")
        except NotImplementedError:
            pass

    def _take(self, made: Notice, is_ours: Callable[[], bool]) -> None:
        with self._taking:
            if self._left or not is_ours():
                return
            if made.what == END:
                self._held, self._offered_at = made, time.monotonic()
            else:
                self._send(made)

    def _send(self, made: Notice) -> None:
        for line in self._lines:
            line.put(made)

    def _tell_end(self, known: dict[str, Any]) -> None:
        """Tell the end that was taken on, with what is known of it besides."""
        held, self._held = self._held, None
        if held is not None:
            self._send(held._replace(about={**held.about, **known}))

    def _why_before(self) -> dict[str, Any]:
        return {"state": self._after, "cause": None} if self._after else {}

    def waits(self) -> None:
        """The run waits for its next attempt, which may take hours: tell the end of the last one."""
        late = time.monotonic() - self._offered_at >= _SURE_S
        if not (self._ends and late and self._taking.acquire(blocking=False)):
            return
        try:
            last = max(self._ends)
            state, _ = self._ends[last]
            self._ends[last] = state, True  # another launcher may tell that, or node 0
            swept = self._held is not None and self._held.about.get("state") == Failure.CANCELLED
            self._tell_end({"state": state, "cause": None} if swept else {})
        finally:
            self._taking.release()

    def _stop(self) -> None:
        """Take on nothing more: what is still asked for is left to its node."""
        self._asked.put(None)
        if self._thread is None:
            return
        self._thread.join(_TAKE_S)
        settled = self._taking.acquire(timeout=_TAKE_S)
        self._left = True
        if settled:
            self._taking.release()
        else:
            output.warn(f"a notice may be lost: node 0 of {self._run.id} does not answer")

    def ended(self, outcome: Outcome) -> None:
        """Tell the end of the run, unless node 0 does; print what could not be told."""
        self._stop()
        told, has_waited = self._ends.get(outcome.attempt, ("", False))
        more = 1 if has_waited else 0  # it was to go on, and has ended in the queue
        made = Notice(END, self._run.id, outcome.attempt, {"time": time.time(), **_end(outcome)}, more)
        ours = self._held is None and (told != outcome.state if has_waited else not told)
        with suppress(OSError):
            if ours and notice.take(str(self._run.path), made.id):
                self._held = made
        self._tell_end(_end(outcome))
        self._close()

    def leave(self) -> None:
        """Finish what was taken on: the run is followed no longer."""
        self._stop()
        self._tell_end(self._why_before())
        self._close()

    def _close(self) -> None:
        limit = time.monotonic() + _SEND_S
        for line in self._lines:
            for trouble in line.close(limit):
                output.warn(f"not told: {webhook.shown(line.url)}: {trouble}")


class _Line:
    """The notices for one receiver, in order, in a thread of its own."""

    def __init__(self, url: str, secret: str) -> None:
        self.url, self._secret = url, secret
        self._notices: queue.Queue[Notice | None] = queue.Queue()
        self._troubles: list[str] = []
        self._thread = threading.Thread(target=self._work, name="receiver", daemon=True)
        self._thread.start()

    def put(self, made: Notice) -> None:
        """Tell this next."""
        self._notices.put(made)

    def close(self, limit: float) -> list[str]:
        """Wait until all are sent, or up to the limit on the monotonic clock; returns what went wrong."""
        self._notices.put(None)
        self._thread.join(max(0.1, limit - time.monotonic()))
        late = ["it has not answered in time"] if self._thread.is_alive() else []
        return list(dict.fromkeys([*self._troubles, *late]))

    def _work(self) -> None:
        while (made := self._notices.get()) is not None:
            limit_s = _SEND_AGAIN_S if self._troubles else _SEND_S
            tell = self._post if self.url.lower().startswith(("http://", "https://")) else self._by_apprise
            if trouble := tell(made, limit_s):
                self._troubles.append(trouble)

    def _post(self, made: Notice, limit_s: float) -> str:
        why = webhook.send([self.url], webhook.Post(made.id, made.body(), self._secret), limit_s)
        return why[0].partition("/...: ")[2] if why else ""

    def _by_apprise(self, made: Notice, _limit_s: float) -> str:
        import logging

        logging.getLogger("apprise").addHandler(logging.NullHandler())
        try:
            import apprise

            target = apprise.Apprise()
            known = target.add(self.url) and target.notify(body=made.text, title=f"distlaunch: {made.run}")
        except Exception as error:  # noqa: BLE001 - whatever a receiver does, the run goes on
            return repr(error)
        return "" if known else "it was not accepted"


def _attempt(record: Event) -> int:
    found = record.fields.get("attempt")
    return found if isinstance(found, int) else 0


def _end(outcome: Outcome) -> dict[str, Any]:
    more = {"exit_code": outcome.exit_code, "restarts": outcome.restarts, "duration_s": outcome.duration_s}
    return notice.end(outcome.state, outcome.cause, **more)
