"""Files in the run's directory by which a launcher that fetches and the agent tell each other where they are."""

from __future__ import annotations

GRANTED = "granted"
"""In the run's directory: the launcher has granted the run's claim to it."""

RELEASED = "fetched"
"""In the run's directory: nothing more will be fetched."""

CONNECTED = "fetching"
"""In the run's directory: its time changes while a launcher is connected, for an agent that waits until it is done."""

HELD, WAITING = "held", "waiting"
"""In the run's directory: the agent is to wait until its files are fetched; and it does."""

ALONE_S, ALONE_STOPPED_S = 60.0, 10.0
"""After this long without a connection, there is no launcher that would fetch; the latter if the run is to end."""
