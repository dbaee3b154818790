"""How long each thing is waited for while a run is followed."""

from __future__ import annotations

READ_TIMEOUT_S = 0.2
"""A signal to the launcher waits at most so long."""

POLL_S = (1.0, 10.0)
"""The backend is asked about its nodes this often: at first, and in the end where nothing happens."""

SETTLE_S = 2.0
"""So long a node must be gone and its stream be silent before its end counts as one without a word."""

HANG_S = 20.0
"""So long others may go on after a node has failed. Agents end one another themselves; this is for when they cannot."""

UNAWARE_S = 1.0
"""So long where an agent is gone and others do not know: it was killed before it could be missed."""

SILENT_S = 90.0
"""Agents say something every 10 s, and network file systems show it within 60: one that is silent for so long is worth a word."""

FORCE_S = 10.0
"""So long a run may take to end after its grace time is over, before it is ended by force."""

GIVE_UP_S = 10.0
"""So long again after that."""
