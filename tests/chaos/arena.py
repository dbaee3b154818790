"""One run, one blow, and what became of it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from launcher.agent import protocol
from testbed.running import Running
from tests.chaos import processes
from tests.chaos.blows import CUT, KILL, STALL, TO_THE_END
from tests.chaos.processes import LAUNCHER, WORKER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from launcher.agent.protocol import Event
    from testbed import Host
    from testbed.processes import Process
    from tests.chaos.blows import Blow
    from tests.chaos.processes import Found
    from tests.command import Cli

SCRIPT = "counts_lines.py"
LINES = 25
TEXT = f"""
import os, sys, time
again = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("begin", again, os.getpid(), flush=True)
for number in range({LINES}):
    print("line", again, number, flush=True)
    time.sleep(0.03)
if again == "0" and os.environ["RANK"] == "1":
    sys.exit(3)
print("end", again, flush=True)
"""
"""Needs no torch. Rank 1 fails once, so there is a restart to be hit in."""

FINAL = {"success", "failed", "cancelled", "preempted", "timeout", "lost"}
_END_S = 120.0
"""Longer than any promise: who takes it, hangs."""

_OVER_S = {KILL: 120.0, STALL: 120.0, CUT: 240.0}
"""A run is over so long after a blow, on a machine that has other things to do; what is typical the table says."""

_PENDING_S = 10.0
_PAUSE_S = 0.02


@dataclass
class Report:
    """What one try has shown."""

    blow: Blow
    phase: str = "not hit"
    host: str = ""
    """Where that was."""

    state: str = ""
    seconds: float = 0.0
    """From the blow to the end of all that belonged to the run."""

    lost_lines: int = 0
    """Of ranks whose agent was killed or cut off: from others none may be."""

    wrong: list[str] = field(default_factory=list)


@dataclass
class Arena:
    """Where runs of one backend are hit."""

    name: str
    cli: Cli
    argv: tuple[str, ...]
    """The command up to the script, without name and mark."""

    env: Mapping[str, str | None] = field(default_factory=dict)
    host_of: Callable[[Process], Host | None] = lambda _: None
    """On which host with a cable a process runs."""

    mended: Callable[[], object] = lambda: None
    """Waits until a host that was cut off is as before."""

    length_s: float = 0.0
    """How long a run takes that nothing happens to."""

    _seen: set[Process] = field(default_factory=set)
    _cut: Host | None = None

    def prepare(self) -> None:
        """The script is there; a run that nothing happens to is right, and its time is known: the second's, when all is there."""
        self.cli.write(f"work/{SCRIPT}", TEXT)
        self.hit(None, "first")
        report = self.hit(None, "second")
        self.length_s = report.seconds
        assert report.wrong == [], report
        assert report.state == "success", report

    def hit(self, blow: Blow | None, which: str = "") -> Report:
        """One run, one blow, one verdict."""
        report = Report(blow) if blow else Report(None)  # type: ignore[arg-type]
        mark = f"chaos-{self.name}-{blow.number if blow else which}-x"
        began = time.monotonic()
        process = self.cli.start(
            *self.argv, "--name", mark, "--env", f"CHAOS={mark}", SCRIPT, env=dict(self.env), cwd=self.cli.directory / "work"
        )
        launcher = Running(process)
        victim = None
        try:
            if blow:
                time.sleep(max(0.0, blow.at * self.length_s + began - time.monotonic()))
                victim = self._strike(blow, mark, process.pid, report)
            struck = time.monotonic() if blow else began
            launcher_hit = victim is not None and victim.kind == LAUNCHER and blow is not None and blow.how == KILL
            if not launcher_hit:
                launcher.end()
            run = self._run(mark)
            if launcher_hit:
                self._wait_unfollowed(run, mark, report)
            self._reconnect()
            self._do_as_told(launcher.stderr, report)
            self._wait_nothing_left(mark, report)
            report.seconds = time.monotonic() - struck
            if run is not None:
                self._judge(run, victim, report)
            elif not launcher_hit:
                report.wrong.append(f"there is no run: {launcher}")
            if blow and blow.how == CUT:
                self.mended()
        finally:
            self._reconnect()
            launcher.close()
            for one in self._left(mark):
                one.send(signal.SIGKILL)
        if report.wrong:
            report.wrong.append(str(launcher))
        return report

    def _strike(self, blow: Blow, mark: str, launcher: int, report: Report) -> Found | None:
        while True:
            found = processes.of_run(mark, SCRIPT, launcher)
            self._seen |= {one.process for one in found if one.kind != LAUNCHER}
            those = [one for one in found if one.kind == blow.kind]
            if those or not any(one.kind == LAUNCHER for one in found):
                break
            time.sleep(_PAUSE_S)  # there is none yet, or none any more
        if not those:
            return None
        victim = sorted(those, key=lambda one: (one.node or 0, one.process.pid))[int(blow.which * len(those))]
        kinds = {one.kind for one in found}
        report.phase = "running" if WORKER in kinds else "starting, restarting or ending"
        host = self.host_of(victim.process)
        report.host = host.name if host else ""
        if blow.how == KILL:
            victim.process.send(signal.SIGKILL)
        elif blow.how == STALL:
            victim.process.send(signal.SIGSTOP)
            time.sleep(blow.lasts_s)
            victim.process.send(signal.SIGCONT)
        elif host is not None:
            self._cut = host
            host.cut_off()
            if blow.lasts_s < TO_THE_END:
                time.sleep(blow.lasts_s)
                self._reconnect()
        return victim

    def _reconnect(self) -> None:
        if self._cut is not None:
            self._cut.reconnect()
        self._cut = None

    def _left(self, mark: str) -> list[Process]:
        """What of a run still runs, all that was seen of it included."""
        self._seen |= {one.process for one in processes.of_run(mark, SCRIPT, None)}
        self._seen = {one for one in self._seen if one.alive()}
        return list(self._seen)

    def _run(self, mark: str) -> Path | None:
        found = [path for path in self.cli.runs.glob(f"{mark}-*") if (path / "run.json").exists()]
        assert len(found) <= 1, f"the run was doubled: {found}"
        return found[0] if found else None

    def _state(self, run: str) -> dict[str, Any]:
        result = self.cli("status", run, "--output", "json", env=dict(self.env))
        return dict(result.json["result"]) if result.exit_code == 0 else {"state": f"status fails: {result}"}

    def _wait_unfollowed(self, run: Path | None, mark: str, report: Report) -> None:
        """The launcher is gone: the run ends by itself, or where it had not been submitted whole, by `cancel --force`."""
        patient, limit = time.monotonic() + _PENDING_S, time.monotonic() + _END_S
        while run is not None and (state := self._state(run.name)["state"]) not in FINAL:
            if state == "unknown" or time.monotonic() > (patient if state == "pending" else limit):
                result = self.cli("cancel", "--force", run.name, env=dict(self.env))
                if result.exit_code == 0 or not self._left(mark):
                    return
                if time.monotonic() > limit:
                    report.wrong.append(f"no end after the launcher's in {_END_S} s: {state}; cancel: {result}")
                    return
            time.sleep(0.2)

    def _do_as_told(self, said: str, report: Report) -> None:
        """Who could not start a run whole, and not end what had started, says how to."""
        for command in re.findall(r"to end it: distlaunch (cancel --force \S+)$", said, re.MULTILINE):
            result = self.cli(*command.split(), env=dict(self.env))
            if result.exit_code:
                report.wrong.append(f"{command}: {result}")

    def _wait_nothing_left(self, mark: str, report: Report) -> None:
        limit = time.monotonic() + _END_S
        while left := self._left(mark):
            if time.monotonic() > limit:
                report.wrong.append("left: " + "; ".join(one.command() for one in left))
                return
            time.sleep(_PAUSE_S)

    # -- the verdict --------------------------------------------------------------------------------------------------

    def _judge(self, run: Path, victim: Found | None, report: Report) -> None:
        state = self._state(run.name)
        report.state = str(state["state"])
        logs = self.cli("logs", run.name, env=dict(self.env))
        if logs.exit_code:
            report.wrong.append(f"logs fails: {logs}")
        events = _events(run)
        blow = report.blow
        if report.seconds > _OVER_S[blow.how if blow else KILL]:
            report.wrong.append(f"it took {report.seconds:.0f} s until all was over")
        hit = victim is not None and blow is not None
        if report.state not in FINAL and not (hit and victim is not None and victim.kind == LAUNCHER):
            report.wrong.append(f"state is {report.state}: {state}")
        if (not hit or (blow is not None and blow.how != KILL and blow.lasts_s < TO_THE_END)) and report.state != "success":
            report.wrong.append(f"nothing was lost, and it is {report.state}: {state['cause']}")
        if victim is not None and blow.how == KILL:
            self._judge_kill(victim, state, events, report)
        cut = victim.node if hit and victim is not None and blow.how != STALL and victim.kind != WORKER else None
        self._judge_lines(logs.stdout, events, cut, report)
        for path in run.rglob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                json.loads(path.read_text() or "null")

    def _judge_kill(self, victim: Found, state: dict[str, Any], events: list[Event], report: Report) -> None:
        cause = state["cause"] or {}
        told = [event.fields.get("cause") for event in events if event.name in ("restart", "failure")]
        causes = [one for one in [*told, cause] if one]
        if victim.kind == WORKER:
            ended = [event.fields for event in events if event.name == "worker_exited"]
            his = [fields for fields in ended if (fields["pid"], fields["node"]) == (victim.inner_pid, victim.node)]
            for fields in his:
                named = any((one.get("rank"), one.get("signal")) == (fields["rank"], "SIGKILL") for one in causes)
                if fields.get("signal") == "SIGKILL" and not fields["stopped"] and not named:
                    report.wrong.append(f"rank {fields['rank']} was killed, and the causes are {causes}")
        elif victim.kind == LAUNCHER:
            if report.state not in ("success", "cancelled", "failed", "unknown"):
                report.wrong.append(f"the launcher was killed, and the run is {report.state}")
        elif report.state == "failed" and victim.node is not None and cause.get("node") != victim.node:
            at_start = cause.get("class") == "submission" and f"{report.host}: the agent" in cause["message"]
            if not at_start:
                report.wrong.append(f"the {victim.kind} of node {victim.node} was killed, and the cause is {cause}")

    def _judge_lines(self, logs: str, events: list[Event], cut: int | None, report: Report) -> None:
        """Every rank's lines are there in order, up to where it ended; each of them once, or once in each attempt."""
        said: dict[tuple[str, str], list[list[str]]] = {}
        for prefix, kind, again, rest in re.findall(r"^\[(\S+)\] (begin|line|end) (\d+)(.*)$", logs, re.MULTILINE):
            begun = said.setdefault((prefix, again), [])
            if kind == "begin" or not begun:
                begun.append([])
            begun[-1].append(rest.strip() if kind == "line" else kind)
        attempts = 1 + max((event.fields.get("attempt", 0) for event in events), default=0)
        for (prefix, again), begun in said.items():
            if len(begun) > attempts:
                report.wrong.append(f"[{prefix}] began {len(begun)} times in round {again}, in {attempts} attempts")
            for words in begun:
                numbers = [word for word in words if word.isdigit()]
                if numbers != [str(number) for number in range(len(numbers))]:
                    report.wrong.append(f"[{prefix}] lines of round {again} are {numbers}")
                if "end" in words and len(numbers) != LINES:
                    report.wrong.append(f"[{prefix}] ended round {again} after {len(numbers)} lines")
                if len(numbers) < LINES and cut is not None and prefix.startswith(f"{cut}:"):
                    report.lost_lines += 1


def _events(run: Path) -> list[Event]:
    found: list[Event] = []
    for path in sorted(run.glob("nodes/*/stream")):
        decoder = protocol.Decoder()
        records = [*decoder.feed(path.read_bytes()), *decoder.close()]
        found.extend(record for record in records if isinstance(record, protocol.Event))
    return found
