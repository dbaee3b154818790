"""Bare metal over SSH: Ansible's playbooks start one detached agent per host; ssh alone follows it from then on."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from launcher import bundle, output, proc, runs, snapshot, storage, trust
from launcher.agent.failures import may_come_back
from launcher.agent.guess import SURELY
from launcher.agent.program import Program
from launcher.backends import _ansible_config as config
from launcher.backends import _ansible_inventory as inventory
from launcher.backends import _ansible_playbook as playbook
from launcher.backends import _ansible_ssh as ssh
from launcher.backends._ansible_start import forget, recover, start, target
from launcher.backends._ansible_stream import HostStreams, fetch
from launcher.backends._base import Backend, Handle, Liveness, PlannedNode, Record, unrecorded
from launcher.errors import BackendUnavailableError, CommandError, RequestError, SpecError
from launcher.options import not_below, option
from launcher.spec import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.backends._ansible_stream import Tail
    from launcher.backends._base import NodeState
    from launcher.outcome import Outcome
    from launcher.snapshot import Snapshot
    from launcher.spec import JobSpec

_FETCH_S = 25.0
_LOST_S = 45.0
"""A host that is silent for so long is lost, if another has seen the run's end: its own peers gave it up after 30 s. So it is if
the nodes have never met: then none of them would miss it."""

_TAIL_BYTES = 256 * 1024
"""More than a node has to say before it has met the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsibleOptions:
    """Which hosts, and what goes there."""

    inventory: tuple[str, ...] = option(
        (),
        metavar="PATH|H1,H2,",
        flags=("-i", "--inventory"),
        help="Ansible inventory, or hosts with commas; else ansible.cfg's.",
        executes=True,
        path="whole",
    )
    limit: str = option("", metavar="PATTERN", help="Only these hosts or groups of the inventory.")
    exclude: str = option("", metavar="H1,H2", help="Hosts of the inventory that must not be.")
    spares: int = option(
        0,
        metavar="K",
        help="Further hosts that take the places of those that cannot take part, or are lost.",
        check=not_below("spares"),
    )
    remote_dir: str = option(
        "~/.distlaunch/hosts", metavar="DIR", help="Folder on the hosts for agents, files and runs.", executes=True
    )
    snapshot_limit: str = option(
        "200MB",
        metavar="SIZE",
        help="Most that is sent of the working folder.",
        check=lambda text: parse_size(text, "snapshot-limit"),
    )
    in_place: bool = option(False, help="The hosts see the working folder: use it, send no files.", executes=True)
    host_timeout: int = option(
        120, metavar="SECONDS", help="How long one step may take on a host.", check=not_below("host-timeout", 1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsiblePlan:
    """The folder that ansible-runner gets."""

    run_dir: Path
    inventory: tuple[str, ...]
    settings: dict[str, str]
    """Ansible's, as environment variables."""

    variables: dict[str, Any]
    """Extra variables of the playbook."""

    job: dict[str, Any]
    """What the agents are asked; the hosts add their own paths."""

    job_secrets: tuple[str, ...]
    snapshot: Snapshot | None
    nodes: tuple[PlannedNode, ...]
    spares: tuple[str, ...]

    @property
    def master(self) -> str:
        """The first address of node 0 that the others reach."""
        return f"{self.nodes[0].host}:{self.job['master_port'] or 'chosen at start'}"

    def to_json(self) -> dict[str, Any]:
        """Variables, settings, the agents' job, and the files by digest."""
        files = None
        if self.snapshot is not None:
            files = {"digest": self.snapshot.digest, "bytes": self.snapshot.total_bytes, "files": len(self.snapshot.files)}
        return {
            "variables": self.variables,
            "settings": self.settings,
            "spec": self.job,
            "snapshot": files,
            "spares": list(self.spares),
        }


class AnsibleBackend(Backend[AnsiblePlan]):
    """Hosts with SSH, Python and torch; nothing else is asked of them."""

    name: ClassVar[str] = "ansible"
    ask_every_s: ClassVar[float] = 1.0
    summary: ClassVar[str] = "Run on hosts over SSH, from an Ansible inventory."
    options: ClassVar[type] = AnsibleOptions

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._streams: HostStreams | None = None

    def settings_files(self) -> list[str]:
        """Ansible's, and inventories."""
        cwd = os.getcwd()
        return [*filter(None, [config.find(cwd)]), *inventory.files(self.opts.inventory, cwd)]

    def plan(self, spec: JobSpec, run_dir: Path) -> AnsiblePlan:
        """Asks Ansible for the hosts, and looks at the files that would be sent; connects to nobody."""
        sources = inventory.sources(self.opts.inventory, spec.cwd)
        settings = config.variables(sources, spec.cwd, 1)
        playbook.prepare()
        found = inventory.hosts(sources, self.opts.limit, settings, exclude=self.opts.exclude)
        wanted = len(found) - self.opts.spares if spec.all_nodes else spec.nodes.max
        if self.opts.spares < 0 or not 1 <= wanted <= len(found) - self.opts.spares:
            spares = f" and {self.opts.spares} spares" if self.opts.spares else ""
            raise SpecError(
                f"{wanted} nodes{spares} are asked for, and the inventory has {len(found)} host{'s' * (len(found) != 1)}",
                hint="hosts: " + ", ".join(host.name for host in found[:20]),
            )
        chosen = found[: wanted + self.opts.spares]
        files, command = self._files(spec, run_dir.parent)
        workers = None if spec.workers_per_node == "auto" else spec.workers_per_node
        least = wanted if spec.all_nodes else spec.nodes.min
        variables: dict[str, Any] = {
            "distlaunch_run": run_dir.name,
            "distlaunch_hosts": [host.name for host in chosen],
            "distlaunch_nodes": wanted,
            "distlaunch_least_nodes": least,
            "distlaunch_dir": self.opts.remote_dir,
            "distlaunch_trust": list(trust.words()),
            "distlaunch_here": spec.cwd,
            "distlaunch_digest": files.digest if files else "",
            "distlaunch_payload_bytes": files.total_bytes if files else 0,
            "distlaunch_cwd": "" if files else spec.cwd,
            "distlaunch_secrets": list(spec.secrets),
            "distlaunch_timeout_s": self.opts.host_timeout,
            "distlaunch_torch": spec.nodes.elastic or Program(list(spec.command), spec.kind, spec.cwd).wants_torch() == SURELY,
        }
        variables |= {"distlaunch_python": spec.python} if spec.python else {}
        variables |= {"distlaunch_workers": workers} if workers else {}
        shared = spec.for_agents()
        del shared["cwd"], shared["workers"]  # decided host by host
        job: dict[str, Any] = {
            **shared,
            "run": run_dir.name,
            "command": command,
            "min_nodes": least,
            "max_nodes": wanted,
            "sigterm_means": "cancelled",
        }
        return AnsiblePlan(
            run_dir=run_dir,
            inventory=sources,
            settings=settings | {"ANSIBLE_FORKS": str(len(chosen))},
            variables=variables,
            job=job,
            job_secrets=spec.secrets,
            snapshot=files,
            nodes=tuple(
                PlannedNode(node_rank=rank, host=host.name, workers=workers or host.workers)
                for rank, host in enumerate(chosen[:wanted])
            ),
            spares=tuple(host.name for host in chosen[wanted:]),
        )

    def _files(self, spec: JobSpec, runs_root: Path) -> tuple[Snapshot | None, list[str]]:
        """What is sent, and the command as it is there: the workers start at the top of what was sent."""
        command, also = list(spec.command), []
        bundled = spec.kind == "script" and Path(command[0]).parent == bundle.data("train")
        if self.opts.in_place and not bundled:
            return None, command
        root = Path(spec.cwd)
        if spec.kind == "script":
            script = Path(os.path.abspath(os.path.join(spec.cwd, command[0])))
            root = script.parent if bundled or not script.is_relative_to(root) else root
            command[0] = str(script.relative_to(root))
            also = [command[0]]
        limit = parse_size(self.opts.snapshot_limit, "snapshot-limit")
        found = snapshot.collect(root, limit_bytes=limit, also=also, leave_out=[runs_root], ship_secrets=spec.ship_secrets)
        for warning in found.warnings:
            output.warn(warning)
        return found, command

    def files(self, plan: AnsiblePlan) -> Snapshot | None:
        """What goes to each host that does not have it."""
        return plan.snapshot

    def render(self, plan: AnsiblePlan) -> Mapping[str, str]:
        """The folder's text files; start.sh runs them by hand."""
        return playbook.texts(plan)

    def marks(self, plan: AnsiblePlan) -> tuple[str, ...]:  # noqa: ARG002 - the same for all plans
        """What the agents are asked, and the command."""
        return ("job.json", "start.sh")

    def payload(self, plan: AnsiblePlan) -> Mapping[str, bytes]:
        """The agent, and the user's files."""
        import io

        found = playbook.payload(plan)
        if plan.snapshot is not None:
            packed = io.BytesIO()
            plan.snapshot.write_tar(packed, compress=True)
            found["files.tar.gz"] = packed.getvalue()
        return found

    def submit(self, plan: AnsiblePlan, record: Record = unrecorded) -> Handle:
        """Run start.yml: preflight, files, node 0, all others at once. Where one host cannot start, none is left running."""
        missing = [name for name in plan.job_secrets if name not in os.environ]
        if missing:
            raise SpecError(f"secret {missing[0]}: no such variable here", hint=f"export {missing[0]} first")
        playbook.write(plan, plan.run_dir / "ansible")
        hosts = [node.host for node in plan.nodes]
        record({"run_dir": str(plan.run_dir), "hosts": hosts})
        try:
            return _on_record(start(plan.run_dir, hosts, plan.job_secrets), record)
        finally:
            if not plan.spares:  # a host that takes another's place needs them
                with suppress(OSError):
                    (plan.run_dir / "ansible/files.tar.gz").unlink()

    def recover(self, handle: Handle) -> Handle | None:
        """The hosts that may have been told to start, by what they had answered until then."""
        return handle if "nodes" in handle else recover(Path(handle["run_dir"]), handle["hosts"])

    def undo(self, handle: Handle) -> None:
        """On all hosts that were told to start; one that does not answer may still run its agent."""
        super().undo(handle)
        forget(Path(handle["run_dir"]))

    def goes_on(self, handle: Handle, outcome: Outcome) -> bool:
        """With spares, as long as there are restarts: when a host was lost, or the way to it."""
        job = storage.read_json(Path(handle["run_dir"]) / "ansible/job.json") or {}
        left = int(job.get("max_restarts", 0)) - int(job.get("attempt", 0))
        return self.opts.spares > 0 and left > 0 and outcome.state == "failed" and may_come_back(outcome.cause)

    def requeue(self, handle: Handle, attempt: int, record: Record = unrecorded) -> Handle:
        """Start it again, on the first of its hosts and spares that can take part now."""
        run_dir = Path(handle["run_dir"])
        if "running" in (tail.state for tail in fetch(handle, _FETCH_S)):
            raise RequestError("its agents still run", hint="distlaunch cancel RUN")
        job = storage.read_json(run_dir / "ansible/job.json")
        variables = storage.read_json(run_dir / "ansible/env/extravars")
        if job is None or variables is None:
            raise BackendUnavailableError("it was started from another machine", hint="distlaunch requeue RUN there")
        storage.write_whole(run_dir / "ansible/job.json", storage.encode_json({**job, "attempt": attempt, "why_again": "failed"}))
        forget(run_dir)
        here = [_size(run_dir / "nodes" / str(rank) / "stream") for rank in range(len(handle["hosts"]))]
        record({"run_dir": str(run_dir), "hosts": handle["hosts"]})
        started = start(run_dir, handle["hosts"], variables["distlaunch_secrets"])
        before = {(node["host"], node["rank"]): node for node in handle["nodes"]}
        for node in started["nodes"]:
            known = before.get((node["host"], node["rank"]))
            node["stream_from"] = (here[node["rank"]], node["agent"]["stream_from"])
            if known is not None:
                node["stream_from"] = known.get("stream_from", (0, 0))
        return _on_record(started, record)

    def adopt(self, text: str, runs_root: Path) -> runs.Run:
        """Ask all hosts of the inventory for the run."""
        from launcher.backends import _ansible_adopt  # few commands need it

        cwd = os.getcwd()
        sources = inventory.sources(self.opts.inventory, cwd)
        settings = config.variables(sources, cwd, 1)
        hosts = inventory.hosts(sources, self.opts.limit, settings, exclude=self.opts.exclude)
        more: dict[str, Any] = {"distlaunch_dir": self.opts.remote_dir, "distlaunch_timeout_s": self.opts.host_timeout}
        more |= {"distlaunch_trust": list(trust.words()), "distlaunch_here": cwd}
        found = _ansible_adopt.look(text, sources, hosts, settings, more)
        path = runs_root / found.run
        if path.exists():
            raise RequestError(f"{found.run} is known here already", hint=f"distlaunch status {found.run}")
        made = runs.Run(
            id=found.run,
            path=path,
            created=runs.created(found.run),
            backend=self.name,
            options=asdict(self.opts),
            command=tuple(found.job["command"]),
            cwd=found.job.get("cwd", ""),
            nodes=str(found.job["max_nodes"]),
            plan={"nodes": found.planned, "min_nodes": found.job["min_nodes"], "grace_s": found.job.get("grace_s", 30.0)},
            handle=found.handle(path),
        )
        runs.create(made)
        return made

    def liveness(self, handle: Handle) -> Liveness:
        """What the hosts said over the open connections; without such, each is asked once, and its stream fetched."""
        tails = self._streams.tails if self._streams else fetch(handle, _FETCH_S)
        states: list[NodeState] = ["ended"] * len(handle["hosts"])
        causes: dict[int, dict[str, Any]] = {}
        lost = [tail for tail in tails if not tail.finished and (tail.lost_at is not None or tail.state == "unknown")]
        for tail in tails:
            rank = tail.node["rank"]
            states[rank] = "unknown" if tail in lost else tail.state
            if tail in lost and self._given_up(tail, tails):
                states[rank] = "ended"
                message = f"host {tail.node['host']} does not answer any more: {tail.problem}"
                causes[rank] = {"class": "node", "message": message}
            elif tail.state == "ended" and tail.ending.get("message"):
                causes[rank] = {"class": "node", "message": f"host {tail.node['host']}: {tail.ending['message']}"}
        detail = "; ".join(f"{tail.node['host']}: {tail.problem}" for tail in lost[:5] if tail.problem)
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        return Liveness(nodes=tuple(states), detail=f"no connection to {detail}{more}" if detail else "", causes=causes)

    def refresh(self, handle: Handle) -> None:
        """Fetch what is new; of hosts that do not answer there is what was fetched before, which is said."""
        for tail in fetch(handle, _FETCH_S):
            if not tail.finished:
                output.warn(f"no connection to {tail.node['host']}: {tail.problem}; this is what came before")

    def _given_up(self, tail: Tail, tails: Sequence[Tail]) -> bool:
        """Whether a host that does not answer is lost to the run: others of its nodes have ended without it, or wait for it."""
        silent = tail.lost_at is not None and time.monotonic() - tail.lost_at > _LOST_S
        ended = any(other is not tail and other.state == "ended" for other in tails)
        return silent and (ended or not any(map(_has_met, tails)))

    def open_stream(self, handle: Handle, offsets: Mapping[int, int] | None = None) -> HostStreams:
        """One connection per host, again and again from where it broke."""
        self._streams = HostStreams(handle, offsets or handle.get("shown") or {})
        return self._streams

    def open_terminal(self, handle: Handle, node: int, rank: int) -> proc.Bridge:
        """A connection beside the one that follows the node."""
        return ssh.terminal(next(found for found in handle["nodes"] if found["rank"] == node), rank)

    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        """SIGTERM to every agent; `force`: twice, at which it kills its workers."""
        self._send(handle, signal.SIGTERM, *(("--force",) if force else ()))

    def signal(self, handle: Handle, signum: int) -> None:
        """Agents pass every signal on."""
        self._send(handle, signum)

    def _send(self, handle: Handle, signum: int, *more: str) -> None:
        answers = ssh.call_all(handle, lambda node: ssh.call(node, "signal", *target(node), str(int(signum)), *more))
        failed = [error.message for error in answers if isinstance(error, CommandError)]
        if failed:
            hint = "\n        ".join(ssh.hints(failed)) or None
            raise CommandError("; ".join(failed), hint=hint, in_part=len(failed) < len(answers))


def _on_record(handle: Handle, record: Record) -> Handle:
    """Only then is it forgotten what the hosts have answered."""
    record(handle)
    forget(Path(handle["run_dir"]))
    return handle


def _has_met(tail: Tail) -> bool:
    """Whether a node has come through a rendezvous since it was started last, by what was fetched of it."""
    left_out = max(0, _size(tail.stream) - _TAIL_BYTES)
    try:
        with open(tail.stream, "rb") as file:
            file.seek(left_out)
            said = b"\n" + file.read()
    except FileNotFoundError:
        return False
    began = said.rfind(b'\n{"event":"agent_started",')
    return (began < 0 and left_out > 0) or b'\n{"event":"rendezvous",' in said[max(0, began) :]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


BACKEND = AnsibleBackend
