"""The list of runs as a page that is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher import __version__
from launcher.console import progress_text, summary
from launcher.pages import template
from launcher.pages.facts import tone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.pages.template import Live
    from launcher.results.progress import Progress
    from launcher.results.run import Listed


def html(
    title: str, directory: str, rows: Sequence[tuple[Listed, Progress | None]], live: Live, *, more: int = 0
) -> str:
    """The whole page. `directory`: of all runs; empty for the tasks of an array. `more`: runs that are not shown."""
    return template.rendered(
        "index.html",
        live,
        (),
        title=title,
        directory=directory,
        array=not directory,
        rows=[_row(run, progress) for run, progress in rows],
        more=more,
        launcher_version=__version__,
    )


def _row(run: Listed, progress: Progress | None) -> dict[str, Any]:
    return {
        "run": run["run"],
        "state": run["state"].replace("_", " "),
        "tone": tone(run["state"]),
        "progress": progress_text.line(progress) if progress else "",
        "step": progress["step"] if progress else 0,
        "steps": progress["steps"] if progress else None,
        "age": summary.age(run["created"]),
        "where": ", ".join(filter(None, (run["backend"], run["cluster"]))),
        "nodes": run["nodes"],
        "command": summary.short_command(tuple(run["command"])),
    }
