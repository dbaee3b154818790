"""What a fork server has imported, for one that is forked from it and need not import it again (`standing.py`)."""

from __future__ import annotations

import sys
from typing import Dict, List, Optional, Set, Tuple

from ..named_tuple import NamedTuple
from . import traces

Files = Dict[str, Tuple[int, int, int]]
"""By path: time of the last change, size and inode."""


class Imported(NamedTuple):
    """The imports, and what they depend on."""

    modules: List[str]
    by_package: Dict[str, Set[str]]
    """As `Preload.imported`."""

    before: traces.Before
    env: Dict[str, str]
    """At the import."""

    search: List[str]
    """`sys.path` without the script's directory and the agent's archive."""

    base: str
    """As `kept.base`."""

    files: Files
    agent: str
    """The digest of the agent's archive."""


_used: List[Imported] = []
only_for_agents: List[str] = []
"""In what was forked from a standing server: modules for the agent and its worker group's process, not for workers."""

_forgotten: List[object] = []


def used() -> Optional[Imported]:
    """In a fork server that was forked from a standing one: what is already imported; None in all others."""
    return _used[0] if _used else None


def forget_agent() -> None:
    """In a run's fork server, before workers are forked: have only the modules of the standing one.

    The others stay alive: to destroy them would write to pages that are shared.
    """
    _forgotten.extend(sys.modules.pop(name, None) for name in only_for_agents)


def use(imported: Imported) -> None:
    """Mark this process as forked from a fork server with these imports."""
    _used.append(imported)
