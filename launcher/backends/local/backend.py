"""The local backend: every node is an agent process on this machine, on the loopback address."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from launcher import output
from launcher.agent.failures import Failure
from launcher.agent.job import LOOPBACK
from launcher.backends._base import Backend, Record, Written, unrecorded
from launcher.backends._files import FileStream
from launcher.backends._plan import PlannedNode
from launcher.backends._roles import names_of, parts_of_nodes, with_roles
from launcher.backends._writing import forget_beside, write_beside, write_files
from launcher.backends.local import gpus, processes, programs, starting
from launcher.backends.local.handle import LocalHandle
from launcher.backends.local.options import LocalOptions
from launcher.backends.local.plan import LocalPlan, by_hand, spec_text
from launcher.errors import CommandError, RequestError, SpecError, StorageError
from launcher.payload import agent_archive, scripts
from launcher.runs.liveness import Liveness
from launcher.system import batch, input_file, storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.agent.messages import Rendezvous
    from launcher.backends._outlook import Outlook
    from launcher.backends._outputs import SharedOutputs
    from launcher.results.cluster import SurveyedHost
    from launcher.results.run import ClusterRun
    from launcher.results.warm import WarmServer
    from launcher.runs.records import Run
    from launcher.spec import JobSpec
    from launcher.system.pipes import Bridge

_END_BYTES = 128 * 1024
_FAREWELL_S = 10.0
"""How long an agent may take to exit after its final event."""

_BEGINS_S = 60.0
"""How long a signal waits for agents that have not begun."""


class LocalBackend(Backend[LocalPlan, LocalHandle, LocalOptions]):
    """Runs on this machine; each simulated node has its own agent."""

    name: ClassVar[str] = "local"
    can_requeue: ClassVar[bool] = True
    can_adopt: ClassVar[bool] = True
    can_list: ClassVar[bool] = True
    can_survey: ClassVar[bool] = True
    can_keep: ClassVar[bool] = True
    has_outlook: ClassVar[bool] = True
    has_terminals: ClassVar[bool] = True
    has_outputs: ClassVar[bool] = True
    shares_outputs: ClassVar[bool] = True
    ask_every_s: ClassVar[float] = 1.0
    is_here: ClassVar[bool] = True
    options: ClassVar[type] = LocalOptions

    def plan(self, spec: JobSpec, run_dir: Path) -> LocalPlan:
        """One agent per node, each with an equal share of the GPUs."""
        if spec.nodes.max > 1000:  # each takes about 18 MiB of memory
            raise SpecError(f"nodes {spec.nodes}: this machine simulates at most 1000", hint="use a cluster for more")
        if inside := batch.found(os.environ):
            output.warn(f"local uses only this host of {inside.text}; all of them: {inside.way_out}")
        python = programs.find_python(spec)
        for part in spec.parts:
            programs.find_program(part, python)
        nodes = spec.nodes.max
        env = {**os.environ, **spec.env}
        variable, shares = (gpus.shares(nodes, env) if not self.opts.share_gpus else None) or ("", [])

        def workers(part: JobSpec) -> int:
            if part.workers_per_node != "auto":
                return part.workers_per_node
            return gpus.workers(shares[0] if shares else gpus.ids(env), part)

        meet: Rendezvous = {"file": str(run_dir / "rendezvous.json")}
        job = spec.job(run=run_dir.name, directory=str(run_dir), rendezvous=meet)._replace(
            master_addr=LOOPBACK,
            workers=workers(spec),
            sigterm_means=Failure.CANCELLED,
            output_dir=spec.cwd,
            shares_host=nodes > 1,
            node_env=[{variable: ",".join(ids)} for ids in shares] or None,
        )
        job = with_roles(job, spec, lambda part: {"workers": workers(part)})
        host, of_nodes = os.uname().nodename, zip(parts_of_nodes(spec), names_of(spec), strict=True)
        rows = tuple(
            PlannedNode(node_rank=rank, host=host, workers=workers(part), role=name)
            for rank, (part, name) in enumerate(of_nodes)
        )
        return LocalPlan(run_dir=run_dir, python=python, job=job, nodes=rows)

    def render(self, plan: LocalPlan) -> Mapping[str, str]:
        """`spec.json`, and a shell script that runs the same agents by hand."""
        return {"spec.json": spec_text(plan.job), "start.sh": by_hand(plan)}

    def write(self, plan: LocalPlan, directory: Path) -> Written:
        """Write what a submission sends, plus a bundled script, to a directory that may move; `sh start.sh` runs it."""
        job = plan.job._replace(may_move=True)
        more = {"agent.pyz": agent_archive.packed()}
        if any(scripts.is_bundled(command[0]) for command in job.commands):
            job = job.with_files(
                lambda path: str(plan.run_dir / "payload" / Path(path).name) if scripts.is_bundled(path) else path
            )
            more |= scripts.contents()
        texts = {**self.render(plan), "spec.json": spec_text(job)}
        forget_beside(directory, job)
        write_files(directory, {name: text.encode(errors="surrogateescape") for name, text in texts.items()} | more)
        return Written(texts, (*more, *write_beside(directory, job)))

    def submit(self, plan: LocalPlan, record: Record = unrecorded) -> LocalHandle:
        """Write the spec and the agent, start one detached agent per node."""
        with storage.storage_errors(plan.run_dir):
            (plan.run_dir / "spec.json").write_text(spec_text(plan.job), encoding="utf-8")
            (plan.run_dir / "agent.pyz").write_bytes(agent_archive.packed())
        write_beside(plan.run_dir, plan.job)
        job, count = plan.job, len(plan.nodes)
        handle = starting.handle_of(plan.run_dir, plan.python, job.cwd, count)
        starting.start(handle, record, stdin=job.passes_stdin, warm_s=job.warm_s)
        return handle

    def recover(self, handle: LocalHandle) -> LocalHandle | None:
        """The handle, if any agent has begun: each is recorded before it begins, and then records itself."""
        return handle if any(agent.begun for agent in processes.of(handle)) else None

    def found(self) -> list[ClusterRun]:
        """The runs of all users whose agents run on this machine."""
        from launcher.backends.local import here

        return here.found()

    def hosts(self) -> list[SurveyedHost]:
        """This machine."""
        from launcher.backends.local import here

        return [here.surveyed()]

    def standing(self, *, end: bool) -> list[WarmServer]:
        """What stands on this machine."""
        from launcher.backends import _warm

        return _warm.here(end=end)

    def adopt(self, text: str, runs_root: Path) -> Run:
        """Find the run by its agents; its directory stays where it is."""
        from launcher.backends.local import here

        return here.adopt(text, runs_root)

    def outlook(self, spec: JobSpec, gpus: int | None) -> Outlook:  # noqa: ARG002 - every job starts at once
        """This machine, which has no queue."""
        from launcher.backends.local import here

        return here.outlook(gpus)

    def requeue(self, handle: LocalHandle, attempt: int, record: Record = unrecorded) -> LocalHandle:
        """Start the same agents again once all have exited; wait for those that have sent their final event."""
        run_dir = Path(handle["run_dir"])
        limit = time.monotonic() + _FAREWELL_S
        while alive := [agent for agent in processes.of(handle) if agent.living()]:
            if time.monotonic() > limit or not all(_is_done(agent.directory / "stream") for agent in alive):
                raise RequestError("its agents still run", hint=f"distlaunch cancel {run_dir.name}")
            time.sleep(0.02)
        job = storage.read_json(run_dir / "spec.json")
        if job is None:
            raise StorageError(f"{run_dir / 'spec.json'} cannot be read")
        again = {"attempt": attempt, "session": str(attempt), "terminal": None}  # the user may not be at the terminal
        storage.write_whole(run_dir / "spec.json", storage.encode_json({**job, **again}))
        stays_s, nodes = job.get("warm_s", 0.0), len(handle["agents"])
        new = starting.handle_of(run_dir, handle["python"], job["cwd"], nodes)
        starting.start(new, record, warm_s=stays_s)
        return new

    def liveness(self, handle: LocalHandle) -> Liveness:
        """Which agents still run, by pid and start time."""
        return Liveness(nodes=tuple("running" if agent.living() else "ended" for agent in processes.of(handle)))

    def left(self, handle: LocalHandle) -> str:
        """The pids of the remaining processes."""
        pids = [str(identity.pid) for agent in processes.of(handle) for identity in agent.living()]
        return f"pids {', '.join(pids)}" if pids else ""

    def open_stream(self, handle: LocalHandle, offsets: Mapping[int, int] | None = None) -> FileStream:
        """The stream files that the agents write."""
        return FileStream(Path(handle["run_dir"]), len(handle["agents"]), offsets or {})

    def open_terminal(self, handle: LocalHandle, node: int, rank: int | None) -> Bridge:
        """Connect directly to the agent's socket; a shell is a program."""
        from launcher.agent.terminal import attach
        from launcher.system.pipes import Bridge, ProgramBridge

        if rank is None:
            directory = f"{handle['run_dir']}/nodes/{node}"
            shell = ProgramBridge((handle["python"], f"{handle['run_dir']}/agent.pyz", "--shell", directory))
            shell.wait_for(attach.CONNECTED, _FAREWELL_S)
            return shell
        try:
            return Bridge(attach.connect(f"{handle['run_dir']}/nodes/{node}", rank))
        except attach.NOT_THERE as error:
            raise CommandError(f"rank {rank} has no terminal: {error}") from error

    def open_outputs(self, handle: LocalHandle, node: int) -> SharedOutputs:  # noqa: ARG002 - the same for all nodes
        """The directory where the workers write."""
        from launcher.backends._outputs import SharedOutputs  # few runs fetch files

        return SharedOutputs(Path(handle["run_dir"]))

    def cancel(self, handle: LocalHandle, *, force: bool = False) -> None:
        """Send SIGTERM to every agent; `force`: a second one, on which agents kill their workers, then SIGKILL."""
        agents = processes.of(handle)
        for agent in agents:
            agent.send(signal.SIGTERM)
        if force:
            processes.force(agents)
        for agent in agents:
            if not agent.living():
                agent.remove_cgroup()

    def signal(self, handle: LocalHandle, signum: int) -> None:
        """Signal every agent, which passes the signal on; it waits for those that have only just been started."""
        if signum == self.asks_for_stacks:  # an agent that has not begun has none
            for agent in processes.of(handle):
                agent.ask(signum)
        else:
            processes.ask(processes.of(handle), signum, patience_s=_BEGINS_S)


def _is_done(stream: Path) -> bool:
    """Whether an agent has sent its final event; it may not have exited yet."""
    try:
        last = input_file.end_of(stream, _END_BYTES).splitlines()[-1:]
    except OSError:
        return False
    return bool(last) and last[0].startswith(b'{"event":"done"')


BACKEND = LocalBackend
