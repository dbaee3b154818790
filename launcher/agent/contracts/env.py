"""For any program in any language: a few variables that begin with DISTLAUNCH_, and nothing else."""

from __future__ import annotations

from typing import List

from ._contract import Contract, Member, Variable


class Env(Contract):
    """Nothing is imported, and nothing is needed on a node."""

    def variables(self, member: Member) -> List[Variable]:
        """The worker's place."""
        return of_place(member)


def of_place(member: Member) -> List[Variable]:
    """The worker's place among all, by names that no framework reads."""
    group, ranks = member.group, member.ranks
    ours = "from the order of the nodes, and the number of workers on each"
    hosts = ",".join(str(peer["address"]) for peer in member.peers)
    return [
        Variable("DISTLAUNCH_RANK", str(ranks.rank), ours),
        Variable("DISTLAUNCH_WORLD_SIZE", str(ranks.world_size), "workers on all nodes"),
        Variable("DISTLAUNCH_LOCAL_RANK", str(ranks.local_rank), ours),
        Variable("DISTLAUNCH_LOCAL_WORLD_SIZE", str(group.local_world_size), "workers on this node"),
        Variable("DISTLAUNCH_NODE_RANK", str(group.node_rank), "the node's rank"),
        Variable("DISTLAUNCH_HOSTS", hosts, "an address of each node, in the order of their ranks"),
        Variable("DISTLAUNCH_MASTER_ADDR", group.master_addr, "an address of node 0 that all nodes reach"),
        Variable("DISTLAUNCH_MASTER_PORT", str(group.master_port), "a port on node 0, in use by no other process"),
    ]


CONTRACT = Env()
