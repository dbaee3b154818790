"""The envelope of every result, and the results that each command may have."""

from __future__ import annotations

from typing import Literal, TypedDict

from launcher.results import cluster, files, metrics, race, report, run, serve, stacks, top, warm


class Error(TypedDict):
    """Why a command failed, or a run that it followed."""

    code: str
    message: str
    hint: str | None
    """What to do about it."""


class _MaybeLast(TypedDict, total=False):
    type: Literal["result"]
    """Only among JSON lines, where this object is the last."""


class Envelope(_MaybeLast):
    """What every command prints."""

    version: Literal[1]
    """Version of this format. Adding fields does not change it."""

    command: str
    """The command's name; empty if none was given."""

    ok: bool


class Version(TypedDict):
    """The version of distlaunch."""

    version: str


LAUNCH: tuple[type, ...] = (run.Followed, run.Started, cluster.Planned)
"""Possible results of a backend's command."""

COMMANDS: dict[str, tuple[type, ...]] = {
    "run": LAUNCH,
    "status": (run.Status,),
    "top": (top.Top, top.Tops),
    "ls": (run.Runs, run.ClusterRuns, warm.WarmServers),
    "logs": (),
    "stacks": (stacks.Stacks,),
    "report": (report.Written, report.Report),
    "metrics": (metrics.Metrics,),
    "serve": (serve.Serving,),
    "attach": (run.Followed, run.Started),
    "wait": (run.Waited,),
    "shell": (),
    "rm": (run.Removed,),
    "prune": (run.Pruned,),
    "fetch": (files.Fetched,),
    "cancel": (run.Cancelled, warm.WarmEnded),
    "requeue": (run.Requeued,),
    "move": (race.Moved,),
    "adopt": (run.Adopted,),
    "hosts": (cluster.Survey,),
    "clusters": (cluster.Overviews,),
    "login": (cluster.Logins,),
    "doctor": (cluster.Examined, cluster.Quarantine, cluster.Planned),
    "config": (cluster.Settings,),
}
"""Possible results of every other command; `logs` prints lines, and JSON only for an error."""
