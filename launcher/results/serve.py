"""The result of `distlaunch serve`, once its pages can be reached."""

from __future__ import annotations

from typing import TypedDict


class Serving(TypedDict):
    """Where the pages are."""

    url: str
    """With the token of this start."""

    host: str
    port: int
    token_file: str | None
    """The file with the token, for a scraper; null without one."""
