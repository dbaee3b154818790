"""`JobSpec`: what to run, on how many nodes; the same for every backend."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from launcher.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.options import JobOptions

Kind = Literal["script", "module", "program"]
Start = Literal["fork", "spawn"]

MAX_NODES = 100_000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRange:
    """How many nodes: exactly `min`, or with `max` above it an elastic run that goes on with any number between."""

    min: int
    max: int

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max <= MAX_NODES:
            raise SpecError(
                f"nodes {self} is out of range",
                hint=f"give a number from 1 to {MAX_NODES}, or MIN:MAX with MIN not above MAX",
            )

    @classmethod
    def parse(cls, text: str) -> NodeRange:
        """`4` or `2:4`; raises `SpecError` for anything else."""
        match = re.fullmatch(r"(-?\d+)(?::(-?\d+))?", text.strip())
        if match is None:
            raise SpecError(f"nodes {text!r} is not a number", hint="give --nodes 4, or --nodes 2:4 for an elastic run")
        low = int(match[1])
        return cls(min=low, max=int(match[2]) if match[2] else low)

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change while the run goes on."""
        return self.min != self.max

    def __str__(self) -> str:
        return f"{self.min}:{self.max}" if self.elastic else str(self.min)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What to run, on how many nodes; the same for every backend."""

    name: str
    """Used in ids and job names: lower-case letters, digits and dashes."""

    command: tuple[str, ...]
    """Script, module or program, then its arguments; never a shell string."""

    kind: Kind = "script"
    nodes: NodeRange = NodeRange(min=1, max=1)
    all_nodes: bool = False
    """No number was given: a backend with a list of hosts takes all of them."""

    workers_per_node: int | Literal["auto"] = "auto"
    """`auto`: one per GPU, or one on a host without GPUs."""

    cwd: str
    """Absolute working folder of the workers."""

    python: str = ""
    """Interpreter of the workers; empty: the backend's default."""

    env: Mapping[str, str]
    secrets: tuple[str, ...] = ()
    """Names of variables whose values come from the launcher's environment and stay out of files."""

    start: Start = "fork"
    preload: tuple[str, ...] = ()
    max_restarts: int = 0
    time_limit_s: float | None = None
    grace_s: float = 30.0
    rdzv_timeout_s: float = 600.0
    master_port: int = 0

    def for_agents(self) -> dict[str, Any]:
        """What agents are told, whatever the backend; `launcher.agent.job.Job` says what each means."""
        return {
            "command": list(self.command),
            "kind": self.kind,
            "cwd": self.cwd,
            "env": dict(self.env),
            "min_nodes": self.nodes.min,
            "max_nodes": self.nodes.max,
            "workers": self.workers_per_node,
            "start": self.start,
            "preload": list(self.preload),
            "max_restarts": self.max_restarts,
            "time_limit_s": self.time_limit_s,
            "grace_s": self.grace_s,
            "rdzv_timeout_s": self.rdzv_timeout_s,
            "master_port": self.master_port,
        }

    def __post_init__(self) -> None:
        if not self.command:
            raise SpecError("no script given", hint="distlaunch local --nodes 2 train.py")
        if self.workers_per_node != "auto" and self.workers_per_node < 1:
            raise SpecError(f"nproc-per-node {self.workers_per_node} is below 1", hint="give at least 1, or auto")
        if self.max_restarts < 0:
            raise SpecError(f"max-restarts {self.max_restarts} is below 0")
        if not 0 <= self.master_port <= 65535:
            raise SpecError(f"master-port {self.master_port} is no port", hint="give 1 to 65535, or 0 for a free one")


def parse_duration(text: str, what: str) -> float:
    """Seconds in `90s`, `10m`, `2h`, `1d`, `HH:MM:SS` or `D-HH:MM:SS`; a number without unit is refused.

    Schedulers disagree on whether a bare `30` means seconds or minutes, so we ask.
    """
    text = text.strip()
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        seconds = float(match[1]) * _UNITS_S[match[2]]
    elif match := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d{1,2}):(\d{1,2})", text):
        days, hours, minutes, secs = (int(part or 0) for part in match.groups())
        seconds = days * 86400 + hours * 3600 + minutes * 60 + secs
    else:
        raise SpecError(f"{what} {text!r} is no duration", hint="write 90s, 10m, 2h, 1d or [D-]HH:MM:SS")
    if seconds <= 0:
        raise SpecError(f"{what} {text!r} must be above zero")
    return seconds


def run_name(text: str) -> str:
    """A name that every backend takes: lower-case letters, digits, dashes, at most 32, starting with a letter."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:32].strip("-")
    return name if name and name[0].isalpha() else f"run-{name}".strip("-")


def parse_env(pairs: tuple[str, ...], here: Mapping[str, str]) -> dict[str, str]:
    """The variables that `K=V` and `K` name; `K` takes its value from `here`."""
    env: dict[str, str] = {}
    for pair in pairs:
        key, given, value = pair.partition("=")
        if not _ENV_NAME.match(key):
            raise SpecError(f"env {pair!r}: {key!r} is no variable name", hint="write --env NAME=VALUE or --env NAME")
        if not given and key not in here:
            raise SpecError(f"env {key}: no such variable here", hint=f"set it first, or write --env {key}=VALUE")
        env[key] = value if given else here[key]
    return env


def from_options(options: JobOptions, command: tuple[str, ...], *, kind: Kind, cwd: str) -> JobSpec:
    """The checked `JobSpec` for the options as the command line and the settings give them."""
    per_node = options.nproc_per_node.strip()
    if per_node != "auto" and not re.fullmatch(r"-?\d+", per_node):
        raise SpecError(f"nproc-per-node {per_node!r} is not a number", hint="give a number, or auto: one per GPU")
    if options.start not in ("fork", "spawn"):
        raise SpecError(f"start {options.start!r} is not known", hint="known: fork, spawn")
    for name in options.secret:
        if name not in os.environ:
            raise SpecError(f"secret {name}: no such variable here", hint=f"export {name} first")
    script = command[0] if command else ""
    stem = script.rpartition(".")[2] if kind == "module" else os.path.splitext(os.path.basename(script))[0]
    return JobSpec(
        name=run_name(options.name or stem),
        command=command,
        kind=kind,
        nodes=NodeRange.parse(options.nodes or "1"),
        all_nodes=not options.nodes,
        workers_per_node="auto" if per_node == "auto" else int(per_node),
        cwd=cwd,
        python=options.python,
        env=parse_env(options.env, os.environ),
        secrets=options.secret,
        start="spawn" if options.start == "spawn" else "fork",
        preload=options.preload,
        max_restarts=options.max_restarts,
        time_limit_s=parse_duration(options.time, "time") if options.time else None,
        grace_s=parse_duration(options.grace, "grace"),
        rdzv_timeout_s=parse_duration(options.rdzv_timeout, "rdzv-timeout"),
        master_port=options.master_port,
    )
