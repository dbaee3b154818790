"""What commands and calls are compared with, for `test_commands.py`."""

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


def stacks(here: Path) -> None:
    run = distlaunch.submit("work.py", ["wait"], nproc_per_node=2)
    for rank in (0, 1):
        assert next(line for line in run.logs(rank=rank, follow=True) if line.text == "waits")
    ours, theirs = run.stacks(rank=1), result_of(here, "stacks", "--rank", "1", run.id)
    run.cancel(force=True)
    assert ours == theirs
    assert [(group["ranks"], group["frames"][0]["text"]) for group in ours["groups"]] == [([1], "time.sleep(600)")]
