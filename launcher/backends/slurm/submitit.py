"""What submitit does for us: it reads the job's id in what sbatch says, and spaces the questions to the controller.

Its private names are used in this file alone. Before any of them is called or written it is looked for: a submitit in which one
is gone, or something else, gives one sentence.

sbatch is run from here, as submitit lets it go on when it is interrupted itself. Held by a contract test on a real Slurm.
"""

from __future__ import annotations

import contextlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

from submitit.core.utils import FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor, SlurmInfoWatcher

from launcher.backends.slurm.states import job_of
from launcher.errors import BackendUnavailableError, CommandError
from launcher.system import proc

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.backends.slurm.handle import SlurmHandle

_SBATCH_S = 60
_SQUEUE_S = 30
_DELAY_S = 30
_KEPT: dict[str, object] = {"_delay_s": _DELAY_S, "_num_calls": 0, "_info_dict": {}, "_last_status_check": float("-inf")}
"""What submitit's watcher has before its first question, and reads; we write these."""

_CALLED = ("_make_command", "get_info", "update_if_long_enough")
_FIELDS = "%i|%T|%r|%S|%k"
_NAMES = ("job_id", "state", "reason", "start", "comment")


def send(job_file: Path) -> str:
    """Submit the job file and return the job's id; `CommandError` holds what sbatch said. Ctrl-C ends sbatch, too.

    Raises `BackendUnavailableError` where it has not answered in time: the controller may have the job.
    """
    name = "_get_job_id_from_submission_command"  # abstract above it
    _refuse("SlurmExecutor", [name] * (name not in vars(SlurmExecutor)))
    try:
        done = proc.run(("sbatch", str(job_file)), timeout_s=_SBATCH_S)
    except CommandError as error:
        raise BackendUnavailableError(error.message) from error
    said = proc.in_one_line(done.stderr if done.returncode else done.stdout)
    with contextlib.suppress(FailedSubmissionError):
        if done.returncode == 0:
            return SlurmExecutor._get_job_id_from_submission_command(said)
    raise CommandError(f"sbatch: {said.removeprefix('sbatch: error: ') or f'exit code {done.returncode}'}")


def _refuse(name: str, lacks: list[str]) -> None:
    """Raise `BackendUnavailableError` where submitit lacks something of that class."""
    if lacks:
        raise BackendUnavailableError(
            f"the slurm backend does not know submitit {metadata.version('submitit')}: {name} lacks {', '.join(lacks)}",
            hint="install a submitit that it knows: pip install 'submitit>=1.5,<1.6'",
        )


class Queue(SlurmInfoWatcher):
    """What squeue says of all our jobs, in one question; submitit decides when it is asked again."""

    def __init__(self) -> None:
        super().__init__(delay_s=_DELAY_S)
        _refuse("SlurmInfoWatcher", [name for name, value in _KEPT.items() if vars(self).get(name) != value])
        _refuse("SlurmInfoWatcher", [name for name in _CALLED if not callable(getattr(self, name, None))])
        self.reached = True
        self.refusal = ""
        """What was said in place of an answer."""

    def _make_command(self) -> list[str]:
        return ["squeue", "--me", "--array", "--states=all", "--noheader", f"--format={_FIELDS}"]

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """Rows by job id."""
        text = string if isinstance(string, str) else string.decode(errors="replace")
        rows = [dict(zip(_NAMES, line.split("|", len(_NAMES) - 1), strict=False)) for line in text.splitlines() if "|" in line]
        return {row["job_id"]: row for row in rows}

    def update(self) -> None:
        """Ask, with a time limit; a controller that does not answer leaves what was known."""
        import time

        self._num_calls += 1
        try:
            done = proc.run(self._make_command(), timeout_s=_SQUEUE_S)
        except CommandError as error:
            self.reached, self.refusal = False, error.message
        else:
            self.reached, self.refusal = done.returncode == 0, f"squeue: {proc.in_one_line(done.stderr)}"
            if self.reached:
                self._info_dict = self.read_info(done.stdout)
        self._last_status_check = time.time()

    def hurry(self) -> None:
        """A run is to end, and somebody waits for that: the next question is asked at once, and then every two seconds."""
        self._delay_s, self._last_status_check = 2, float("-inf")

    def of(self, handle: SlurmHandle, *, now: bool = False) -> dict[str, str] | None:
        """The row of a run's job; None when it has left the queue, or nobody knows. Another's job of the same id is not ours."""
        info: dict[str, Any] = self.get_info(job_of(handle), mode="force" if now else "standard")
        return info if info and info.get("comment") == handle["comment"] else None

    def by_comment(self, comment: str, besides: str) -> str | None:
        """The id of the job with that comment, other than `besides`, asked now."""
        self.update()
        ids = (job_id.partition("_")[0] for job_id, row in self._info_dict.items() if row.get("comment") == comment)
        return next((job_id for job_id in ids if job_id != besides), None)
