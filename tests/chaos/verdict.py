"""Whether the result of a run that was hit is right: its state, the cause, its lines, and how long it took."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from launcher.agent import protocol
from tests.chaos.blows import CUT, KILL, STALL, TO_THE_END
from tests.chaos.processes import LAUNCHER, WORKER
from tests.chaos.script import LINES

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.agent.protocol import Event
    from tests.chaos.blows import Blow
    from tests.chaos.processes import Found
    from tests.command import Result

FINAL = {"success", "failed", "cancelled", "preempted", "timeout", "lost"}

_OVER_S = {KILL: 120.0, STALL: 120.0, CUT: 240.0}
"""How long after a fault a run may last, on a busy host; the printed table has what is typical."""


@dataclass
class Report:
    """The result of one try."""

    blow: Blow
    phase: str = "not hit"
    host: str = ""
    """The host that was hit."""

    state: str = ""
    seconds: float = 0.0
    """From the fault to the end of all that belonged to the run."""

    lost_lines: int = 0
    """Streams that end early, of ranks whose agent was killed or cut off."""

    wrong: list[str] = field(default_factory=list)


def judge(run: Path, state: dict[str, Any], logs: Result, victim: Found | None, report: Report) -> None:
    """Add to the report what is wrong, by the run's `status` and `logs`."""
    report.state = str(state["state"])
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
        _judge_kill(victim, state, events, report)
    cut = victim.node if hit and victim is not None and blow.how != STALL and victim.kind != WORKER else None
    _judge_lines(logs.stdout, events, cut, report)
    if report.state == "success" and cut is None:
        _judge_ends(logs.stdout, events, report)
    for path in run.rglob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            json.loads(path.read_text() or "null")


def _judge_kill(victim: Found, state: dict[str, Any], events: list[Event], report: Report) -> None:
    cause = state["cause"] or {}
    reported = [event.fields.get("cause") for event in events if event.name in ("restart", "failure")]
    causes = [one for one in [*reported, cause] if one]
    if victim.kind == WORKER:
        ended = [event.fields for event in events if event.name == "worker_exited"]
        its_exits = [fields for fields in ended if (fields["pid"], fields["node"]) == (victim.inner_pid, victim.node)]
        for fields in its_exits:
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


def _judge_lines(logs: str, events: list[Event], cut: int | None, report: Report) -> None:
    """Check that every rank's lines are in order, up to where it ended, each of them once in each attempt."""
    printed: dict[tuple[str, str], list[list[str]]] = {}
    for prefix, kind, again, rest in re.findall(r"^\[(\S+)\] (begin|line|end) (\d+)(.*)$", logs, re.MULTILINE):
        begun = printed.setdefault((prefix, again), [])
        if kind == "begin" or not begun:
            begun.append([])
        begun[-1].append(rest.strip() if kind == "line" else kind)
    attempts = 1 + max((event.fields.get("attempt", 0) for event in events), default=0)
    for (prefix, again), begun in printed.items():
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


def _judge_ends(logs: str, events: list[Event], report: Report) -> None:
    """Check that the lines of every rank of the last round reach to its end."""
    worlds = [event.fields for event in events if event.name == "rendezvous"]
    last = max((fields["restarts"] for fields in worlds), default=0)
    ranks = max((fields["world_size"] for fields in worlds if fields["restarts"] == last), default=1)
    ended = {int(rank) for rank in re.findall(rf"^\[\d+:(\d+)\] end {last}\b", logs, re.MULTILINE)}
    if missing := set(range(ranks)) - ended:
        report.wrong.append(f"a success, and the lines of ranks {sorted(missing)} stop before the end of round {last}")


def _events(run: Path) -> list[Event]:
    found: list[Event] = []
    for path in sorted(run.glob("nodes/*/stream")):
        decoder = protocol.Decoder()
        records = [*decoder.feed(path.read_bytes()), *decoder.close()]
        found.extend(record for record in records if isinstance(record, protocol.Event))
    return found
