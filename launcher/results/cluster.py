"""A cluster: what would be sent to it, what its nodes are like, and its settings."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class PlannedNode(TypedDict):
    """One node as planned."""

    node_rank: int
    host: str
    workers: int | None
    """Null: known only on the node."""


class SentFile(TypedDict):
    """A file of the user's that goes along."""

    path: str
    bytes: int


class Sent(TypedDict):
    """What of the user's own leaves with a run."""

    files: list[SentFile]
    variables: dict[str, str]
    """The job's environment: any names."""

    secrets: list[str]
    """Their names alone."""


class _MaybeWritten(TypedDict, total=False):
    written: list[str]
    """With `--render-to`: the paths of all files; a directory of your files is one, with a slash at its end."""


class Planned(_MaybeWritten):
    """Exactly what would be sent: `--dry-run` and `--render-to`."""

    backend: str
    nodes: list[PlannedNode]
    master: str
    """`ADDR:PORT`, or where it comes from."""

    files: dict[str, str]
    """The request as texts: file name to content."""

    sent: Sent
    plan: dict[str, Any]
    """The backend's own."""


class ExaminedNode(TypedDict):
    """One node that doctor looked at."""

    node: int
    host: str
    reported: bool


class Finding(TypedDict):
    """One check on one node that is not as it should be."""

    host: str
    node: int
    check: str
    status: Literal["ok", "warn", "fail"]
    reason: str
    fix: str


class Links(TypedDict):
    """Of each pair of nodes, [one][other]: the median over its ranks; 0 on the diagonal."""

    names: list[str]
    gbytes_per_s: list[list[float]]
    latency_s: list[list[float]]


class Examined(TypedDict):
    """What doctor found."""

    run: str
    nodes: list[ExaminedNode]
    findings: list[Finding]
    links: Links | None
    """Null where pairs of nodes were not measured."""

    ok: bool
    """Whether nothing failed."""


class Quarantine(TypedDict):
    """The hosts that runs on a cluster leave out, after `--release`."""

    cluster: str
    quarantined: dict[str, str]
    """Why, by host."""


class Setting(TypedDict):
    """One setting."""

    value: bool | int | float | str | list[str] | None
    """Without what looks like a credential."""

    source: str


class Cluster(TypedDict):
    """A cluster of the settings."""

    backend: str


class Settings(TypedDict):
    """Every setting, and where it comes from."""

    files: list[str]
    settings: dict[str, Setting]
    clusters: dict[str, Cluster]
