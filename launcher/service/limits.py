"""Time limits that apply while a run is followed."""

from __future__ import annotations

READ_TIMEOUT_S = 0.2
"""How long a signal to the launcher waits at most."""

POLL_S = (1.0, 10.0)
"""First and largest interval between polls for the state of nodes; it grows while nothing happens."""

SETTLE_S = 2.0
"""How long a node must have ended, with a silent stream, before it counts as exited without reporting a result."""

HANG_S = 20.0
"""How long other nodes may continue after one has failed, in case agents cannot end one another themselves."""

UNAWARE_S = 1.0
"""The same, if an agent has exited and others have not noticed: it was killed before they could miss it."""

SILENT_S = 90.0
"""Agents send a heartbeat every 10 s, and network file systems show it within 60 s. Longer silence is reported."""

FORCE_S = 10.0
"""How long a run may take to end after its grace time before it is killed."""

GIVE_UP_S = 10.0
"""How long the launcher waits after that before it gives up."""

LEAVE_S = 15.0
"""How long a launcher that leaves a run waits for the answer to a request to cancel it."""
