"""`distlaunch prune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from launcher import output, spec
from launcher.cli.parameters import OutputOption, flag
from launcher.console import live_line, summary, tables
from launcher.errors import LaunchError
from launcher.service import observe, removal

if TYPE_CHECKING:
    from launcher.results.run import Pruned


def prune(
    older_than: Annotated[str, flag(metavar="DURATION", help="Runs that ended longer ago: 30d, 12h.")] = "30d",
    keep_failed: Annotated[bool, flag("--keep-failed", help="Keep runs that did not succeed.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", help="Only list what would be removed.")] = False,
    fmt: OutputOption = None,
) -> int:
    """Remove old runs that have ended, here and on their hosts and clusters.

    $ distlaunch prune --older-than 30d --keep-failed
    $ distlaunch prune --older-than 7d --dry-run
    """
    directory = observe.directory(fmt)
    limit_s = spec.parse_duration(older_than, "older-than")
    removed: list[str] = []
    failed: list[str] = []
    rows = []
    with live_line.waiting("asking how runs have ended"):
        found = list(removal.prunable(directory, limit_s, keep_failed=keep_failed))
    for run, state, ended in found:
        try:
            with live_line.waiting(f"removing {run.id}"):
                if not dry_run:
                    removal.remove(run)
        except LaunchError as error:
            output.warn(f"{run.id} is kept: {error.message}")
            failed.append(run.id)
            continue
        removed.append(run.id)
        rows.append((run.id, state["state"], summary.age(ended)))
    if not dry_run:
        removal.sweep(directory)
    if not removed:
        output.note(f"no run in {directory} ended more than {summary.duration(limit_s)} ago")
    data: Pruned = {"runs": removed, "kept": failed, "removed": not dry_run}
    output.result(data, *(tables.table(("RUN", "STATE", "ENDED"), rows).splitlines() if rows else ()))
    return 4 if failed else 0
