"""The error for a command line that cannot be read."""

from __future__ import annotations

from launcher.errors import RequestError


class UsageError(RequestError):
    """The command line cannot be read."""

    code = "usage"
