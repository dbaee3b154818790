"""One run, one fault, and the verdict on it."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from testbed.running import Running
from tests.chaos import processes
from tests.chaos.blows import CUT, KILL, STALL, TO_THE_END
from tests.chaos.processes import AGENT, GROUP, LAUNCHER, SERVER, WORKER
from tests.chaos.script import SCRIPT, TEXT
from tests.chaos.verdict import FINAL, Report, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from testbed import Host
    from testbed.processes import Process
    from tests.chaos.blows import Blow
    from tests.chaos.processes import Found
    from tests.command import Cli

_END_S = 120.0
"""Longer than any limit of the product: a run that takes longer hangs."""

_PENDING_S = 10.0
_PAUSE_S = 0.02


@dataclass
class Arena:
    """Where runs of one backend are hit."""

    name: str
    cli: Cli
    argv: tuple[str, ...]
    """The command up to the script, without its name and mark."""

    env: Mapping[str, str | None] = field(default_factory=dict)
    host_of: Callable[[Process], Host | None] = lambda _: None
    """The host with a link on which a process runs."""

    wait_restored: Callable[[], object] = lambda: None
    """Waits until a host that was cut off has recovered."""

    length_s: float = 0.0
    """How long a run takes without a fault."""

    _seen: set[Process] = field(default_factory=set)
    _cut: Host | None = None

    def prepare(self) -> None:
        """Write the script, and check a run without a fault; a second one gives the time, as the first is slower."""
        self.cli.write(f"work/{SCRIPT}", TEXT)
        self.hit(None, "first")
        report = self.hit(None, "second")
        self.length_s = report.seconds
        assert report.wrong == [], report
        assert report.state == "success", report

    def hit(self, blow: Blow | None, which: str = "") -> Report:
        """Start a run, hit it once, and judge the result."""
        report = Report(blow) if blow else Report(None)  # type: ignore[arg-type]
        mark = f"chaos-{self.name}-{blow.number if blow else which}-x"
        began = time.monotonic()
        process = self.cli.start(
            *self.argv,
            "--name",
            mark,
            "--env",
            f"CHAOS={mark}",
            SCRIPT,
            env=dict(self.env),
            cwd=self.cli.directory / "work",
        )
        launcher = Running(process)
        victim = None
        try:
            if blow:
                time.sleep(max(0.0, blow.at * self.length_s + began - time.monotonic()))
                victim = self._strike(blow, mark, process.pid, report)
            else:
                self._find_all(mark, process.pid)
            struck = time.monotonic() if blow else began
            launcher_hit = victim is not None and victim.kind == LAUNCHER and blow is not None and blow.how == KILL
            if not launcher_hit:
                launcher.end()
            run = self._run(mark)
            if launcher_hit:
                self._wait_unfollowed(run, mark, report)
            self._reconnect()
            self._follow_hint(launcher.stderr, report)
            self._wait_nothing_left(mark, report)
            report.seconds = time.monotonic() - struck
            if run is not None:
                state, logs = self._state(run.name), self.cli("logs", run.name, env=dict(self.env))
                judge(run, state, logs, victim, report)
            elif not launcher_hit:
                report.wrong.append(f"there is no run: {launcher}")
            if blow and blow.how == CUT:
                self.wait_restored()
        finally:
            self._reconnect()
            launcher.close()
            for one in self._left(mark):
                one.send(signal.SIGKILL)
        if report.wrong:
            report.wrong.append(str(launcher))
        return report

    def _find_all(self, mark: str, launcher: int) -> None:
        """Check that a run's processes are found, each kind of them: others would never be hit."""
        missing = {AGENT, SERVER, GROUP, WORKER}
        while missing:
            found = {one.kind for one in processes.of_run(mark, SCRIPT, launcher)}
            assert LAUNCHER in found, f"a whole run in which no {' and no '.join(sorted(missing))} was found"
            missing -= found
            time.sleep(_PAUSE_S)

    def _strike(self, blow: Blow, mark: str, launcher: int, report: Report) -> Found | None:
        while True:
            found = processes.of_run(mark, SCRIPT, launcher)
            self._seen |= {one.process for one in found if one.kind != LAUNCHER}
            those = [one for one in found if one.kind == blow.kind]
            if those or not any(one.kind == LAUNCHER for one in found):
                break
            time.sleep(_PAUSE_S)  # there is none yet, or it has exited
        if not those:
            return None
        victim = sorted(those, key=lambda one: (one.node or 0, one.process.pid))[int(blow.which * len(those))]
        kinds = {one.kind for one in found}
        host = self.host_of(victim.process)
        if blow.how == CUT and host is None:
            assert not victim.process.alive(), f"no host has {victim}"
            return None
        report.phase = "running" if WORKER in kinds else "starting, restarting or ending"
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
        """The processes of a run that still run, including any that were found before."""
        self._seen |= {one.process for one in processes.of_run(mark, SCRIPT, None)}
        self._seen = {one for one in self._seen if one.alive()}
        return list(self._seen)

    def _run(self, mark: str) -> Path | None:
        found = [path for path in self.cli.runs.glob(f"{mark}-*") if (path / "run.json").exists()]
        assert len(found) <= 1, f"there are two runs: {found}"
        return found[0] if found else None

    def _state(self, run: str) -> dict[str, Any]:
        result = self.cli("status", run, "--output", "json", env=dict(self.env))
        return dict(result.json["result"]) if result.exit_code == 0 else {"state": f"status fails: {result}"}

    def _wait_unfollowed(self, run: Path | None, mark: str, report: Report) -> None:
        """Wait after the launcher was killed: a run ends by itself, or, if not fully submitted, by `cancel --force`."""
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

    def _follow_hint(self, errors: str, report: Report) -> None:
        """Run the command that a launcher prints if it can neither start a run fully nor end what has started."""
        for command in re.findall(r"to end it: distlaunch (cancel --force \S+)$", errors, re.MULTILINE):
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
