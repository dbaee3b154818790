"""The files that a run takes along to another cluster."""

from __future__ import annotations

import shutil
import time
from functools import partial
from typing import TYPE_CHECKING

from launcher import output
from launcher.console import live_line
from launcher.errors import LaunchError, RequestError
from launcher.service import cancel, fetch, observe
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import TypeAlias

    from launcher.backends._base import AnyBackend
    from launcher.backends._outputs import Outputs
    from launcher.results.files import Fetched
    from launcher.results.run import RunState
    from launcher.runs.records import Run

_LOOK_S, _AGAIN_S, _COMES_S = 0.2, 1.0, 120.0
"""How long a node may take to be there after node 0."""

Carried: TypeAlias = "dict[int, dict[str, Path]]"
"""The files of each node that they come from, by their names there."""


def stopped(
    run: Run, state: RunState, patterns: Sequence[str], nodes: str, directory: Path
) -> tuple[RunState, Carried]:
    """Stop the run if it has not ended, and fetch the files to the directory; how it has ended, and the files.

    Where files are lost with their node, agents wait at their end, within the grace time, until they are fetched.
    """
    backend, runs = observe.backend_of(run), state["exit_code"] is None
    shutil.rmtree(directory, ignore_errors=True)
    if patterns and not any(node["started"] is not None for node in state["nodes"]):
        output.warn(f"{run.id} has not started, and has no files")
        patterns = ()
    if patterns and backend.loses_outputs:
        if not runs:
            raise RequestError(f"{run.id} has ended, and the files of its workers with it")
        return _held(run, backend, patterns, nodes, directory)
    if runs:
        with live_line.waiting(f"stopping {run.id}"):
            state = cancel.cancel(run)
    if not patterns:
        return state, {}
    with live_line.waiting(f"fetching from {run.id}"):
        return state, _carried(fetch.fetch(run, patterns, directory, nodes), directory)


def _held(
    run: Run, backend: AnyBackend, patterns: Sequence[str], nodes: str, directory: Path
) -> tuple[RunState, Carried]:
    """Stop the run, and fetch from each node between the end of its workers and its own."""
    ranks = fetch.nodes_of(run, nodes)
    held: list[Outputs] = []
    try:
        for rank in ranks:
            held.append(backend.open_outputs(run.known, rank))
            held[-1].hold()
        transfer = fetch.Transfer(run, patterns, directory, nodes)
        with live_line.waiting(f"stopping {run.id}, and fetching from it"):
            end = Question(partial(cancel.cancel, run), "cancel")
            for rank, outputs in zip(ranks, held, strict=True):
                ready = Question(outputs.await_end, f"the end of node {rank}")
                while not ready.answered(_LOOK_S):
                    if end.answered(0.0):
                        end.answer()  # raises if the run does not end
                ready.answer()
                transfer.begin(rank, lambda: None)
            found = _carried(transfer.fetched(), directory)
            while not end.answered(_LOOK_S):
                pass
        return end.answer(), found
    finally:
        for outputs in held:
            outputs.close()


def _carried(found: Fetched, directory: Path) -> Carried:
    return {
        each["node"]: {
            str(path.relative_to(each["to"])): path
            for path in sorted(type(directory)(each["to"]).rglob("*"))
            if path.is_file()
        }
        for each in found["nodes"]
    }


def bring(run: Run, backend: AnyBackend, files: Carried) -> None:
    """Write all files to where the workers start, on every node; of one name, the node's own, else the first one's."""
    every = {name: path for rank in sorted(files, reverse=True) for name, path in files[rank].items()}
    for rank in [0] if backend.shares_outputs else range(len(run.hosts)):
        _bring(run, backend, rank, {**every, **files.get(rank, {})})


def _bring(run: Run, backend: AnyBackend, rank: int, files: dict[str, Path]) -> None:
    limit = time.monotonic() + _COMES_S
    while True:
        try:
            outputs = backend.open_outputs(run.known, rank)
            break
        except LaunchError:
            if rank == 0 or time.monotonic() > limit:
                raise
            time.sleep(_AGAIN_S)
    try:
        outputs.put(files)
    finally:
        outputs.close()
