"""The tries of a run that was queued on several clusters, for people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.agent.failures import Failure
from launcher.console import tables

if TYPE_CHECKING:
    from launcher.results.race import AskedCluster, Race, Try


def lines(race: Race, *, verbose: bool) -> list[str]:
    """A row for each try; `verbose`: also one for each cluster that was asked."""
    tries = [(each["cluster"], each["run"], _clock(each["tried_at"]), _became(each)) for each in race["tries"]]
    found = tables.table(("CLUSTER", "TRY", "SUBMITTED", "THEN"), tries).splitlines()
    if verbose and race["asked"]:
        asked = [(each["cluster"], _clock(each["asked_at"]), _expected(each)) for each in race["asked"]]
        found += ["", *tables.table(("CLUSTER", "ASKED", "EXPECTED START"), asked).splitlines()]
    return found


def _became(each: Try) -> str:
    granted_at, cancelled_at, ended_at = each["granted_at"], each["cancelled_at"], each["ended_at"]
    if granted_at is not None:
        left = "" if cancelled_at is None else f", until it was moved away at {_clock(cancelled_at)}"
        return f"got the run at {_clock(granted_at)}{left}"
    if cancelled_at is not None:
        left = "" if ended_at is not None else ", may still be there"
        return f"{Failure.CANCELLED} at {_clock(cancelled_at)}{left}"
    return "queued" if ended_at is None else f"ended at {_clock(ended_at)}: {each['problem']}"


def _expected(each: AskedCluster) -> str:
    start = each["start"]
    if start is None:
        return each["problem"] or "not asked"
    when = "unknown" if start["at"] is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start["at"]))
    return f"{when}: {start['how']}"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
