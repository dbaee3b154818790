"""Slurm: one sbatch file per run, which the user can read, sign and submit by hand."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from launcher import output
from launcher.backends._base import Backend, PlannedNode, Record, unrecorded
from launcher.backends._files import FileStream
from launcher.backends._outlook import Outlook
from launcher.backends._outputs import SharedOutputs
from launcher.backends.slurm import allocation, control, reported, requeue, run_files, steps, words
from launcher.backends.slurm.handle import SlurmHandle, directory_of
from launcher.backends.slurm.options import SlurmOptions
from launcher.backends.slurm.plan import SlurmPlan
from launcher.backends.slurm.states import job_of
from launcher.errors import BackendUnavailableError, LaunchError, RequestError, SpecError, StorageError
from launcher.payload import scripts
from launcher.spec import NodeRange, parse_duration
from launcher.system import storage, trust

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.agent.messages import Rendezvous
    from launcher.backends._base import Written
    from launcher.backends.slurm.allocation import Allocation
    from launcher.backends.slurm.submitit import Queue
    from launcher.payload.snapshot import Snapshot
    from launcher.results.cluster import SurveyedHost
    from launcher.results.run import ClusterRun
    from launcher.runs.liveness import Liveness
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
    has_terminals: ClassVar[bool] = True
    has_outputs: ClassVar[bool] = True
    shares_outputs: ClassVar[bool] = True
    options: ClassVar[type] = SlurmOptions
    _queue: ClassVar[Queue | None] = None

    @property
    def may_start_again(self) -> bool:
        """Whether the run is a job of its own: Slurm may requeue that, and only Slurm knows why it stopped a job."""
        return self._within() is None

    def _within(self) -> Allocation | None:
        return None if self.opts.new_job else allocation.allocation(os.environ, self.opts.het_group)

    def plan(self, spec: JobSpec, run_dir: Path) -> SlurmPlan:
        """The job file and the spec, made without a query to Slurm."""
        from launcher.backends.slurm import script

        within = self._within()
        if within and spec.all_nodes:
            spec = replace(spec, nodes=NodeRange(min=within.nodes, max=within.nodes))
        tasks = self._tasks(spec, within)
        nodes = allocation.nodes_of(spec.nodes, within) if within else spec.nodes.max
        copied = self._copied(spec)

        def in_run(path: str, directory: Path = run_dir) -> str:
            return run_files.in_run(path, directory, copied)

        lead_s = parse_duration(self.opts.lead, "lead")
        meet: Rendezvous = {"file": str(run_dir / "rendezvous.json")}
        job = spec.job(run=run_dir.name, directory=str(run_dir), rendezvous=meet)._replace(
            command=[in_run(spec.command[0]) if spec.kind == "script" else spec.command[0], *spec.command[1:]],
            cwd=in_run(spec.cwd),
            output_dir=spec.cwd,
            max_nodes=nodes,
            signals_reach_workers=True,
            end_signal="SIGURG",
            lead_s=lead_s,
            time_limit_s=spec.time_limit_s if within else None,  # Slurm enforces that of a job of its own
            array=bool(tasks),
        )
        python = spec.python or ("python3" if self.opts.container_image else run_files.default_python())

        def text(directory: Path) -> str:
            agent = (python, str(directory / "agent.pyz"), "--spec", str(directory / "spec.json"), "--slurm")
            how: dict[str, Any] = {"cwd": in_run(spec.cwd, directory), "within": within, "lead_s": lead_s}
            return script.render(spec, self.opts, run_dir.name, directory, agent, **how)

        workers = None if spec.workers_per_node == "auto" else spec.workers_per_node
        rows = (PlannedNode(node_rank=rank, host="Slurm's choice", workers=workers) for rank in range(nodes))
        bundled = spec.kind == "script" and scripts.is_bundled(spec.command[0])
        return SlurmPlan(
            run_dir=run_dir, text=text(run_dir), by_hand=text(script.MOVED), job=job, nodes=tuple(rows),
            bundled=bundled, name=spec.name, within=within, copied=copied, tasks=tasks,
            snapshot=run_files.collect(spec, copied, run_dir.parent) if copied else None,
        )  # fmt: skip

    def _tasks(self, spec: JobSpec, within: Allocation | None) -> tuple[int, ...]:
        """The indices of a job array; empty without one."""
        tasks = words.indices(self.opts.array) if self.opts.array else ()
        if within and tasks:
            raise SpecError(
                f"--array inside job {within.job_id}: a step cannot be an array",
                hint="submit jobs of its own with --new-job",
            )
        if tasks and spec.wants_keyboard:
            raise SpecError(
                "--interactive with --array: many runs cannot share one keyboard", hint="run one of its tasks alone"
            )
        return tasks

    def _copied(self, spec: JobSpec) -> Path | None:
        """The directory to take a snapshot of; None without one."""
        if not self.opts.snapshot:
            return None
        from launcher.payload import snapshot

        return snapshot.root(Path(spec.cwd))

    def files(self, plan: SlurmPlan) -> Snapshot | None:
        """The files that are copied into the run's directory."""
        return plan.snapshot

    def render(self, plan: SlurmPlan) -> Mapping[str, str]:
        """The texts that `submit` writes and sends."""
        return run_files.texts(plan, plan.text, plan.job)

    def marks(self, plan: SlurmPlan) -> tuple[str, ...]:
        """The spec, and the file that Slurm gets."""
        return ("spec.json", "step.sh" if plan.within else "job.sbatch")

    def write(self, plan: SlurmPlan, directory: Path) -> Written:
        """Write what a submission sends, to a directory that may be moved; `sbatch job.sbatch` in it does the rest."""
        return run_files.fill(plan, directory, run_files.texts(plan, plan.by_hand, plan.job._replace(may_move=True)))

    def submit(self, plan: SlurmPlan, record: Record = unrecorded) -> SlurmHandle:
        """Write the agent and the spec to the run directory, then call sbatch once; a late answer is looked up."""
        if plan.within is None:
            if shutil.which("sbatch") is None:
                raise control.no_sbatch()
            control.check_partition(self.opts.partition, plan.job.min_nodes, plan.text)
        if plan.job.wants_keyboard and shutil.which("srun") is None:
            raise BackendUnavailableError("srun is not on PATH: a worker's terminal needs it", hint=_NO_SRUN)
        run_files.fill(plan, plan.run_dir, self.render(plan))
        where = plan.job.output_dir or plan.job.cwd
        handle: SlurmHandle = {"run_dir": str(plan.run_dir), "nodes": len(plan.nodes), "output_dir": where}
        if plan.within:
            if useless := allocation.useless(self.opts):
                output.note(f"a step of job {plan.within.job_id}, whose own these are: {', '.join(useless)}")
            return allocation.start(handle, plan.job.cwd, plan.within, record)
        handle.update({"comment": f"distlaunch:{plan.run_dir.name}", "name": plan.name})
        record(handle)
        return _of_job(handle, control.send(self._jobs(), plan.run_dir))

    def recover(self, handle: SlurmHandle) -> SlurmHandle | None:
        """Find the job by its comment, except for `besides`, the job of an earlier attempt."""
        if "job_id" in handle:
            return handle
        job_id = self._jobs().by_comment(handle["comment"], handle.get("besides", ""))
        if job_id is None and not self._jobs().reached:
            raise BackendUnavailableError(self._jobs().refusal, hint=control.PING)
        return _of_job(handle, job_id) if job_id else None

    def requeue(self, handle: SlurmHandle, attempt: int, record: Record = unrecorded) -> SlurmHandle:
        """Have Slurm requeue a running job; submit the same file again for one that has ended or is ending."""
        if "step" in handle:
            raise RequestError(
                f"a step of job {handle['job_id']} cannot be requeued", hint="start it anew in the allocation"
            )
        run_dir, job_id = Path(handle["run_dir"]), job_of(handle)
        if requeue.requeued(self._jobs(), handle):
            return handle
        if "task" in handle:
            hint = f"launch it again with --array {handle['task']}"
            raise RequestError(f"task {handle['task']} has ended", hint=hint)
        trust.require("run", run_dir / "job.sbatch")  # another user's would be run as ours
        spec = storage.read_json(run_dir / "spec.json")
        if spec is None:
            raise StorageError(f"{run_dir / 'spec.json'} cannot be read")
        storage.write_whole(run_dir / "spec.json", storage.encode_json({**spec, "attempt": attempt}))
        begun: SlurmHandle = {**handle, "besides": job_id}
        del begun["job_id"]
        record(begun)
        return _of_job(handle, control.send(self._jobs(), run_dir, besides=job_id))

    def found(self) -> list[ClusterRun]:
        """The runs of all users in the queue, and those that have left it lately."""
        from launcher.backends.slurm import jobs

        return jobs.runs()

    def hosts(self) -> list[SurveyedHost]:
        """The cluster's nodes, as sinfo lists them."""
        from launcher.backends.slurm import nodes

        return nodes.found()

    def adopt(self, text: str, runs_root: Path) -> Run:
        """Find the run's job, and from it the run's directory."""
        from launcher.backends.slurm import adoption

        return adoption.adopt(text, runs_root, self.opts)

    def outlook(self, spec: JobSpec, gpus: int | None) -> Outlook:  # noqa: ARG002 - it has an option for GPUs
        """Three queries, the last one with the job file."""
        from launcher.backends.slurm import outlook

        found = outlook.capacity(self.opts.partition)
        here = SlurmBackend(replace(self.opts, new_job=True))
        return Outlook(found, outlook.start(here.plan(spec, Path(os.devnull, "run")).text))

    def liveness(self, handle: SlurmHandle) -> Liveness:
        """Query squeue, then sacct for a job that has left the queue; without accounting, such a job has ended."""
        return reported.liveness(handle, self._jobs)

    def open_stream(self, handle: SlurmHandle, offsets: Mapping[int, int] | None = None) -> FileStream:
        """The files that the agents write; reading them puts no load on the controller."""
        return FileStream(directory_of(handle), handle["nodes"], offsets or {}, job_output=True)

    def open_terminal(self, handle: SlurmHandle, node: int, rank: int | None) -> ProgramBridge:
        """Connect through srun on that node, inside the job."""
        trust.require("run", directory_of(handle) / "nodes" / str(node) / "agent.json")  # it names a program
        python = "python3" if self.opts.container_image else ""
        return allocation.terminal(handle, directory_of(handle), node, rank, python=python)

    def open_outputs(self, handle: SlurmHandle, node: int) -> SharedOutputs:  # noqa: ARG002 - the same for all nodes
        """The directory on the shared file system where the workers write."""
        return SharedOutputs(Path(handle["run_dir"]))

    def cancel(self, handle: SlurmHandle, *, force: bool = False) -> None:
        """Cancel a waiting job; signal the agents of a running one, which give the workers their grace time.

        A plain scancel would reach the workers before their agent could give them the deadline.
        """
        # Without it, URG means that the time limit is near.
        asked = os.path.exists(directory_of(handle) / "cancel.json")
        end = signal.SIGURG if asked else signal.SIGTERM
        if "step" in handle:
            allocation.send(handle, signal.SIGKILL if force else end)
            return
        job_id = job_of(handle)
        self._jobs().hurry()
        control.control("scontrol", "update", f"JobId={job_id}", "Requeue=0", check=False)  # no restart on preemption
        try:
            if force:
                steps.kill_all(job_id)
                control.cancel(job_id)
            else:
                control.cancel("--state=PENDING", job_id)
                control.cancel(f"--signal={end.name.removeprefix('SIG')}", "--state=RUNNING", job_id)
        except LaunchError as error:
            unsent = ("connect failure", "ermission denied")
            # Otherwise a signal may have reached the agents.
            error.in_part = not any(said in error.message for said in unsent)
            raise

    def signal(self, handle: SlurmHandle, signum: int) -> None:
        """Have Slurm signal every process of the step."""
        if "step" in handle:
            allocation.send(handle, signum)
        else:
            control.control("scancel", f"--signal={signal.Signals(signum).name.removeprefix('SIG')}", job_of(handle))

    def _jobs(self) -> Queue:
        from launcher.backends.slurm.submitit import Queue

        SlurmBackend._queue = SlurmBackend._queue or Queue()
        return SlurmBackend._queue


_NO_SRUN = "leave --interactive out, or run this where srun is"


def _of_job(handle: SlurmHandle, job_id: str) -> SlurmHandle:
    """The handle once the job's id is known."""
    found: SlurmHandle = {**handle, "job_id": job_id}
    found.pop("besides", None)
    return found


BACKEND = SlurmBackend
