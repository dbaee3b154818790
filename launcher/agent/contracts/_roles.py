"""What a worker learns of the other roles of its run: the same variables with every contract."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from .. import roles
from ._contract import Member, Variable, with_port


def of_roles(member: Member) -> List[Variable]:
    """The addresses of each role; none if the run has no roles."""
    if not member.everyone:
        return []
    found = [Variable("DISTLAUNCH_ROLE", member.job.role, "the role of the worker's node")]
    for role in roles.of(member.job):
        nodes = peers_of(role, member.everyone)
        hosts = ",".join(str(peer["address"]) for peer in nodes)
        master = with_port(nodes[0]["address"], nodes[0]["port"])
        held = "the first of them, with a port that is held free there for a server"
        found += [
            Variable(f"{role.variable}_HOSTS", hosts, f"an address of each node of {role.name}, in their order"),
            Variable(f"{role.variable}_MASTER", master, held),
        ]
    return found


def peers_of(role: roles.Role, everyone: Sequence[Dict[str, Any]]) -> Sequence[Dict[str, Any]]:
    """What the nodes of a role have offered."""
    return everyone[role.first : role.first + role.nodes]
