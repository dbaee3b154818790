"""What submitit does for us: it parses sbatch's output for the job id, and spaces the queries to the controller.

Its private names are used in this file only. Each is checked before it is called or written: a submitit that lacks or
changes one gives a one-sentence error.

sbatch is run from here, as submitit leaves it running when interrupted. A contract test on a real Slurm covers this.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.backends.slurm import inherited, states
from launcher.backends.slurm.states import job_of
from launcher.errors import BackendUnavailableError, CommandError, LaunchError
from launcher.system import input_file, install, proc

try:
    from submitit.core.utils import FailedSubmissionError
    from submitit.slurm.slurm import SlurmExecutor, SlurmInfoWatcher
except ImportError as error:
    raise BackendUnavailableError("submitit is not installed", hint=install.command("slurm")) from error

if TYPE_CHECKING:
    from subprocess import CompletedProcess

    from launcher.backends.slurm.handle import SlurmHandle
    from launcher.backends.slurm.site import Site

_SBATCH_S = 90.0
_SQUEUE_S = 30
_DELAY_S = 30
_LEAST_S = (0.5, 2.0)
"""The least time between two queries: here, and through a login node."""

_KEPT: dict[str, object] = {
    "_delay_s": _DELAY_S,
    "_num_calls": 0,
    "_info_dict": {},
    "_last_status_check": float("-inf"),
}
"""Fields of submitit's watcher with their initial values: submitit reads them, and we write them."""

_PARSER = "_get_job_id_from_submission_command"
_CALLED = ("_make_command", "get_info", "register_job", "update_if_long_enough")
_FIELDS = "%i|%T|%r|%S|%k"
_NAMES = ("job_id", "state", "reason", "start", "comment")


def send(job_file: str) -> str:
    """Submit the job file and return the job's id; `CommandError` has sbatch's message. Ctrl-C also ends sbatch.

    Raises `BackendUnavailableError` if it does not answer in time: the controller may have the job.
    """
    check()
    try:
        done = proc.run(("sbatch", job_file), timeout_s=_SBATCH_S, env=_environment(job_file))
    except CommandError as error:
        raise BackendUnavailableError(error.message) from error
    return job_id(done)


def _environment(job_file: str) -> dict[str, str]:
    """That of sbatch, which says itself what is wrong with a file that cannot be read."""
    with contextlib.suppress(OSError):
        return inherited.without_them(
            os.environ, inherited.stated(input_file.read(Path(job_file)).decode(errors="replace"))
        )
    return dict(os.environ)


def check() -> None:
    """Raise `BackendUnavailableError` if this submitit cannot read sbatch's answer."""
    _refuse("SlurmExecutor", [_PARSER] * (_PARSER not in vars(SlurmExecutor)))  # abstract in its base class


def job_id(done: CompletedProcess[str]) -> str:
    """The id of the job that sbatch has submitted; `CommandError` has sbatch's message if it has not."""
    said = proc.in_one_line(done.stderr if done.returncode else done.stdout)
    with contextlib.suppress(FailedSubmissionError):
        if done.returncode == 0:
            return SlurmExecutor._get_job_id_from_submission_command(said)
    raise CommandError(f"sbatch: {said.removeprefix('sbatch: error: ') or f'exit code {done.returncode}'}")


def _refuse(name: str, lacks: list[str]) -> None:
    """Raise `BackendUnavailableError` if that class of submitit lacks something."""
    if lacks:
        version = metadata.version("submitit")
        raise BackendUnavailableError(
            f"the slurm backend does not support submitit {version}: {name} lacks {', '.join(lacks)}",
            hint="install a supported version: pip install 'submitit>=1.5,<1.6'",
        )


class Queue(SlurmInfoWatcher):
    """squeue's rows for all our jobs, from one query; submitit decides when it is repeated."""

    def __init__(self, site: Site) -> None:
        super().__init__(delay_s=_DELAY_S)
        self.site = site
        _refuse("SlurmInfoWatcher", [name for name, value in _KEPT.items() if vars(self).get(name) != value])
        _refuse("SlurmInfoWatcher", [name for name in _CALLED if not callable(getattr(self, name, None))])
        self._jobs: set[str] = set()
        """Those of which the last answer has what there is."""

        self._users: list[str] = []
        """Other users whose jobs are queried, too."""

        self.asked_at = float("-inf")
        """When that was last, on the monotonic clock."""

        self.reached = True
        self.refusal = ""
        """The error message in place of an answer."""

    def _make_command(self) -> list[str]:
        whose = f"--user={','.join([self.site.user, *self._users])}" if self._users else "--me"
        return ["squeue", whose, "--array", "--states=all", "--noheader", f"--format={_FIELDS}"]

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """Rows by job id; of a job of several components, `4711+0` and `4711+1`, one that stands for all."""
        text = string if isinstance(string, str) else string.decode(errors="replace")
        rows = [
            dict(zip(_NAMES, line.split("|", len(_NAMES) - 1), strict=False))
            for line in text.splitlines()
            if "|" in line
        ]
        if self.site.clusters:  # of a federation, those on which it did not start
            rows = [row for row in rows if row["state"] != "REVOKED"]
        found: dict[str, dict[str, str]] = {}
        for row in rows:
            job = row["job_id"].partition("+")[0]
            before = found.get(job, row)
            found[job] = row if states.of_all((before["state"], row["state"])) != before["state"] else before
        return found

    def register_job(self, job_id: str) -> None:
        """Have it asked for at once, unless the last answer has it, or came after another task of its array was known.

        submitit would have a query made for each.
        """
        job = job_id.partition("_")[0]
        if job not in self._jobs and job_id not in self._info_dict:
            super().register_job(job)
        self._jobs.add(job)

    def update(self) -> None:
        """Query squeue, with a time limit; without an answer, the known rows stay."""
        self._num_calls += 1
        try:
            done = self.site.run(self._make_command(), timeout_s=_SQUEUE_S)
        except LaunchError as error:
            self.reached, self.refusal = False, error.message
        else:
            self.reached, self.refusal = done.returncode == 0, f"squeue: {proc.in_one_line(done.stderr)}"
            if self.reached:
                self._info_dict = self.read_info(done.stdout)
        self._last_status_check, self.asked_at = time.time(), time.monotonic()

    def hurry(self) -> None:
        """Make the next query immediate and later ones every two seconds: the user is waiting for a run to end."""
        self._delay_s, self._last_status_check = 2, float("-inf")

    def of(self, handle: SlurmHandle, *, now: bool = False) -> dict[str, str] | None:
        """The row of a run's job; None if it left the queue or is unknown. Other jobs with the same id do not count."""
        if (user := handle.get("user")) and user not in self._users:
            self._users.append(user)
            now = True
        now = now and time.monotonic() - self.asked_at > _LEAST_S[self.site.login is not None]
        info: dict[str, Any] = self.get_info(job_of(handle), mode="force" if now else "standard")
        return info if info and info.get("comment") == handle["comment"] else None

    def by_comment(self, comment: str, besides: str) -> str | None:
        """The id of the job with that comment that is none of `besides`, `4711,4720`, from a fresh query."""
        self.update()
        ids = (job_id.partition("_")[0] for job_id, row in self._info_dict.items() if row.get("comment") == comment)
        return next((job_id for job_id in ids if job_id not in besides.split(",")), None)


@cache
def queue(site: Site) -> Queue:
    """The queue of this site, for all its runs."""
    return Queue(site)
