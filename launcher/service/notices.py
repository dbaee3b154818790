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
from launcher.agent.notice import END, HANG, Notice
from launcher.agent.secret_files import NOTIFY_FILE
from launcher.errors import LaunchError, StorageError
from launcher.settings.notify import Receivers
from launcher.system import input_file

if TYPE_CHECKING:
    from launcher.agent.protocol import Event
    from launcher.backends._base import AnyBackend
    from launcher.runs.outcome import Outcome
    from launcher.runs.records import Run

_SEND_S, _SEND_AGAIN_S = 12.0, 4.0
"""How long sending may take; the latter once something could not be sent."""

_LEAVE_S = 10.0
_KINDS = (notice.START, notice.FAILURE, HANG, END)


def teller_of(run: Run, backend: AnyBackend) -> Teller | None:
    """Who tells of the run; None: there is nobody to tell, or nobody that this user knows of."""
    try:
        receivers = Receivers.from_text(input_file.read(run.path / NOTIFY_FILE).decode("ascii"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Teller(run, backend, receivers)


class Teller:
    """Tells of one run, in a thread: receivers and hosts that do not answer hold up nothing."""

    def __init__(self, run: Run, backend: AnyBackend, receivers: Receivers) -> None:
        self._run, self._backend, self._receivers = run, backend, receivers
        self._asked: queue.Queue[Notice | None] = queue.Queue()
        self._taken: queue.Queue[Notice | None] = queue.Queue()
        self._ends: set[int] = set()
        """Attempts whose end node 0 has offered to tell."""

        self._held: Notice | None = None
        """The end that was taken on: it is told once the run's outcome is known."""

        self._late = False
        """Whether an earlier notice could not be sent in time."""

        self._hangs = 0
        self._troubles: list[str] = []
        self._threads: list[threading.Thread] = []

    def event(self, node: int, record: Event) -> None:
        """Take an event of a node into account."""
        made = self._offered(record) if node == 0 and record.name == "notice" else None
        if node and record.name == "hang" and not self._hangs:  # node 0 offers to tell of its own
            about = {"message": str(record.fields.get("message") or ""), "time": time.time()}
            made = Notice(HANG, self._run.id, _attempt(record), about, 1000 * node + 1)
        if made is None:
            return
        self._hangs += made.what == HANG
        self._ends |= {made.attempt} if made.what == END else set()
        self._asked.put(made)
        if not self._threads:
            self._threads = [threading.Thread(target=work, daemon=True) for work in (self._take_on, self._send_all)]
            for thread in self._threads:
                thread.start()

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
        """Take on what is offered, at once: node 0 waits for that, and for no receiver."""
        while (made := self._asked.get()) is not None:
            if self._takes(made):
                self._taken.put(made)
        self._taken.put(None)

    def _send_all(self) -> None:
        while (made := self._taken.get()) is not None:
            if self._held is not None and made.attempt > self._held.attempt:
                self._tell_end(None)
            if made.what == END:
                self._held = made
            else:
                self._send(made)

    def _takes(self, made: Notice) -> bool:
        """Whether it is ours to tell. If its node cannot be asked, it tells that itself."""
        try:
            if made.number >= 1000:
                return notice.take(str(self._run.path), made.id)
            outputs = self._backend.open_outputs(self._run.known, 0)
            try:
                return outputs.take(made.id)
            finally:
                outputs.close()
        except (LaunchError, OSError) as error:
            output.detail(f"{made.what} is left to node 0 to tell: {error}")
        except NotImplementedError:
            pass
        return False

    def _send(self, made: Notice) -> None:
        limit_s = _SEND_AGAIN_S if self._troubles or self._late else _SEND_S
        post = webhook.Post(made.id, made.body(), self._receivers.secret)
        others = _Apprise(self._receivers.others, made)
        self._troubles += webhook.send(self._receivers.webhooks, post, limit_s)
        self._troubles += others.troubles(limit_s)

    def _tell_end(self, outcome: Outcome | None) -> None:
        """Tell the end that was taken on; `outcome`: the run's, where it is known."""
        held, self._held = self._held, None
        if held is not None:
            about = held.about if outcome is None else {**held.about, **_end(outcome)}
            self._send(held._replace(about=about))

    def _stop(self) -> None:
        self._asked.put(None)
        limit = time.monotonic() + _LEAVE_S
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))
        self._late = any(thread.is_alive() for thread in self._threads)

    def ended(self, outcome: Outcome) -> None:
        """Tell the end of the run, unless node 0 does; print what could not be told."""
        self._stop()
        made = Notice(END, self._run.id, outcome.attempt, {"time": time.time(), **_end(outcome)})
        with suppress(OSError, StorageError):
            if outcome.attempt not in self._ends and notice.take(str(self._run.path), made.id):
                self._held = made
        self._tell_end(outcome)
        self._report()

    def leave(self) -> None:
        """Finish what was taken on: the run is followed no longer."""
        self._stop()
        self._tell_end(None)
        self._report()

    def _report(self) -> None:
        for trouble in dict.fromkeys(self._troubles):
            output.warn(f"not told: {trouble}")


class _Apprise:
    """One notice to services that apprise knows, each in a thread."""

    def __init__(self, urls: tuple[str, ...], made: Notice) -> None:
        self._answers: dict[str, str | None] = {}
        self._threads = [threading.Thread(target=self._work, args=(url, made), daemon=True) for url in urls]
        self._urls = urls
        for thread in self._threads:
            thread.start()

    def _work(self, url: str, made: Notice) -> None:
        import logging

        logging.getLogger("apprise").addHandler(logging.NullHandler())
        try:
            import apprise

            target = apprise.Apprise()
            known = target.add(url) and target.notify(body=made.text, title=f"distlaunch: {made.run}")
            self._answers[url] = "" if known else "it was not accepted"
        except Exception as error:  # noqa: BLE001 - whatever a receiver does, the run goes on
            self._answers[url] = repr(error)

    def troubles(self, limit_s: float) -> list[str]:
        """Why some may not have it."""
        limit = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))
        told = {url: self._answers.get(url, f"no answer within {limit_s:.0f} s") for url in self._urls}
        return [f"{webhook.shown(url)}: {why}" for url, why in told.items() if why]


def _attempt(record: Event) -> int:
    found = record.fields.get("attempt")
    return found if isinstance(found, int) else 0


def _end(outcome: Outcome) -> dict[str, Any]:
    more = {"exit_code": outcome.exit_code, "restarts": outcome.restarts, "duration_s": outcome.duration_s}
    return notice.end(outcome.state, outcome.cause, **more)  # type: ignore[arg-type] - a mapping, as in the stream
