"""This machine: every node is an agent process of its own, on the loopback address."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from launcher import bundle, input_file, install, proc, storage
from launcher.agent import attach, facts
from launcher.agent.guess import NO, SURELY
from launcher.agent.job import KEY_FILE
from launcher.agent.program import Program
from launcher.backends import _local_agents
from launcher.backends._base import (
    Backend,
    Handle,
    Liveness,
    PlannedNode,
    Record,
    Written,
    bundled_scripts,
    unrecorded,
    write_files,
    write_key,
)
from launcher.backends._files import FileStream
from launcher.errors import BackendUnavailableError, CommandError, RequestError, SpecError, StorageError
from launcher.options import option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.spec import JobSpec

_ADDR = "127.0.0.1"
_END_BYTES = 128 * 1024
_TOLD = 8
"""So many agents at most are waited for at once, to have begun: each holds a descriptor of ours."""

_FAREWELL_S = 10.0
"""So long an agent may take to end after its last word."""

_AGENT = ("agent.pyz", "--spec", "spec.json", "--node-rank")
_START = """\
#!/bin/sh
# Runs this folder's agents, wherever it lies, to the end of the run. Their streams come on stdout; Ctrl-C ends the run.
cd "$(dirname "$0")" || exit
rm -f rendezvous.json nodes/*/agent.json
stop() {{  # PYTHON may be a script, below which the agent is: that has noted its pid
    node=0
    for pid in $agents; do
        noted=$(sed -n 's/^{{"pid": \\([0-9]*\\),.*/\\1/p' "nodes/$node/agent.json" 2>/dev/null)
        kill "${{noted:-$pid}}" 2>/dev/null
        node=$((node + 1))
    done
}}
trap stop INT TERM HUP
{agents}
fine=0 code=0
for agent in $agents; do
    wait "$agent"; ended=$?
    while kill -0 "$agent" 2>/dev/null; do wait "$agent"; ended=$?; done  # a signal ends the waiting
    case $ended in
        0) fine=$((fine + 1)) ;;
        124 | 130) [ $code = 0 ] && code=$ended; [ $code = $ended ] || code=1 ;;  # the time limit; cancelled
        *) code=1 ;;
    esac
