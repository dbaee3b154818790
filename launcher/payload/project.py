"""The name of the project that a launch belongs to: that of its directory, unique for it, its user and this host."""

from __future__ import annotations

import hashlib
import os
import re

_LONGEST = 40


def name_of(directory: str) -> str:
    """A name that is valid everywhere, the same for each launch from this directory."""
    real = os.path.realpath(directory)
    who = f"{os.getuid()}@{os.uname().nodename}:{real}".encode(errors="surrogateescape")
    word = re.sub(r"[^a-z0-9]+", "-", os.path.basename(real).lower()).strip("-")[:_LONGEST].rstrip("-")
    return f"{word or 'project'}-{hashlib.sha256(who).hexdigest()[:8]}"
