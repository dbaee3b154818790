"""Bare metal over SSH: Ansible's playbooks start one detached agent per host; from then on, plain ssh follows it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from launcher import output
from launcher.agent.failures import Failure
from launcher.backends._base import Backend, Record, Written, unrecorded
from launcher.backends._writing import write_secrets
from launcher.backends.ansible import ansible_config as config
from launcher.backends.ansible import by_hand, inventory, planning, playbook, questions, ssh
from launcher.backends.ansible.handle import AnsibleHandle
from launcher.backends.ansible.lost import is_lost
from launcher.backends.ansible.offsets import continue_streams
from launcher.backends.ansible.options import AnsibleOptions
from launcher.backends.ansible.packing import Packing
from launcher.backends.ansible.plan import AnsiblePlan
from launcher.backends.ansible.start import forget, on_record, recover, start, target
from launcher.backends.ansible.stream import FETCH_S, HostStreams, fetch
from launcher.errors import BackendUnavailableError, RequestError
from launcher.login.connection import Login
from launcher.runs import directories, records
from launcher.runs.liveness import Liveness
from launcher.settings.job_checks import check_secrets_here
from launcher.spec import NodeRange
from launcher.system import storage
from launcher.system.dataclass import asdict
from launcher.system.hosts import lines as hosts_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.backends._outlook import Outlook
    from launcher.backends._outputs import RemoteOutputs
    from launcher.payload.snapshot import Snapshot
    from launcher.results.cluster import SurveyedHost
    from launcher.results.run import ClusterRun
    from launcher.results.warm import WarmServer
    from launcher.runs.liveness import NodeState
    from launcher.spec import JobSpec
    from launcher.system.pipes import Bridge


class AnsibleBackend(Backend[AnsiblePlan, AnsibleHandle, AnsibleOptions]):
    """Hosts with SSH, Python and torch; they need nothing else."""

    name: ClassVar[str] = "ansible"
    can_requeue: ClassVar[bool] = True
    can_adopt: ClassVar[bool] = True
    can_list: ClassVar[bool] = True
    can_survey: ClassVar[bool] = True
    can_keep: ClassVar[bool] = True
    has_outlook: ClassVar[bool] = True
    has_terminals: ClassVar[bool] = True
    has_outputs: ClassVar[bool] = True
    ask_every_s: ClassVar[float] = 1.0
    options: ClassVar[type] = AnsibleOptions

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._streams: HostStreams | None = None

    @property
    def login(self) -> Login | None:
        """The login node that reaches the hosts."""
        return Login.of(self.opts.login, self.cluster)

    def settings_files(self) -> list[str]:
        """Ansible's settings file, and the inventories."""
        cwd = os.getcwd()
        return [*filter(None, [config.find(cwd)]), *inventory.files(self.opts.inventory, cwd)]

    def plan(self, spec: JobSpec, run_dir: Path) -> AnsiblePlan:
        """Ask Ansible for the hosts, and collect the files that would be sent; connects to no host."""
        return planning.plan(self.opts, spec, run_dir, self.login)

    def files(self, plan: AnsiblePlan) -> Snapshot | None:
        """The files that are sent to each host that lacks them."""
        return plan.snapshot

    def render(self, plan: AnsiblePlan) -> Mapping[str, str]:
        """The directory's text files; start.sh runs them by hand."""
        return playbook.texts(plan)

    def marks(self, plan: AnsiblePlan) -> tuple[str, ...]:  # noqa: ARG002 - the same for all plans
        """The agents' job, and the script that starts the run."""
        return ("job.json", "start.sh")

    def payload(self, plan: AnsiblePlan) -> Mapping[str, bytes]:
        """The agent and the user's files."""
        import io

        found = playbook.payload(plan)
        if plan.snapshot is not None:
            packed = io.BytesIO()
            plan.snapshot.write_tar(packed, compress=True)
            found["files.tar.gz"] = packed.getvalue()
        return found

    def write(self, plan: AnsiblePlan, directory: Path) -> Written:
        """Write what a submission sends; `sh start.sh` runs its playbook."""
        written = super().write(plan, directory)
        by_hand.forget(plan, directory)  # only now, as the directory may be among the files that are sent
        return Written(written.texts, (*written.more, *write_secrets(directory, plan.job)))

    def submit(self, plan: AnsiblePlan, record: Record = unrecorded) -> AnsibleHandle:
        """Run start.yml: preflight, files, node 0, all others at once. If one host cannot start, none stays running."""
        check_secrets_here(plan.job_secrets)
        self._log_in()
        playbook.write(plan, plan.run_dir / "ansible")
        hosts = [node.host for node in plan.nodes]
        packing = Packing(plan.snapshot, plan.run_dir / "ansible") if plan.snapshot else None
        try:
            if packing and plan.spares:  # one that replaces a host may lack the files
                packing.wait()
            record({"run_dir": str(plan.run_dir), "hosts": hosts})
            packs = None if plan.spares else packing
            return on_record(start(plan.run_dir, hosts, plan.job_secrets, self.login, packs), record)
        finally:
            if packing and not plan.spares:
                packing.end()

    def recover(self, handle: AnsibleHandle) -> AnsibleHandle | None:
        """The hosts that may have been asked to start, by what they had answered until then."""
        if "nodes" in handle:
            return handle
        found = recover(Path(handle["run_dir"]), handle["hosts"], self.login)
        if found and "streams" in handle:
            continue_streams(found["nodes"], handle["streams"])
        return found and {**handle, **found}

    def undo(self, handle: AnsibleHandle) -> None:
        """End it on all hosts that were asked to start; one that does not answer may still run its agent."""
        super().undo(handle)
        forget(Path(handle["run_dir"]))

    def restarts_left(self, handle: AnsibleHandle) -> int:
        """With spares, those of `--max-restarts`."""
        job = storage.read_json(Path(handle["run_dir"]) / "ansible/job.json") or {}
        return max(0, int(job.get("max_restarts", 0)) - handle.get("restarts", 0)) if self.opts.spares else 0

    def requeue(self, handle: AnsibleHandle, attempt: int, record: Record = unrecorded) -> AnsibleHandle:
        """Start the run again on the first of its hosts and spares that can take part now."""
        from launcher.backends.ansible import requeue  # few commands need it

        ssh.reach(handle)
        return requeue.requeue(self.opts, handle, attempt, record, self.login)

    def found(self) -> list[ClusterRun]:
        """Running runs of all users, by the hosts' leases and by the run directories that we can read."""
        from launcher.backends.ansible import survey  # few commands need it

        return survey.runs(self._ask("survey.yml", {"distlaunch_do": "list"})[1])

    def hosts(self) -> list[SurveyedHost]:
        """Ask all hosts of the inventory."""
        from launcher.backends.ansible import survey

        return survey.surveyed(*self._ask("survey.yml", {"distlaunch_do": "survey"}))

    def standing(self, *, end: bool) -> list[WarmServer]:
        """Ask all hosts of the inventory."""
        from launcher.backends.ansible import survey

        return survey.standing(*self._ask("standing.yml", {"distlaunch_force": end}), end=end)

    def outlook(self, spec: JobSpec, gpus: int | None) -> Outlook:
        """Ask all hosts of the inventory for their leases and GPUs."""
        from launcher.backends.ansible import survey

        return survey.outlook(self.hosts(), spec, gpus)

    def _log_in(self) -> None:
        """Raise `NotLoggedInError` before anything else is done."""
        if self.login:
            self.login.words()

    def _ask(self, name: str, variables: Mapping[str, Any]) -> tuple[list[inventory.Host], playbook.Playbook]:
        """The hosts of the inventory, and that playbook after its run on all of them."""
        cwd = os.getcwd()
        sources = inventory.sources(self.opts.inventory, cwd)
        settings = config.variables(sources, cwd, 1)
        hosts = inventory.hosts(sources, self.opts.limit, settings, exclude=self.opts.exclude)
        more = {**planning.common(self.opts, cwd, self.login), **variables}
        self._log_in()
        return hosts, questions.ask(name, sources, hosts, settings, more)

    def adopt(self, text: str, runs_root: Path) -> records.Run:
        """Ask all hosts of the inventory for the run."""
        from launcher.backends.ansible import adoption  # few commands need it

        found = adoption.look(text, *self._ask("find.yml", {"distlaunch_do": "find", "distlaunch_run": text}))
        path = runs_root / found.run
        if path.exists():
            raise RequestError(f"{found.run} is already known here", hint=f"distlaunch status {found.run}")
        made = records.Run(
            id=found.run,
            path=path,
            created=directories.created(found.run),
            backend=self.name,
            options=asdict(self.opts),
            command=tuple(found.job["command"]),
            cwd=found.job.get("cwd", ""),
            nodes=str(NodeRange(min=found.job["min_nodes"], max=found.job["max_nodes"])),
            plan={
                "nodes": found.planned,
                "min_nodes": found.job["min_nodes"],
                "grace_s": found.job.get("grace_s", 30.0),
            },
            handle=found.handle(path, self.login),
        )
        records.create(made)
        return made

    def liveness(self, handle: AnsibleHandle) -> Liveness:
        """What the hosts report over open connections; without any, each is asked once, and its stream fetched."""
        if not self._streams:
            ssh.reach(handle)
        tails = self._streams.tails if self._streams else fetch(handle, FETCH_S)
        states: list[NodeState] = ["ended"] * len(handle["hosts"])
        causes: dict[int, dict[str, Any]] = {}
        lost = [tail for tail in tails if not tail.finished and (tail.lost_at is not None or tail.state == "unknown")]
        for tail in tails:
            rank = tail.node["rank"]
            states[rank] = "unknown" if tail in lost else tail.state
            if tail in lost and is_lost(tail, tails):
                states[rank] = "ended"
                message = f"host {tail.node['host']} does not answer any more: {tail.problem}"
                causes[rank] = {"class": Failure.NODE, "message": message}
            elif tail.state == "ended" and tail.ending.get("message"):
                causes[rank] = {"class": Failure.NODE, "message": f"host {tail.node['host']}: {tail.ending['message']}"}
        detail = "; ".join(hosts_lines({tail.node["host"]: tail.problem for tail in lost if tail.problem}))
        return Liveness(nodes=tuple(states), detail=f"no connection to {detail}" if detail else "", causes=causes)

    def refresh(self, handle: AnsibleHandle) -> None:
        """Fetch what is new; warns about hosts that do not answer, of which only earlier output is here."""
        try:
            ssh.reach(handle)
        except BackendUnavailableError as error:
            output.warn(f"{error.message}; this is what came before")
            return
        lost = {tail.node["host"]: tail.problem for tail in fetch(handle, FETCH_S) if not tail.finished}
        for line in hosts_lines(lost):
            output.warn(f"no connection to {line}; this is what came before")

    def open_stream(self, handle: AnsibleHandle, offsets: Mapping[int, int] | None = None) -> HostStreams:
        """One connection per host, resumed where it broke."""
        ssh.reach(handle)
        self._streams = HostStreams(handle, offsets or {})
        return self._streams

    def open_terminal(self, handle: AnsibleHandle, node: int, rank: int | None) -> Bridge:
        """A second connection, besides the one that follows the node."""
        ssh.reach(handle)
        return ssh.terminal(next(found for found in handle["nodes"] if found["rank"] == node), rank)

    def open_outputs(self, handle: AnsibleHandle, node: int) -> RemoteOutputs:
        """One more connection to the node's host."""
        ssh.reach(handle)
        return ssh.outputs(next(found for found in handle["nodes"] if found["rank"] == node))

    def cancel(self, handle: AnsibleHandle, *, force: bool = False) -> None:
        """SIGTERM to every agent; `force`: agents kill their workers at once, or are killed."""
        self._send(handle, signal.SIGTERM, *(("--force",) if force else ()))

    def remove(self, handle: AnsibleHandle) -> None:
        """Remove the run's directory on each of its hosts."""
        ssh.reach(handle)
        ssh.check(ssh.call_all(handle, lambda node: ssh.ask(node, "remove", str(node["directory"]))))

    def signal(self, handle: AnsibleHandle, signum: int) -> None:
        """Send the signal to every agent, which forwards it to its workers."""
        self._send(handle, signum)

    def _send(self, handle: AnsibleHandle, signum: int, *more: str) -> None:
        ssh.reach(handle)
        ssh.check(ssh.call_all(handle, lambda node: ssh.call(node, "signal", *target(node), str(int(signum)), *more)))


BACKEND = AnsibleBackend
