"""What ends the wait of a node's process of the worker group."""

from __future__ import annotations


class StopRequestedError(Exception):
    """The agent wants this process to stop waiting: the run is being stopped."""


class RendezvousError(Exception):
    """The nodes have not met."""


class NotNeededError(Exception):
    """The run was over when this node came."""


class UnknownTorchError(Exception):
    """This node's torch lacks what elastic runs need of it."""

    def __init__(self, version: str, lacks: str) -> None:
        super().__init__(
            f"elastic runs do not know torch {version}: it lacks {lacks}. A run with a fixed number of nodes "
            "(--nodes 2, not 1:2) needs nothing of it; plain torchelastic is what torchrun starts"
        )
