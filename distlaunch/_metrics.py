"""Metrics of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distlaunch._messages import quiet
from launcher.service import finding, observe
from launcher.service import metrics as service

if TYPE_CHECKING:
    import os


@quiet
def metrics(run: str | None = None, *, runs_dir: str | os.PathLike[str] | None = None) -> str:
    """Metrics in OpenMetrics' text format, as `distlaunch metrics` prints them.

    `run`: as for `get`; None: all runs that have not ended more than an hour ago. Raises `RunNotFoundError`.
    """
    root = observe.runs_root(None if runs_dir is None else str(runs_dir))
    found = None if run is None else finding.find(root, run, None)
    runs = service.recent(root) if found is None else [(found, observe.state_of(found))]
    return service.page(runs).text()
