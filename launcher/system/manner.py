"""How this process prints, as `launcher.output` keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.system.dataclass import dataclass, field
from launcher.system.writing import OpenLines

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.system.writing import LiveLine, Writer


@dataclass(slots=True)
class Manner:
    """`output.setup` changes it."""

    command: str = ""
    format: str = "human"
    verbosity: int = 0
    closed: dict[int, OSError] = field(default_factory=dict)
    """Streams that can no longer be written, with the reason."""

    lines: OpenLines = field(default_factory=OpenLines)
    writer: Writer | None = None
    live: LiveLine | None = None
    """A temporary line on the terminal (`console.live_line`)."""

    progress: Callable[[str, tuple[int, int] | None], None] | None = None
    """Shows what the current wait is for."""
