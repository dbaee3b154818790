"""The parts of a run whose pods differ: its roles, or the whole of a run without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.agent.roles import IGNORE
from launcher.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.spec import JobSpec, NodeRange

ROLE_LABEL = "distlaunch/role"
FIRST_LABEL = "distlaunch/first-node"
"""Label of a role's pods and Job: the rank of its first node, to which a completion index is added."""

KINDS = ("job", "jobset")
"""The kinds that do roles."""

_LONGEST_ROLE = 26
"""In a JobSet, so that its name has room for a letter, the time and the random part of the run's id."""


class Part(NamedTuple):
    """Nodes whose pods have one template."""

    role: str
    """Empty for the whole of a run."""

    job: JobSpec
    opts: KubernetesOptions
    run_opts: KubernetesOptions
    """The options for all roles."""

    first: int
    """The rank of its first node."""

    ignored: bool = False
    """Whether the run continues without it after a failure."""

    @property
    def nodes(self) -> NodeRange:
        """How many it has."""
        return self.job.nodes

    @property
    def labels(self) -> dict[str, str]:
        """The labels that only its own pods have."""
        return {ROLE_LABEL: self.role, FIRST_LABEL: str(self.first)} if self.role else {}

    def among(self, option: str) -> dict[str, str]:
        """The labels of the pods that an option about their places is about: the run's, or only the role's."""
        own = getattr(self.opts, option) != getattr(self.run_opts, option)
        return {ROLE_LABEL: self.role} if own else {}


def of(spec: JobSpec, opts: KubernetesOptions) -> list[Part]:
    """The parts, in the order of their nodes."""
    if not spec.roles:
        return [Part("", spec, opts, opts, 0)]
    found: list[Part] = []
    for role in spec.roles:
        first = sum(part.nodes.max for part in found)
        found.append(Part(role.name, role.job, role.options, opts, first, role.on_failure == IGNORE))
    return found


def check(parts: Sequence[Part], opts: KubernetesOptions) -> None:
    """Raise `SpecError` for roles that this kind of object cannot have, and for pods without an image."""
    roles = [part for part in parts if part.role]
    if roles and opts.kind not in KINDS:
        raise SpecError(f"--kind {opts.kind} has no roles", hint=f"--kind {' and --kind '.join(KINDS)} have roles")
    if roles and opts.queue and opts.kind == "job":
        raise SpecError(
            "queue: Kueue would admit the Job of each role by itself, and a part of them would hold its resources",
            hint="--kind jobset, which Kueue admits as a whole",
        )
    for part in roles:
        if opts.kind == "jobset" and len(part.role) > _LONGEST_ROLE:
            raise SpecError(
                f"role {part.role}: the names of a JobSet's pods leave room for {_LONGEST_ROLE} characters",
                hint="shorten the name; --kind job takes longer ones",
            )
    for part in parts:
        if not part.opts.image:
            whose = f"role {part.role}: " if part.role else ""
            hint = "--image IMAGE, one with Python and torch, as pytorch/pytorch"
            raise SpecError(f"{whose}no image given", hint=hint)


def makers(kind: str, name: str, roles: Sequence[str], *, alone: str) -> list[str]:
    """The names of the Jobs that create the pods, by role; `alone`: that of a run without roles."""
    if not roles:
        return [alone]
    if kind == "jobset":
        return [f"{name}-{role}-0" for role in roles]
    return [name, *(f"{name}-{role}" for role in roles[1:])]  # the first one owns everything


def first_pod(kind: str, name: str, roles: Sequence[str], *, alone: str) -> str:
    """The DNS name of node 0's pod."""
    return f"{name}-{roles[0]}-0-0.{name}" if roles and kind == "jobset" else alone


def longest(kind: str, roles: Sequence[str], *, alone: int) -> int:
    """The longest name of the run's objects that leaves room for those of its pods."""
    most = max(map(len, roles), default=0)
    return alone - (most - 1 if kind == "jobset" else most + 1) if roles else alone
