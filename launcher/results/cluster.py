"""Results about clusters: what would be sent, the state of nodes, settings."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class PlannedNode(TypedDict):
    """One node as planned."""

    node_rank: int
    host: str
    workers: int | None
    """Null: known only on the node."""

    role: str
    """Empty if the run has no roles."""


class SentFile(TypedDict):
    """A file of the user that is sent along."""

    path: str
    bytes: int


class Sent(TypedDict):
    """The user's data that is sent with a run."""

    files: list[SentFile]
    variables: dict[str, str]
    """The job's environment; names are arbitrary."""

    secrets: list[str]
    """Names only."""


class _MaybeWritten(TypedDict, total=False):
    written: list[str]
    """With `--render-to`: paths of all written files; a directory of user files is one path with a trailing slash."""


class Planned(_MaybeWritten):
    """Exactly what would be sent: `--dry-run` and `--render-to`."""

    backend: str
    nodes: list[PlannedNode]
    master: str
    """`ADDR:PORT`, or where it comes from."""

    files: dict[str, str]
    """The request as text: file name to content."""

    sent: Sent
    plan: dict[str, Any]
    """The backend's own plan."""


class ExaminedNode(TypedDict):
    """One node that doctor looked at."""

    node: int
    host: str
    reported: bool


class Finding(TypedDict):
    """A problem that one check found on one node."""

    host: str
    node: int
    check: str
    status: Literal["ok", "warn", "fail"]
    reason: str
    fix: str


class Links(TypedDict):
    """By pair of nodes, [one][other]: the median over its ranks; 0 on the diagonal."""

    names: list[str]
    gbytes_per_s: list[list[float]]
    latency_s: list[list[float]]


class Examined(TypedDict):
    """What doctor found."""

    run: str
    nodes: list[ExaminedNode]
    findings: list[Finding]
    links: Links | None
    """Null if pairs of nodes were not measured."""

    ok: bool
    """Whether nothing failed."""


class Quarantine(TypedDict):
    """Hosts that runs on a cluster exclude, after `--release`."""

    cluster: str
    quarantined: dict[str, str]
    """Why, by host."""


class HostFinding(TypedDict):
    """A problem that doctor found on a host."""

    check: str
    """The name of the check; `report` if the host's nodes have reported nothing."""

    status: Literal["ok", "warn", "fail"]
    reason: str


class Verdict(TypedDict):
    """Doctor's last verdict about a host."""

    time: float
    """Unix seconds."""

    run: str
    status: Literal["ok", "warn", "fail"]
    """The worst of the findings; `ok` without any."""

    findings: list[HostFinding]


class SurveyedGpu(TypedDict):
    """A GPU of a host."""

    gpu: int
    """Its number there."""

    used_mib: int | None
    total_mib: int | None
    """Memory; null if the host cannot tell."""

    busy: bool
    """Whether so much memory is in use that a process computes on it."""


class Lease(TypedDict):
    """Who holds a host or some of its GPUs, or waits for them."""

    run: str | None
    user: str | None
    """Null if unknown."""

    since: float | None
    """Unix seconds, by the host's clock."""

    gpus: list[int] | None
    """Null: the whole host, or whatever its scheduler has assigned."""


class SurveyedHost(TypedDict):
    """A host, and who has it."""

    host: str
    state: str
    """Of this machine and over SSH `up` or `unreachable`, on Slurm its own word, such as `idle` or `drained`, on
    Kubernetes `ready`, `not ready` or `unknown`, with `, cordoned` if it takes no more pods."""

    problem: str | None
    """Why it cannot be used, in the cluster's words; null if it can."""

    load: float | None
    """The load average of the last minute."""

    cpus: int | None
    gpus: list[SurveyedGpu]
    """Empty if a scheduler has only their number."""

    gpus_total: int | None
    """Null: unknown."""

    gpus_used: int | None
    """Leased, assigned or busy ones; null: unknown."""

    leases: list[Lease]
    waiting: list[Lease]
    """In the order in which they get the host."""

    quarantine: str | None
    """Why later runs exclude it: what doctor found, or how slow it was in which run; null if they do not."""

    doctor: Verdict | None
    """This user's last; null if there is none."""


class Survey(TypedDict):
    """The hosts of a cluster."""

    hosts: list[SurveyedHost]


class ExpectedStart(TypedDict):
    """When a job would start if it were submitted now; an estimate, and no promise."""

    at: float | None
    """Unix seconds; null if no one can tell."""

    how: str
    """How that is known, or why it is not."""


class Capacity(TypedDict):
    """What a cluster has; each null if it does not tell."""

    nodes: int | None
    nodes_free: int | None
    """Nodes that no job uses."""

    gpus: int | None
    gpus_free: int | None
    waiting: int | None
    """Jobs of all users that wait."""

    own_runs: int | None
    """Runs of this user that wait or run."""


class Overview(Capacity):
    """A cluster of the settings."""

    cluster: str
    backend: str
    """Empty if the settings are wrong."""

    problem: str | None
    """Why it could not be asked; null if it answered."""

    start: ExpectedStart | None
    """Of the job that the options describe; null without an answer."""

    notes: list[str]


class Overviews(TypedDict):
    """The clusters of the settings, in their order."""

    clusters: list[Overview]


class LoginState(TypedDict):
    """The connection to a cluster's login node."""

    cluster: str | None
    login: str
    """The login node, as ssh takes it."""

    open: bool
    lasts: str | None
    """How long it lasts, for people; null if it was not opened by this command."""


class Logins(TypedDict):
    """Login nodes."""

    logins: list[LoginState]


class Setting(TypedDict):
    """One setting."""

    value: bool | int | float | str | list[str] | None
    """With anything that looks like a credential masked."""

    source: str


class Cluster(TypedDict):
    """A cluster of the settings."""

    backend: str


class Settings(TypedDict):
    """Every setting, and where it comes from."""

    files: list[str]
    settings: dict[str, Setting]
    clusters: dict[str, Cluster]
