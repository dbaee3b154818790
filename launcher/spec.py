"""`JobSpec`: what to run, on how many nodes; the same for every backend."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from launcher.agent import outer_run
from launcher.agent.job import Job
from launcher.errors import SpecError
from launcher.system.dataclass import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from launcher.agent.messages import LentTerminal, Rendezvous


Kind = Literal["script", "module", "program", "function"]
Start = Literal["fork", "spawn"]

MAX_NODES = 100_000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_DAYS = 24855
"""More seconds have no place in 31 bits, which is what Kubernetes gives them; what waits here has a limit, too."""

_UNITS_BYTES = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_LEAST_LOG_BYTES = 10**6
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_SET_BY_US = dict.fromkeys(outer_run.SET_BY_US, "leave it out, or give your script a variable of another name") | {
    "MASTER_PORT": "--master-port PORT sets it",
    "WORLD_SIZE": "--nodes and --nproc-per-node make it",
    "LOCAL_WORLD_SIZE": "--nproc-per-node sets it",
    "GROUP_WORLD_SIZE": "--nodes sets it",
    "TORCHELASTIC_MAX_RESTARTS": "--max-restarts sets it",
}
"""Variables that every worker gets; with what to do instead of setting them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRange:
    """A number of nodes: exactly `min`, or with a larger `max` any number in between, for an elastic run."""

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
        """Parse `4` or `2:4`. Raises `SpecError` for anything else."""
        match = re.fullmatch(r"(-?\d{1,9})(?::(-?\d{1,9}))?", text.strip(), re.ASCII)
        if match is None:
            raise SpecError(f"nodes {text!r} is not a number", hint="give --nodes 4, or --nodes 2:4 for an elastic run")
        low = int(match[1])
        return cls(min=low, max=int(match[2]) if match[2] else low)

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change while the run continues."""
        return self.min != self.max

    def __str__(self) -> str:
        return f"{self.min}:{self.max}" if self.elastic else str(self.min)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What to run, on how many nodes; the same for every backend."""

    name: str
    """Used in ids and job names: lower-case letters, digits and dashes."""

    command: tuple[str, ...]
    """Script, module or program, then its arguments; never a shell string. For a function, its name."""

    kind: Kind = "script"
    function: str | None = None
    """The request to call the function, in the form that agents take."""

    nodes: NodeRange = NodeRange(min=1, max=1)
    all_nodes: bool = False
    """No number was given: a backend with a list of hosts uses all of them."""

    workers_per_node: int | Literal["auto"] = "auto"
    """`auto`: one per GPU, or one on a host without GPUs."""

    cwd: str
    """Absolute working directory of the workers."""

    python: str | None = None
    """Interpreter of the workers; None: the backend's default."""

    env: Mapping[str, str]
    secrets: tuple[str, ...] = ()
    """Names of variables whose values come from the launcher's environment and stay out of files."""

    ship_secrets: bool = False
    """Whether files that look like credentials are sent, too."""

    links: Literal["keep", "follow", "refuse"] = "keep"
    """What is sent for links that lead out of the working directory."""

    start: Start = "fork"
    preload: tuple[str, ...] = ()
    time_limit_s: float | None = None
    grace_s: float = 30.0
    agents: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Job` that the launcher only passes on, by name (`job` in `launcher.settings.options.option`)."""

    debug: int | None = None
    """The rank in which pdb opens when an exception would end it."""

    fetches: str = ""
    """The node rank whose files the launcher fetches at the end, or `all`: they must exist until then."""

    terminal: LentTerminal | None = None
    """How workers share the launcher's terminal and stdin: see `launcher.agent.job.Job`."""

    roles: tuple[RoleSpec, ...] = ()
    """What runs on the nodes, in their order, if not all run the same; `command` is then that of the first."""

    @property
    def parts(self) -> tuple[JobSpec, ...]:
        """The jobs of the roles; without roles, this one."""
        return tuple(role.job for role in self.roles) or (self,)

    @property
    def wants_keyboard(self) -> bool:
        """Whether one rank gets the keyboard, which requires a connection to that rank."""
        return bool(self.terminal and self.terminal["interactive"])

    def job(self, *, run: str, directory: str, rendezvous: Rendezvous) -> Job:
        """The job for agents of any backend; a backend replaces the fields that it decides."""
        return Job(
            **self.agents,
            run=run,
            directory=directory,
            rendezvous=rendezvous,
            command=list(self.command),
            kind=self.kind,
            function=self.function,
            cwd=self.cwd,
            env=dict(self.env),
            min_nodes=self.nodes.min,
            max_nodes=self.nodes.max,
            workers=self.workers_per_node,
            python_named=bool(self.python),
            start=self.start,
            preload=list(self.preload),
            time_limit_s=self.time_limit_s,
            grace_s=self.grace_s,
            debug=self.debug,
            terminal=self.terminal,
        )

    def __post_init__(self) -> None:
        if not self.command:
            raise SpecError("no script given", hint="distlaunch local --nodes 2 train.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """A group of nodes of a run that differs from the others."""

    name: str
    job: JobSpec
    """What it runs, on how many nodes."""

    options: Any
    """The backend's options, with those of the role."""

    on_failure: str = "end"
    serves: bool = False
    """As in `launcher.agent.roles.Role`."""


def parse_duration(text: str, what: str) -> float:
    """Seconds in `90s`, `10m`, `2h`, `1d`, `HH:MM:SS` or `D-HH:MM:SS`; a number without unit is refused.

    Schedulers disagree on whether a bare `30` means seconds or minutes.
    """
    text = text.strip()
    if match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])", text, re.ASCII):
        seconds = float(match[1]) * _UNITS_S[match[2]]
    elif match := re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,7}):(\d{1,2}):(\d{1,2})", text, re.ASCII):
        days, hours, minutes, secs = (int(part or 0) for part in match.groups())
        seconds = days * 86400 + hours * 3600 + minutes * 60 + secs
    else:
        raise SpecError(f"{what} {text!r} is not a duration", hint="write 90s, 10m, 2h, 1d or [D-]HH:MM:SS")
    if seconds <= 0:
        raise SpecError(f"{what} {text!r} must be above zero")
    if seconds > _MOST_DAYS * 86400:
        raise SpecError(f"{what} {text!r} is longer than a clock counts", hint=f"write {_MOST_DAYS}d: 68 years")
    return seconds


def parse_size(text: str, what: str) -> int:
    """Bytes in `500KB`, `200MB` or `2GB`."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(KB|MB|GB|TB)", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise SpecError(f"{what} {text!r} is not a size", hint="write 500KB, 200MB or 2GB")
    return int(float(match[1]) * _UNITS_BYTES[match[2].upper()])


def parse_log_limit(text: str) -> int | None:
    """Bytes; None for `none`."""
    if text.strip() == "none":
        return None
    size = parse_size(text, "log-limit")
    if size < _LEAST_LOG_BYTES:
        raise SpecError(f"log-limit {text!r} is below 1MB", hint="write 1MB or more, or none")
    return size


def run_name(text: str) -> str:
    """A name valid for every backend: at most 32 lower-case letters, digits and dashes, starting with a letter."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:32].strip("-")
    return name if name and name[0].isalpha() else f"run-{name}".strip("-")


def check_variables(pairs: Iterable[str]) -> None:
    """Raise `SpecError` unless all are `K=V` or `K` of variables that users may set. Errors contain no values."""
    for pair in pairs:
        name, given, _ = pair.partition("=")
        if not _ENV_NAME.match(name):
            shown = f"{name}=..." if given else name
            raise SpecError(
                f"env {shown!r}: {name!r} is not a variable name", hint="write --env NAME=VALUE or --env NAME"
            )
        if name in _SET_BY_US:
            raise SpecError(f"env {name}: distlaunch gives that to each worker itself", hint=_SET_BY_US[name])


def check_secrets(secrets: Iterable[str]) -> None:
    """Raise `SpecError` unless all are names of variables that users may set."""
    for name in secrets:
        if not _ENV_NAME.match(name):
            shown = name.partition("=")[0]
            hint = f"write --secret {shown}, with the value in the environment of distlaunch" if "=" in name else None
            raise SpecError(
                f"secret {shown!r}{' with a value' if '=' in name else ''} is not a variable name", hint=hint
            )
        if name in _SET_BY_US:
            raise SpecError(f"secret {name}: distlaunch gives that to each worker itself", hint=_SET_BY_US[name])


def parse_port(port: int) -> int | None:
    """The port; None for 0, a free one."""
    if not 0 <= port <= 65535:
        raise SpecError(f"master-port {port} is not a port", hint="give 1 to 65535, or 0 for a free one")
    return port or None


def parse_workers(text: str) -> int | Literal["auto"]:
    """Parse `auto` or a number of at least 1."""
    text = text.strip()
    if text == "auto":
        return "auto"
    if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
        hint = "give a number, or auto: one per GPU, or one on a node without"
        raise SpecError(f"nproc-per-node {text!r} is not a number", hint=hint)
    if int(text) < 1:
        raise SpecError(f"nproc-per-node {int(text)} is below 1", hint="give at least 1, or auto")
    return int(text)
