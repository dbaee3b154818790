"""The files that a run takes along to another cluster."""

from __future__ import annotations

import shlex
import time
from functools import partial
from typing import TYPE_CHECKING

from launcher import output
from launcher.console import live_line
from launcher.errors import LaunchError, RequestError
from launcher.service import cancel, fetch, observe
from launcher.system import storage
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

_COMPLETE = "complete.json"
"""In the directory, beside the files: what was fetched, once all of it is here."""

Carried: TypeAlias = "dict[int, dict[str, Path]]"
"""The files of each node that they come from, by their names there."""


def stopped(
    run: Run, state: RunState, patterns: Sequence[str], nodes: str, directory: Path
) -> tuple[RunState, Carried]:
    """Stop the run if it has not ended, and fetch the files to the directory; how it has ended, and the files.

    The directory is of this attempt alone. Where files are lost with their node, agents wait at their end, within the
    grace time, until they are fetched.
    """
    backend, runs = observe.backend_of(run), state["exit_code"] is None
    if patterns and not any(node["started"] is not None for node in state["nodes"]):
        output.warn(f"{run.id} has not started, and has no files")
        patterns = ()
    if patterns and backend.loses_outputs:
        return _rescued(run, state, patterns, nodes, directory)
    if runs:
        with live_line.waiting(f"stopping {run.id}"):
            state = cancel.cancel(run)
    if not patterns:
        return state, {}
    with live_line.waiting(f"fetching from {run.id}"):
        return state, _carried(fetch.fetch(run, patterns, directory / "files", nodes), directory)


def complete(directory: Path) -> bool:
    """Whether all files are here that were lost where the run was, so that a move can continue with them."""
    return (directory / _COMPLETE).exists()


def _rescued(
    run: Run, state: RunState, patterns: Sequence[str], nodes: str, directory: Path
) -> tuple[RunState, Carried]:
    """The same where files are lost with their node: what an earlier move has fetched is the only copy."""
    ended, asked = state["exit_code"] is not None, {"carry": list(patterns), "node": nodes}
    kept = storage.read_json(directory / _COMPLETE)
    if kept is not None:
        if kept["asked"] != asked:
            words = [f"--carry {shlex.quote(each)}" for each in kept["asked"]["carry"]]
            hint = f"{' '.join(words)} --node {kept['asked']['node']}"
            raise RequestError(f"{run.id} was stopped by another move, which has fetched other files", hint=hint)
        return state if ended else cancel.cancel(run), _carried(kept["found"], directory)
    if ended:
        raise RequestError(f"{run.id} has ended, and the files of its workers with it")
    with live_line.waiting(f"stopping {run.id}, and fetching from it"):
        found, end = _held(run, patterns, nodes, directory / "files")
        storage.write_whole(directory / _COMPLETE, storage.encode_json({"asked": asked, "found": found}), mode=0o600)
        while not end.answered(_LOOK_S):
            pass
    return end.answer(), _carried(found, directory)


def _held(run: Run, patterns: Sequence[str], nodes: str, to: Path) -> tuple[Fetched, Question[RunState]]:
    """Stop the run, and fetch from each node between the end of its workers and its own."""
    backend, ranks = observe.backend_of(run), fetch.nodes_of(run, nodes)
    held: list[Outputs] = []
    try:
        for rank in ranks:
            held.append(backend.open_outputs(run.known, rank))
            held[-1].hold()
        transfer = fetch.Transfer(run, patterns, to, nodes)
        end = Question(partial(cancel.cancel, run), "cancel")
        for rank, outputs in zip(ranks, held, strict=True):
            ready = Question(outputs.await_end, f"the end of node {rank}")
            while not ready.answered(_LOOK_S):
                if end.answered(0.0):
                    end.answer()  # raises if the run does not end
            ready.answer()
            transfer.begin(rank, lambda: None)
        return transfer.fetched(), end
    finally:
        for outputs in held:
            outputs.close()


def _carried(found: Fetched, directory: Path) -> Carried:
    """The files that were fetched, without what an interrupted move has left beside them."""
    every = [(each["node"], directory / "files" / each["path"]) for each in found["files"]]
    return {
        node["node"]: {str(path.relative_to(node["to"])): path for rank, path in every if rank == node["node"]}
        for node in found["nodes"]
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
