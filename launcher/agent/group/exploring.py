"""The round in which all nodes try one another's addresses, over the run's store: what each of them is reached at."""

from __future__ import annotations

import json
import os
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..named_tuple import NamedTuple
from ..network import reach
from ..store.interface import Known, Store, absent
from ..system import processes


class Found(NamedTuple):
    """The result of the round, for this node and for node 0."""

    usable: List[str]
    """This node's addresses that all peers probing it reach, best first."""

    master: List[str]
    """The same for node 0, or the node that heads this one's role."""

    cut_off: List[Tuple[int, int]]
    """On node 0: pairs (from, to) of nodes, the first of which reaches the second at no address."""


Wait = Callable[[str, Store, Mapping[str, Known], Callable[[], List[str]]], List[Optional[bytes]]]
"""`wait(what, store, known, missing)` waits as `Store.wait` does, and raises if the run ends."""


def explore(store: Store, rank: int, nodes: int, addresses: Sequence[str], wait: Wait, head: int = 0) -> Found:
    """Run the round over the run's store. `head`: the node whose addresses are to be found, too.

    Node 0 reads what all have seen and answers each: no other node reads more than what it needs.
    """
    token = os.urandom(8).hex().encode()
    answerer = reach.Answerer(token)
    cut_off: List[Tuple[int, int]] = []
    try:
        about = {"addresses": list(addresses), "port": answerer.port, "token": token.decode()}
        store.set(f"reach/at/{rank}", json.dumps(about))
        store.add("reach/told", 1)
        tried = reach.partners(rank, nodes)
        what = f"the addresses of {len(tried)} nodes"
        wait(what, store, {"reach/told": nodes}, lambda: absent(store, "reach/at", tried))
        names = [f"reach/at/{peer}" for peer in tried]
        peers = {peer: json.loads(text) for peer, text in zip(tried, store.multi_get(names) if names else [])}
        reached = _reached(reach.targets(peers, addresses))
        seen = {peer: _places(peer, about["addresses"], reached) for peer, about in peers.items()}
        store.set(f"reach/seen/{rank}", json.dumps(seen))
        store.add("reach/done", 1)
        if rank == 0:
            what, every = f"{nodes} nodes to have tried one another", range(nodes)
            wait(what, store, {"reach/done": nodes}, lambda: absent(store, "reach/seen", every))
            cut_off = _answer_all(store, nodes)
        keys: Dict[str, Known] = {f"reach/usable/{node}": None for node in (rank, head)}
        answers = wait("node 0 to tell which addresses are reached", store, keys, list)
    finally:
        answerer.close()
    usable, *of_head = [json.loads(text or b"[]") for text in answers]
    return Found(usable, of_head[0] if of_head else usable, cut_off)


def _reached(targets: Sequence[reach.Target]) -> Set[reach.Target]:
    """The targets that answer. With dozens of addresses for each node, there are more than the usual 1,024 files."""
    with processes.many_files():
        return reach.attempt(targets)


def _places(peer: int, addresses: Sequence[str], reached: Set[reach.Target]) -> List[int]:
    """At which of its addresses a peer was reached."""
    at = {target.address for target in reached if target.peer == peer}
    return [place for place, address in enumerate(addresses) if address in at]


def _answer_all(store: Store, nodes: int) -> List[Tuple[int, int]]:
    """On node 0: tell each node which of its addresses are reached; the pairs of nodes that are cut off."""
    told = [json.loads(text) for text in store.multi_get([f"reach/at/{node}" for node in range(nodes)])]
    by_peer: Dict[int, List[List[int]]] = {node: [] for node in range(nodes)}
    cut_off = []
    for node, text in enumerate(store.multi_get([f"reach/seen/{node}" for node in range(nodes)])):
        for peer, places in json.loads(text).items():
            by_peer[int(peer)].append(places)
            cut_off += [] if places else [(node, int(peer))]
    usable = {node: common(about["addresses"], by_peer[node]) for node, about in enumerate(told)}
    store.multi_set({f"reach/usable/{node}": json.dumps(found) for node, found in usable.items()})
    return cut_off


def common(addresses: Sequence[str], seen: Sequence[Sequence[int]]) -> List[str]:
    """The addresses of a node that all peers probing it reach, or if there are none, that most of them reach.

    `seen`: for each of these peers, the places of the addresses at which it reaches the node.
    """
    counts = [sum(place in places for places in seen) for place in range(len(addresses))]
    most = max(counts, default=0)
    return [address for address, count in zip(addresses, counts) if count == most > 0]
