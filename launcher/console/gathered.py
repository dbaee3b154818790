"""Messages that many nodes send alike, as one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class Gathered(Generic[T]):
    """Collects messages by their content, so that each is printed once, with the nodes that sent it."""

    def __init__(self, after_s: float) -> None:
        """`after_s`: how long a message waits for other nodes to send the same."""
        self._after_s = after_s
        self._nodes: dict[T, dict[int, float]] = {}
        """When each node sent a message."""

    def add(self, message: T, node: int, now: float) -> None:
        """Take a message of a node."""
        self._nodes.setdefault(message, {})[node] = now

    def has(self, node: int) -> bool:
        """Whether a message of this node waits."""
        return any(node in nodes for nodes in self._nodes.values())

    def forget(self, node: int) -> None:
        """Drop what a node has sent, as it no longer holds."""
        for message, nodes in list(self._nodes.items()):
            nodes.pop(node, None)
            if not nodes:
                del self._nodes[message]

    def due(self, now: float) -> Iterator[tuple[T, list[int]]]:
        """The messages that have waited long enough, each with its nodes; they are dropped."""
        for message, nodes in list(self._nodes.items()):
            if now - min(nodes.values()) >= self._after_s:
                yield message, sorted(self._nodes.pop(message))
