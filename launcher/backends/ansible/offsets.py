"""Where the stream of a run's node begins once the run was started again: here, and on the node's host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from launcher.backends.ansible.handle import Node, Streams


def of_streams(run_dir: Path, nodes: Iterable[Node]) -> Streams:
    """How the streams are before the run is started again."""
    sizes = {path.parent.name: path.stat().st_size for path in (run_dir / "nodes").glob("*/stream")}
    return {"sizes": sizes, "began": [(node["host"], node["rank"], *node.get("stream_from", (0, 0))) for node in nodes]}


def continue_streams(nodes: Iterable[Node], streams: Streams) -> None:
    """Set where the stream of each node begins, by how they were before.

    A host that had the node before continues its stream, unless it has lost that since, as in memory at a reboot.
    """
    began = {(host, rank): (here, there) for host, rank, here, there in streams["began"]}
    for node in nodes:
        size, begins = streams["sizes"].get(str(node["rank"]), 0), None
        if "agent" in node:  # else the launcher was killed before the host had answered
            begins = int(node["agent"]["stream_from"])
        here, there = began.get((node["host"], node["rank"]), (size, begins or 0))
        lost = begins is not None and begins < there + size - here
        node["stream_from"] = (size, begins or 0) if lost else (here, there)
