"""The envelope of every result, and what each command may have in it."""

from __future__ import annotations

from typing import Literal, TypedDict

from launcher.results import cluster, run


class Error(TypedDict):
    """Why a command failed, or a run that it followed."""

    code: str
    message: str
    hint: str | None
    """What to do about it."""


class Envelope(TypedDict):
    """What every command prints."""

    version: Literal[1]
    """Of this format. Fields may be added without a new one."""

    command: str
    """The command's name; empty where none was given."""

    ok: bool


class Version(TypedDict):
    """The version of distlaunch."""

    version: str


LAUNCH: tuple[type, ...] = (run.Followed, run.Started, cluster.Planned)
"""What a backend's command may have as its result."""

COMMANDS: dict[str, tuple[type, ...]] = {
    "run": LAUNCH,
    "status": (run.Status,),
    "ls": (run.Runs, run.ClusterRuns),
    "logs": (),
    "cancel": (run.Cancelled,),
    "requeue": (run.Requeued,),
    "adopt": (run.Adopted,),
    "doctor": (cluster.Examined, cluster.Quarantine, cluster.Planned),
    "config": (cluster.Settings,),
}
"""What every other command may have; `logs` prints lines, and JSON for an error alone."""
