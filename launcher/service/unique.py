"""At most one run of a name at a time: idempotent submission, for cron and CI."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.errors import RequestError
from launcher.runs import directories, lock
from launcher.service import observe
from launcher.system import storage, trust

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.runs.records import Run

_NAMES = ".names"
"""Below the directory of all runs: one directory per name, which is locked while its runs are compared."""

_WAIT_S = 60.0


@contextmanager
def name_of(root: Path, name: str, backend: str, cluster: str | None) -> Iterator[Run | None]:
    """The run of that name, backend and cluster that has not ended; no other launch can create one meanwhile.

    Raises `RequestError` if no one can tell whether such a run has ended.
    """
    directory = root / _NAMES / name
    with storage.storage_errors(directory):
        trust.make("runs_dir", root, 0o755)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with lock.hold(directory, backend, wait_s=_WAIT_S):
        yield _running(root, name, backend, cluster)


def _running(root: Path, name: str, backend: str, cluster: str | None) -> Run | None:
    for found in reversed(directories.ids(root)):
        if directories.name_of(found) != name:
            continue
        run = directories.read(root, found)
        if run.damaged or (run.backend, run.cluster) != (backend, cluster):
            continue
        state = observe.state_of(run)
        if state["state"] == "unknown":
            ways = f"distlaunch cancel {run.id}, or distlaunch rm --force {run.id}"
            raise RequestError(f"{run.id} may still run: {state['detail']}", hint=ways)
        if state["exit_code"] is None:
            return run
    return None