done
[ $fine -ge {needed} ] || exit $code
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options of the local backend: none but the job's."""

    share_gpus: bool = option(False, help="Let simulated nodes see all GPUs, instead of an equal part each.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """The agents that would be started on this machine."""

    run_dir: Path
    python: str
    job: dict[str, Any]
    """Content of spec.json, the agent's request."""

    nodes: tuple[PlannedNode, ...]

    @property
    def master(self) -> str:
        """The loopback address; the port is chosen by binding it."""
        return f"{_ADDR}:{self.job['master_port'] or 'chosen at start'}"

    def argv(self, node_rank: int) -> tuple[str, ...]:
        """The command that starts a node's agent."""
        return _argv(self.run_dir, self.python, node_rank)

    def to_json(self) -> dict[str, Any]:
        """The argv of each node and the spec that all of them read."""
        return {"argv": [list(self.argv(node.node_rank)) for node in self.nodes], "spec": self.job}


class LocalBackend(Backend[LocalPlan]):
    """Runs on this machine; several nodes are simulated by one agent each."""

    name: ClassVar[str] = "local"
    ask_every_s: ClassVar[float] = 1.0
    is_here: ClassVar[bool] = True
    summary: ClassVar[str] = "Run on this machine; several nodes are simulated, one agent each."
    options: ClassVar[type] = LocalOptions

    def plan(self, spec: JobSpec, run_dir: Path) -> LocalPlan:
        """One agent per node, with an equal part of the GPUs each."""
        if spec.nodes.max > 64:
            raise SpecError(f"nodes {spec.nodes}: this machine simulates at most 64", hint="use a cluster for more")
        python = _find_python(spec)
        if spec.kind == "program":
            _find_program(spec, python)
        nodes = spec.nodes.max
        shares = _gpu_shares(nodes, {**os.environ, **spec.env}) if not self.opts.share_gpus else None
        gpus = len(shares[0]) if shares else len(facts.gpus({**os.environ, **spec.env}))
        workers = max(1, gpus) if spec.workers_per_node == "auto" else spec.workers_per_node
        job: dict[str, Any] = {
            **spec.for_agents(),
            "run": run_dir.name,
            "folder": str(run_dir),
            "rendezvous": {"file": str(run_dir / "rendezvous.json")},
            "master_addr": _ADDR,
            "max_nodes": nodes,
            "workers": workers,
            "sigterm_means": "cancelled",
            "shares_host": nodes > 1,
            "node_env": [{"CUDA_VISIBLE_DEVICES": ",".join(ids)} for ids in shares] if shares else None,
        }
        host = os.uname().nodename
        rows = tuple(PlannedNode(node_rank=rank, host=host, workers=workers) for rank in range(nodes))
        return LocalPlan(run_dir=run_dir, python=python, job=job, nodes=rows)

    def render(self, plan: LocalPlan) -> Mapping[str, str]:
        """`spec.json`, and a shell script that runs the same agents by hand."""
        return {"spec.json": _spec_text(plan.job), "start.sh": _by_hand(plan)}

    def write(self, plan: LocalPlan, folder: Path) -> Written:
        """What a submission sends, and a bundled script as well, in a folder that may be moved; `sh start.sh` does the rest."""
        job = {**plan.job, "may_move": True}
        script, more = Path(job["command"][0]), {"agent.pyz": bundle.agent_archive()}
        if script.parent == bundle.data("train"):
            job["command"] = [str(plan.run_dir / "payload" / script.name), *job["command"][1:]]
            more |= bundled_scripts()
        texts = {**self.render(plan), "spec.json": _spec_text(job)}
        write_files(folder, {name: text.encode(errors="surrogateescape") for name, text in texts.items()} | more)
        write_key(folder)
        return Written(texts, (*more, KEY_FILE))

    def submit(self, plan: LocalPlan, record: Record = unrecorded) -> Handle:
        """Write the spec and the agent, start one detached agent per node."""
        with storage.storage_errors(plan.run_dir):
            (plan.run_dir / "spec.json").write_text(_spec_text(plan.job), encoding="utf-8")
            (plan.run_dir / "agent.pyz").write_bytes(bundle.agent_archive())
        write_key(plan.run_dir)
        passed = (plan.job.get("terminal") or {}).get("stdin") == "passed"
        return self._start(plan.run_dir, plan.python, plan.job["cwd"], len(plan.nodes), record, passes_stdin=passed)

    def _start(self, run_dir: Path, python: str, cwd: str, nodes: int, record: Record, *, passes_stdin: bool = False) -> Handle:
        """`passes_stdin`: they have ours, for their workers."""
        agents = [{"pid": 0, "start_ticks": 0} for _ in range(nodes)]
        handle = {"run_dir": str(run_dir), "python": python, "agents": agents}
        told: list[proc.Told] = []
        more = {"stdin": 0} if passes_stdin else {}
        try:
            for agent in _local_agents.of(handle):
                agent.forget()
            for rank in range(nodes):
                if len(told) == _TOLD:
                    told[0].wait()
                    told.pop(0).close()
                folder = run_dir / "nodes" / str(rank)
                folder.mkdir(parents=True, exist_ok=True)

                def note(identity: proc.Identity, rank: int = rank) -> None:
                    agents[rank] = {"pid": identity.pid, "start_ticks": identity.start_ticks}
                    record(handle)

                argv = (*_argv(run_dir, python, rank), "--when-told")
                out, err = folder / "stream", folder / "stderr"
                proc.start_detached(argv, cwd=cwd, env=os.environ, stdout=out, stderr=err, record=note, told=told, **more)
            for word in told:
                word.wait()
        except OSError as error:
            raise StorageError(f"{run_dir}: {error.strerror}") from error
        finally:
            for word in told:
                word.close()
        return handle

    def recover(self, handle: Handle) -> Handle | None:
        """Each agent was noted before it began, and notes that it has."""
        return handle if any(agent.begun for agent in _local_agents.of(handle)) else None

    def requeue(self, handle: Handle, attempt: int, record: Record = unrecorded) -> Handle:
        """Start the same agents again, when all have ended; those that have said so are waited for."""
        run_dir = Path(handle["run_dir"])
        limit = time.monotonic() + _FAREWELL_S
        while alive := [agent for agent in _local_agents.of(handle) if agent.living()]:
            if time.monotonic() > limit or not all(_is_done(agent.folder / "stream") for agent in alive):
                raise RequestError("its agents still run", hint="distlaunch cancel RUN")
            time.sleep(0.02)
        job = storage.read_json(run_dir / "spec.json")
        if job is None:
            raise StorageError(f"{run_dir / 'spec.json'} cannot be read")
        again = {"attempt": attempt, "session": str(attempt), "terminal": None}  # nobody may be there to type
        storage.write_whole(run_dir / "spec.json", storage.encode_json({**job, **again}))
        return self._start(run_dir, handle["python"], job["cwd"], len(handle["agents"]), record)

    def liveness(self, handle: Handle) -> Liveness:
        """Which agents still run, by pid and start time."""
        return Liveness(nodes=tuple("running" if agent.living() else "ended" for agent in _local_agents.of(handle)))

    def left(self, handle: Handle) -> str:
        """Their pids."""
        pids = [str(identity.pid) for agent in _local_agents.of(handle) for identity in agent.living()]
        return f"pids {', '.join(pids)}" if pids else ""

    def open_stream(self, handle: Handle, offsets: Mapping[int, int] | None = None) -> FileStream:
        """The files that the agents write."""
        return FileStream(Path(handle["run_dir"]), len(handle["agents"]), offsets or {})

    def open_terminal(self, handle: Handle, node: int, rank: int) -> proc.Bridge:
        """The agent's socket itself."""
        try:
            return proc.Bridge(attach.connect(f"{handle['run_dir']}/nodes/{node}", rank))
        except attach.NOT_THERE as error:
            raise CommandError(f"rank {rank} has no terminal: {error}") from error

    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        """SIGTERM to every agent; `force`: the second one, at which an agent kills its workers, and SIGKILL where it does not."""
        agents = _local_agents.of(handle)
        for agent in agents:
            agent.send(signal.SIGTERM)
        if force:
            _local_agents.force(agents)
        for agent in agents:
            if not agent.living():
                agent.remove_cgroup()

    def signal(self, handle: Handle, signum: int) -> None:
        """Agents pass every signal on."""
        for agent in _local_agents.of(handle):
            agent.send(signum)


def _is_done(stream: Path) -> bool:
    """Whether an agent has said its last word; it may still be about to end."""
    try:
        last = input_file.end_of(stream, _END_BYTES).splitlines()[-1:]
    except OSError:
        return False
    return bool(last) and last[0].startswith(b'{"event":"done"')


def _argv(run_dir: Path, python: str, node_rank: int) -> tuple[str, ...]:
    archive, option_, spec, rank = _AGENT
    return (python, str(run_dir / archive), option_, str(run_dir / spec), rank, str(node_rank))


def _spec_text(job: Mapping[str, Any]) -> str:
    return json.dumps(job, indent=2) + "\n"


def _by_hand(plan: LocalPlan) -> str:
    """A script that starts the agents of the folder it is in, and ends with the run's exit code."""
    agents = [f'setsid {shlex.join((plan.python, *_AGENT, str(node.node_rank)))} & agents="$agents $!"' for node in plan.nodes]
    return _START.format(agents="\n".join(agents), needed=plan.job["min_nodes"])


def _gpu_shares(nodes: int, env: Mapping[str, str]) -> list[list[str]] | None:
    """An equal part of this machine's GPUs for each simulated node; None where there is nothing to divide."""
    ids = facts.gpus(env)
    if nodes == 1 or not ids:
        return None
    if len(ids) < nodes:
        return [[ids[rank % len(ids)]] for rank in range(nodes)]
    each = len(ids) // nodes
    return [ids[rank * each : (rank + 1) * each] for rank in range(nodes)]


def _find_program(spec: JobSpec, python: str) -> None:
    """Raise `SpecError` where it is not here; on other machines their agents say so."""
    import shutil

    name = spec.command[0]
    folders = [*([os.path.dirname(python)] if spec.python else []), spec.env.get("PATH") or os.environ.get("PATH") or os.defpath]
    path = os.path.join(spec.cwd, name) if os.path.dirname(name) else name
    if shutil.which(path, path=os.pathsep.join(folders)) is None:
        raise SpecError(f"program {name!r} is not on PATH, or not executable", hint="chmod +x it, or give its path")


def _find_python(spec: JobSpec) -> str:
    """The interpreter for the workers: the one that was named, ours if it has torch, else the one on PATH if that has it.

    Where no torch is needed, ours does as it is; where it may be, it is not asked for.
    """
    import shutil
    from importlib.util import find_spec

    wants_torch = SURELY if spec.nodes.elastic else Program(list(spec.command), spec.kind, spec.cwd).wants_torch()
    if spec.python:
        named = shutil.which(spec.python)
        if named is None:
            raise SpecError(f"python {spec.python!r} is not on PATH, or not executable")
        candidates = [os.path.join(spec.cwd, named)]
        if wants_torch != SURELY:
            return candidates[0]
    elif wants_torch == NO:
        return sys.executable
    else:
        if find_spec("torch") is not None:
            return sys.executable
        candidates = list(filter(None, [shutil.which("python3") or shutil.which("python")]))
    probe = f"{proc.WITHOUT_HERE}import importlib.util; sys.exit(importlib.util.find_spec('torch') is None)"
    for candidate in candidates:
        if proc.run([candidate, "-c", probe], timeout_s=20).returncode == 0:
            return candidate
    if wants_torch != SURELY:
        return sys.executable
    looked = " and ".join(dict.fromkeys([*([] if spec.python else [sys.executable]), *candidates]))
    raise BackendUnavailableError(
        f"no torch here: looked in {looked}",
        hint=f"{install.command('train')}, or name an interpreter that has it: --python PATH",
    )


BACKEND = LocalBackend
