"""A run as a whole, where its roles have groups of their own: its end, which is the same for all, and lost nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Callable, List, Set

from .. import roles
from ..job import Job
from ..store.interface import Store
from .hangs import Hangs

if TYPE_CHECKING:
    from ..messages import Verdict

MET = "met/offered"
"""Key that is there once all nodes of all roles have met."""

END = "end"
"""Key of the verdict that ends a run with roles."""

ROLES_DONE = "roles/done"
"""Key with the number of roles that are done."""

_LOST, _WHY = "roles/lost", "roles/why-lost"
_FINISHED = "round/0/finished"


class Whole:
    """The verdicts of a run. Without roles, that of its only group is the run's."""

    def __init__(self, job: Job, node_rank: int, tell: Callable[..., None]) -> None:
        """`tell` writes events."""
        self.hangs = Hangs(job, node_rank)
        self._roles = roles.of(job)
        self._job, self.tell = job, tell
        self._forgiven: Set[int] = set()
        self._counted: Set[str] = set()
        self.keys: List[str] = [END] if job.roles else []
        """The keys of verdicts that come before the group's own."""

    def publish_end(self, store: Store, key: str, verdict: Verdict) -> None:
        """Publish the end to all nodes; if they are about to restart, in the next round."""
        if self._job.roles:
            store.compare_set(END, "", json.dumps(verdict))
            return
        after_restarts(store, key, verdict)

    def hand_on(self, store: Store, verdict: Verdict) -> Verdict:
        """Make the verdict of one role that of the run, unless it only starts the role again; the one that stands."""
        if not self._job.roles or verdict["kind"] == "restart":
            return verdict
        stands: Verdict = json.loads(store.compare_set(END, "", json.dumps(verdict)))
        return stands

    def is_ignored(self, store: Store, node: int) -> bool:
        """Whether the loss of a node is to be ignored: once all have met, by its role."""
        return roles.at(self._job, node).on_failure == roles.IGNORE and store.check([MET])

    def explain_loss(self, store: Store, node: int, why: str) -> None:
        """Tell node 0 why a node will be lost."""
        store.set(f"{_WHY}/{node}", why)

    def nodes_left(self, store: Store) -> int:
        """How many nodes the run has, without those whose loss was ignored."""
        return self._job.max_nodes - store.add(_LOST, 0)

    def publish_loss(self, store: Store, key: str, loss: Verdict) -> None:
        """On node 0: publish the loss of another node; one whose role ignores failures counts as done."""
        node = loss["node"]
        role = roles.at(self._job, node)
        if self.is_ignored(store, node):
            if node not in self._forgiven:
                self._forgiven.add(node)
                (why,) = store.peek([f"{_WHY}/{node}"])
                message = f"node {node}: {why.decode()}" if why else loss["message"]
                self.tell("warning", message=f"{message}; ignored, as its role {role.name} is to be")
                store.add(_LOST, 1)
                self.hangs.lose(store, node)
                count_finished(store, role, node, _FINISHED, "lost")  # such a role has one round
                if store.add(f"{role.prefix}{_FINISHED}", 0) >= role.nodes:
                    self._count(store, role, "lost")
            return
        store.compare_set(END if self._job.roles else key, "", json.dumps(loss))

    def count_done(self, store: Store, node: int) -> int:
        """Count the role of this node as done; how many are to be, as those that serve the others are not."""
        self._count(store, roles.at(self._job, node), str(node))
        return sum(not role.serves for role in self._roles)

    def _count(self, store: Store, role: roles.Role, by: str) -> None:
        """Count a role as done; once, by any of its nodes or by node 0. `by`: which one."""
        if role.serves or role.name in self._counted:
            return
        self._counted.add(role.name)
        if store.compare_set(f"{role.prefix}done", "", by) == by.encode():
            store.add(ROLES_DONE, 1)


def after_restarts(store: Store, key: str, verdict: Verdict) -> Verdict:
    """Publish a verdict in this round or, if all nodes are about to restart, in the next one; the one that stands."""
    while True:
        stands: Verdict = json.loads(store.compare_set(key, "", json.dumps(verdict)))
        if stands["kind"] != "restart":
            return stands
        before, number, _ = key.rsplit("/", 2)
        key = f"{before}/{int(number) + 1}/verdict"


def goes_on_without(job: Job, store: Store, node: int) -> bool:
    """Whether the run has this node's part behind it, or continues without that, as its role ignores failures."""
    role = roles.at(job, node)
    return role.on_failure == roles.IGNORE and store.check([f"{role.prefix}{_FINISHED}/{node}"])


def count_finished(store: Store, role: roles.Role, node: int, counter: str, how: str = "finished") -> None:
    """Count a node as finished in that counter of its role; once, although it may be lost afterwards."""
    if store.compare_set(f"{role.prefix}{counter}/{node}", "", how) == how.encode():
        store.add(f"{role.prefix}{counter}", 1)
