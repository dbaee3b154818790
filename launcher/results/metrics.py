"""The metrics of runs."""

from __future__ import annotations

from typing import TypedDict


class Metrics(TypedDict):
    """Metrics in OpenMetrics' text format, which Prometheus' older format can read as well."""

    runs: list[str]
    """Whose they are."""

    text: str
    path: str | None
    """The file that has them; null without one."""
