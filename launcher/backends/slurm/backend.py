"""Slurm: one sbatch file per run, which the user can read, sign and submit by hand."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from launcher import output
from launcher.agent.system.processes import ASKS_ALL_FOR_STACKS
from launcher.backends._base import Backend, Record, unrecorded
from launcher.backends._files import FileStream
from launcher.backends._outlook import Outlook
from launcher.backends._writing import forget_beside
from launcher.backends.slurm import allocation, behind_login, clusters, control, reported, requeue, run_files, steps
from launcher.backends.slurm import site as sites
from launcher.backends.slurm.handle import SlurmHandle, directory_of
from launcher.backends.slurm.options import SlurmOptions
from launcher.backends.slurm.plan import SlurmPlan
from launcher.backends.slurm.states import job_of
from launcher.errors import BackendUnavailableError, LaunchError, RequestError
from launcher.runs.liveness import Liveness
from launcher.system import trust
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.backends._base import Stream, Written
    from launcher.backends._outputs import Outputs
    from launcher.backends.slurm.allocation import Allocation
    from launcher.backends.slurm.site import Site
    from launcher.backends.slurm.submitit import Queue
    from launcher.payload.snapshot import Snapshot
    from launcher.results.cluster import SurveyedHost
    from launcher.results.run import ClusterRun
    from launcher.runs.liveness import NodeState
    from launcher.runs.records import Run
    from launcher.spec import JobSpec
    from launcher.system.pipes import ProgramBridge


class SlurmBackend(Backend[SlurmPlan, SlurmHandle, SlurmOptions]):
    """Submits through submitit; follows by files on the shared file system, with an occasional query to squeue."""

    name: ClassVar[str] = "slurm"
    can_requeue: ClassVar[bool] = True
    can_adopt: ClassVar[bool] = True
    can_list: ClassVar[bool] = True
    can_survey: ClassVar[bool] = True
    has_outlook: ClassVar[bool] = True
    has_queue: ClassVar[bool] = True
    more_cpus: ClassVar[str] = "--cpus-per-task"
    asks_for_stacks: ClassVar[int] = ASKS_ALL_FOR_STACKS
    has_terminals: ClassVar[bool] = True
    has_outputs: ClassVar[bool] = True
    shares_outputs: ClassVar[bool] = True
    options: ClassVar[type] = SlurmOptions
    _follows = False

    @property
    def may_start_again(self) -> bool:
        """Whether the run is a job of its own: Slurm may requeue that, and only Slurm knows why it stopped a job."""
        return self._within() is None

    @property
    def site(self) -> Site:
        """Where Slurm's commands are."""
        shell = self.opts.login_shell != "none"
        found = sites.of(self.opts.login, self.cluster, self.opts.remote_dir, shell=shell)
        return sites.on(found, self.opts.clusters)

    def _of(self, handle: SlurmHandle) -> Site:
        """The same, for the clusters on which the run's job may be."""
        return sites.on(self.site, handle.get("clusters", self.opts.clusters))

    def sees_outputs(self) -> bool:
        """Whether the shared file system is also here."""
        return self.site.login is None

    def _within(self) -> Allocation | None:
        return None if self.opts.new_job or self.opts.login else allocation.allocation(os.environ, self.opts.het_group)

    def plan(self, spec: JobSpec, run_dir: Path) -> SlurmPlan:
        """The job file and the spec, made without a query to Slurm."""
        from launcher.backends.slurm import planning

        return planning.plan(self.opts, self.site, self._within(), spec, run_dir)

    def files(self, plan: SlurmPlan) -> Snapshot | None:
        """The files that are copied into the run's directory."""
        return plan.placed.snapshot

    def render(self, plan: SlurmPlan) -> Mapping[str, str]:
        """The texts that `submit` writes and sends."""
        return run_files.texts(plan, plan.text, plan.job)

    def marks(self, plan: SlurmPlan) -> tuple[str, ...]:
        """The spec, and the file that Slurm gets."""
        return ("spec.json", "step.sh" if plan.within else "job.sbatch")

    def write(self, plan: SlurmPlan, directory: Path) -> Written:
        """Write what a submission sends, to a directory that may be moved; `sbatch job.sbatch` in it does the rest."""
        forget_beside(directory, plan.job)
        return run_files.fill(plan, directory, run_files.texts(plan, plan.by_hand, plan.job._replace(may_move=True)))

    def submit(self, plan: SlurmPlan, record: Record = unrecorded) -> SlurmHandle:
        """Write the agent and the spec to the run directory, then call sbatch once; a late answer is looked up."""
        hosts: set[str] = set()
        if plan.within is None:
            if not self.site.has("sbatch"):
                raise control.no_sbatch()
            hosts = control.check_partitions(self.site, plan.partitions, plan.text)
        if plan.job.wants_keyboard and not self.site.has("srun"):
            raise BackendUnavailableError("srun is not on PATH: a worker's terminal needs it", hint=_NO_SRUN)
        from launcher.backends.slurm import submission

        submit = submission.prepared(self.site, plan, self.render(plan), hosts)
        where = plan.job.output_dir or plan.job.cwd
        handle: SlurmHandle = {"run_dir": str(plan.run_dir), "nodes": len(plan.nodes), "output_dir": where}
        if plan.within:
            if useless := allocation.useless(self.opts):
                output.note(f"a step of job {plan.within.job_id}, whose own these are: {', '.join(useless)}")
            return allocation.start(handle, plan.job.cwd, plan.within, record)
        if self.site.login:
            behind_login.place(self.site, handle, plan.directory)
        handle.update({"comment": f"distlaunch:{plan.run_dir.name}", "name": plan.name})
        record(handle)
        return self._of_job(handle, control.send(self._jobs(), plan.run_dir, submit))

    def recover(self, handle: SlurmHandle) -> SlurmHandle | None:
        """Find the job by its comment, except for `besides`, the jobs of earlier attempts."""
        if "job_id" in handle:
            return handle
        job_id = self._jobs().by_comment(handle["comment"], handle.get("besides", ""))
        if job_id is None and not self._jobs().reached:
            raise BackendUnavailableError(self._jobs().refusal, hint=control.PING)
        return self._of_job(handle, job_id) if job_id else None

    def last_attempt(self, handle: SlurmHandle) -> int:
        """Slurm starts a run again by itself, so only its streams tell, which behind a login node may be long."""
        return behind_login.last_attempt(self.site.login, handle) if self.site.login and "remote" in handle else 0

    def requeue(self, handle: SlurmHandle, attempt: int, record: Record = unrecorded) -> SlurmHandle:
        """Have Slurm requeue a running job; submit the same file again for one that has ended or is ending."""
        if "step" in handle:
            raise RequestError(
                f"a step of job {handle['job_id']} cannot be requeued", hint="start it anew in the allocation"
            )
        run_dir = Path(handle["run_dir"])
        if requeue.requeued(self._jobs(handle), handle):
            return handle
        if "task" in handle:
            hint = f"launch it again with --array {handle['task']}"
            raise RequestError(f"task {handle['task']} has ended", hint=hint)
        if not self.site.login:
            trust.require("run", run_dir / "job.sbatch")  # another user's would be run as ours
        elif "user" in handle or "remote" not in handle:
            raise behind_login.not_again(handle)
        from launcher.backends.slurm import submission

        submit = submission.again(self.site, handle, attempt)
        begun = requeue.anew(self.site, handle)
        record(begun)
        return self._of_job(begun, control.send(self._jobs(), run_dir, submit, besides=begun["besides"]))

    def found(self) -> list[ClusterRun]:
        """The runs of all users in the queue, and those that have left it lately."""
        from launcher.backends.slurm import jobs

        return jobs.runs(self.site)

    def hosts(self) -> list[SurveyedHost]:
        """The cluster's nodes, as sinfo lists them."""
        from launcher.backends.slurm import nodes

        return nodes.found(self.site)

    def adopt(self, text: str, runs_root: Path) -> Run:
        """Find the run's job, and from it the run's directory."""
        from launcher.backends.slurm import adoption

        return adoption.adopt(self.site, text, runs_root, self.opts)

    def outlook(self, spec: JobSpec, gpus: int | None) -> Outlook:  # noqa: ARG002 - it has an option for GPUs
        """Four queries, one of them with the job file."""
        from launcher.backends.slurm import outlook

        found = outlook.capacity(self.site, self.opts.partition)
        here = SlurmBackend(replace(self.opts, new_job=True))
        start = outlook.start(self.site, here.plan(spec, Path(os.devnull, "run")).text)
        return Outlook(found, start, outlook.database(self.site))

    def liveness(self, handle: SlurmHandle) -> Liveness:
        """Query squeue, then sacct for a job that has left the queue; without accounting, such a job has ended."""
        found = reported.liveness(self._of(handle), handle, lambda: self._jobs(handle))
        if self.site.login and "remote" in handle and not (self._follows and "ended" not in found.nodes):
            if problem := behind_login.look(self.site.login, handle, self._jobs(handle).asked_at):
                lost: NodeState = "unknown"
                return Liveness(nodes=(lost,) * handle["nodes"], detail=problem)
            found = reported.liveness(self._of(handle), handle, lambda: self._jobs(handle))
        return found

    def refresh(self, handle: SlurmHandle) -> None:
        """Fetch what is new, if it is behind a login node."""
        if self.site.login and "remote" in handle:
            behind_login.refresh(self.site.login, handle)

    def open_stream(self, handle: SlurmHandle, offsets: Mapping[int, int] | None = None) -> Stream:
        """The files that the agents write; reading them puts no load on the controller."""
        if self.site.login and "remote" in handle:
            self._follows = True
            return behind_login.stream(self.site.login, handle, offsets or {})
        return FileStream(directory_of(handle), handle["nodes"], offsets or {}, job_output=True)

    def open_terminal(self, handle: SlurmHandle, node: int, rank: int | None) -> ProgramBridge:
        """Connect through srun on that node, inside the job."""
        python = "python3" if self.opts.container_image else ""
        if self.site.login:
            return behind_login.terminal(clusters.running(self._of(handle), handle), handle, node, rank, python=python)
        trust.require("run", directory_of(handle) / "nodes" / str(node) / "agent.json")  # it names a program
        return allocation.terminal(
            clusters.running(self._of(handle), handle), handle, directory_of(handle), node, rank, python=python
        )

    def open_outputs(self, handle: SlurmHandle, node: int) -> Outputs:  # noqa: ARG002 - the same for all nodes
        """The directory on the shared file system where the workers write."""
        if self.site.login:
            return behind_login.outputs(self.site.login, handle)
        from launcher.backends._outputs import SharedOutputs  # few runs fetch files

        return SharedOutputs(Path(handle["run_dir"]))

    def cancel(self, handle: SlurmHandle, *, force: bool = False) -> None:
        """Cancel a waiting job; signal the agents of a running one, which give the workers their grace time.

        A plain scancel would reach the workers before their agent could give them the deadline.
        """
        end = self._last_signal(handle)
        if "step" in handle:
            allocation.send(self.site, handle, signal.SIGKILL if force else end)
            return
        job_id = job_of(handle)
        self._jobs(handle).hurry()
        site = self._of(handle)
        if not site.has_shell:  # the agents could not be told why
            control.cancel(site, job_id)
            return
        one = clusters.running(site, handle)
        control.control(one, "scontrol", "update", f"JobId={job_id}", "Requeue=0", check=False)  # not after it
        try:
            if force:
                steps.kill_all(one, job_id)
                control.cancel(site, job_id)
            else:
                for state in ("PENDING", "SUSPENDED"):  # whose agents are not there, or could not obey
                    control.cancel(site, f"--state={state}", job_id)
                control.cancel(site, f"--signal={end.name.removeprefix('SIG')}", "--state=RUNNING", job_id)
                control.cancel_booting(site, job_id)
        except LaunchError as error:
            unsent = ("connect failure", "ermission denied")
            # Otherwise a signal may have reached the agents.
            error.in_part = not any(said in error.message for said in unsent)
            raise

    def _last_signal(self, handle: SlurmHandle) -> signal.Signals:
        """What ends a run's agents: URG if they find it cancelled, as it else means that the time limit is near."""
        noted = self.site.has_shell and "user" not in handle and os.path.exists(directory_of(handle) / "cancel.json")
        if noted and self.site.login:
            noted = "remote" in handle and behind_login.mark_cancelled(self.site.login, handle)
        return signal.SIGURG if noted else signal.SIGTERM

    def remove(self, handle: SlurmHandle) -> None:
        """Remove the run's directory behind a login node, unless it is another user's; the project's stays."""
        if self.site.login and "remote" in handle and "user" not in handle:
            behind_login.remove(self.site.login, handle)

    def signal(self, handle: SlurmHandle, signum: int) -> None:
        """Have Slurm signal every process of the step."""
        if "step" in handle:
            allocation.send(self.site, handle, signum)
        else:
            control.control(self._of(handle), "scancel", f"--signal={control.signal_word(signum)}", job_of(handle))

    def _jobs(self, handle: SlurmHandle | None = None) -> Queue:
        from launcher.backends.slurm import submitit

        return submitit.queue(self.site if handle is None else self._of(handle))

    def _of_job(self, handle: SlurmHandle, job_id: str) -> SlurmHandle:
        """The handle once the job's id is known."""
        return clusters.placed(self.site, {**handle, "job_id": job_id})


_NO_SRUN = "leave --interactive out, or run this where srun is"


BACKEND = SlurmBackend
