"""What the tests of commands and of their functions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import distlaunch
from tests.command import Cli

if TYPE_CHECKING:
    from pathlib import Path


def result_of(here: Path, *words: str) -> Any:
    """The result that a command prints as JSON."""
    done = Cli(here)(*words, env={"DISTLAUNCH_OUTPUT": "json"})
    assert done.stdout, done.stderr
    return done.json["result"]


def ended(here: Path, *args: str) -> str:
    """The id of a run that has ended."""
    run = distlaunch.submit("work.py", args, nproc_per_node=2)
    run.wait(120)
    return run.id
