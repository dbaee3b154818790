"""`distlaunch stacks RUN`."""

from __future__ import annotations

from typing import Annotated, Optional

from launcher import output
from launcher.cli.parameters import OnOption, OutputOption, RunArgument, flag
from launcher.console import live_line, stack_lines
from launcher.service import finding, observe
from launcher.service import stacks as service


def stacks(
    run: RunArgument,
    rank: Annotated[Optional[str], flag("--rank", metavar="LIST", help="Only these ranks, such as 0,3-5.")] = None,
    whole: Annotated[bool, flag("--all", help="Print all frames, and those of other threads.")] = False,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> None:
    """Print where the ranks of a run are now, grouped: Python stacks, or the kernel's words.

    $ distlaunch stacks last
    $ distlaunch stacks --rank 37 --all train-20250101-120000-abcd
    """
    found = finding.find(observe.directory(fmt), run, on)
    ranks = service.wanted(rank)
    with live_line.waiting(f"asking the ranks of {found.id}"):
        seen = service.take(found, ranks)
    output.result(seen, *stack_lines.lines(seen, whole=whole, every=ranks is not None))
