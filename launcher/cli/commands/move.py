"""`distlaunch move RUN --to CLUSTER`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.cli.parameters import OutputOption, RunArgument, flag
from launcher.service import fetch, finding, observe
from launcher.service import move as moving

if TYPE_CHECKING:
    from launcher.results.race import Moved


def move(
    run: RunArgument,
    to: Annotated[str, flag("--to", metavar="NAME", help="Cluster on which it continues.")],
    carry: Annotated[
        Optional[list[str]],
        flag("--carry", metavar="PATTERN", help="Files to bring there, such as 'checkpoints/**'."),
    ] = None,
    node: Annotated[
        Optional[str], flag("--node", metavar="N|all", help="Node that these files come from; as for `fetch`.")
    ] = None,
    fmt: OutputOption = None,
) -> None:
    """Stop a run as a preemption does, and start it on another cluster as its next attempt, with its checkpoints.

    $ distlaunch move last --to lab --carry 'checkpoints/**'
    $ distlaunch move train-20250101-120000-abcd --to juno
    """
    found = finding.find(observe.directory(fmt), run)
    moved = moving.move(found, to, tuple(carry or ()), fetch.default_nodes(found, node))
    with output.after(f"{moved.id} continues on {to}", f"to end it: distlaunch cancel {moved.id}"):
        data: Moved = {"run": moved.id, "cluster": to, "attempt": moved.attempt}
        output.result(data, f"{moved.id}: attempt {moved.attempt} on {to}")
