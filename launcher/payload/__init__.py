"""What is sent to the nodes: the agent, the scripts, the user's files."""

from __future__ import annotations

from typing import Any


def kept_agent() -> str:
    """Where the packed agent is kept, beside Python's own bytecode of this package; empty if that has no place."""
    spec: Any = __spec__
    return f"{spec.cached}.agent.pyz" if spec.cached else ""
