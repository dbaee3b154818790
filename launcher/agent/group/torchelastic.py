"""torchelastic as elastic runs need it. All of its private names are used in this file alone.

`check` inspects the classes before a run relies on them, and `Rendezvous` inspects the handler it is given. A torch in
which a name is missing, or means something else, gives one clear error. No attribute is set that torch does not read.
"""

from __future__ import annotations

import abc
import inspect
import os
import pickle
import signal
from datetime import timedelta
from typing import Any, Callable, Container, Dict, Iterable, List, Optional, Set, Tuple

import torch
from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, Worker, WorkerGroup, WorkerSpec
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as torch_rendezvous
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
)

from .errors import UnknownTorchError

_HOOKS: Dict[str, Tuple[str, ...]] = {
    "_start_workers": ("worker_group",),
    "_stop_workers": ("worker_group",),
    "_shutdown": ("death_sig",),
    "_monitor_workers": ("worker_group",),
    "_rendezvous": ("worker_group",),
    "_assign_worker_ranks": ("store", "group_rank", "group_world_size", "spec"),
    "_exit_barrier": (),
}
"""Methods of torchelastic's agent that we override, with the arguments that they are called with."""

_SHARED = ("_bootstrap_store_info", "_shared_tcp_store_server")
"""From torch 2.5 on, the handler agrees on an address for the workers' store once, and keeps it in these attributes."""

_NEVER = 10**6
"""How many keep-alives may be missed. torch would consider a node lost after 15 s, by the clocks of two hosts. Node 0
decides better, by the node's connection and heartbeats (`watch.py`)."""

_LONG_AGO = timedelta(days=3650)
"""Longer than that many keep-alives take."""


def _refuse(lacks: Iterable[str]) -> None:
    """Raise `UnknownTorchError` if anything is missing."""
    names = ", ".join(lacks)
    if names:
        raise UnknownTorchError(str(torch.__version__), names)


def check(
    agent: Any = SimpleElasticAgent, handler: Any = DynamicRendezvousHandler, timeout: Any = RendezvousTimeout
) -> None:
    """Raise `UnknownTorchError` if these classes lack anything that elastic runs need."""
    lacks = [
        _called(agent, name, arguments) for name, arguments in _HOOKS.items() if not _takes(agent, name, arguments)
    ]
    lacks += [
        f"{handler.__name__}.{name}"
        for name in ("_get_store", "from_backend", "settings")
        if not hasattr(handler, name)
    ]
    lacks += [
        f"{timeout.__name__}({name})" for name in ("join", "last_call", "close") if name not in _arguments(timeout)
    ]
    lacks += [f"{timeout.__name__}.last_call"] * (not isinstance(getattr(timeout, "last_call", None), property))
    _refuse(lacks)


def _arguments(call: Any) -> Container[str]:
    return inspect.signature(call).parameters


def _takes(kind: type, name: str, arguments: Tuple[str, ...]) -> bool:
    """Whether the method's first arguments are these, and all others are optional."""
    method = getattr(kind, name, None)
    if not callable(method):
        return False
    found = list(inspect.signature(method).parameters.values())[1:]
    given = tuple(parameter.name for parameter in found[: len(arguments)])
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return given == arguments and all(p.default is not p.empty or p.kind in optional for p in found[len(arguments) :])


def _called(kind: type, name: str, arguments: Tuple[str, ...]) -> str:
    return f"{kind.__name__}.{name}({', '.join(arguments)})"


class NodeAgent(SimpleElasticAgent, abc.ABC):
    """torchelastic's agent, with public names for its hooks."""

    def __init__(self, spec: WorkerSpec) -> None:
        check()
        super().__init__(spec)
        if getattr(self, "_remaining_restarts", None) != spec.max_restarts:
            _refuse(["SimpleElasticAgent._remaining_restarts"])
        self._asked_restarts = spec.max_restarts

    @property
    def restarts(self) -> int:
        """The number of restarts so far."""
        return int(self._asked_restarts - self._remaining_restarts)

    @abc.abstractmethod
    def start_workers(self, group: WorkerGroup) -> Dict[int, Any]:
        """Start all workers; their pids by local rank."""

    @abc.abstractmethod
    def end_workers(self, number: signal.Signals, *, last: bool) -> None:
        """Signal all workers and wait for them; `last`: no round follows."""

    @abc.abstractmethod
    def look(self) -> RunResult:
        """The state of the workers."""

    @abc.abstractmethod
    def met(self, group: WorkerGroup) -> None:
        """Called when the nodes have met in a round."""

    @abc.abstractmethod
    def ranks(self, node_rank: int) -> List[Worker]:
        """The ranks of this node's workers, from the rendezvous; torchelastic would wait for its store forever."""

    def _start_workers(self, worker_group: WorkerGroup) -> Dict[int, Any]:
        return self.start_workers(worker_group)

    def _stop_workers(self, worker_group: WorkerGroup, *_: Any, **__: Any) -> None:  # noqa: ARG002
        self.end_workers(signal.SIGTERM, last=False)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *_: Any, **__: Any) -> None:
        self.end_workers(death_sig, last=True)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:  # noqa: ARG002
        return self.look()

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        self.met(worker_group)

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec  # noqa: ARG002
    ) -> List[Worker]:  # fmt: skip
        return self.ranks(group_rank)

    def _exit_barrier(self) -> None:
        """Do nothing: the nodes have already waited for one another, while torchelastic gives up after 5 minutes."""


class Rendezvous:
    """torchelastic's dynamic rendezvous, with our store in place of the one that it would set up."""

    def __init__(
        self,
        handler: DynamicRendezvousHandler,
        store: Any,
        addr: str,
        part_of_round: Callable[[int], Any],
    ) -> None:
        """`part_of_round`: the part of the store for a round, by the number that torchelastic has agreed on."""
        self._handler: Any = handler
        _refuse(_lacks(handler))
        # Not all versions have an argument for it, and the settings are frozen.
        object.__setattr__(handler.settings, "keep_alive_max_attempt", _NEVER)
        if _shares_a_store():
            # torch would agree on an address here, too. A rank 0 that did so in an earlier round does not publish it to
            # new nodes, which then wait for it without keep-alives. With these attributes set, it is already agreed on.
            self._handler._bootstrap_store_info = RendezvousStoreInfo(addr, 0)
            self._handler._shared_tcp_store_server = store
            # For this process only; with "1", torch would agree on an address regardless.
            os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "0"
        else:
            # As above, but in each round. It would also read keys not set yet, which torch's own store waits for.
            torch_rendezvous.RendezvousStoreInfo = _Agreed(addr)  # type: ignore[assignment, attr-defined]
        self._handler._get_store = lambda: part_of_round(self._handler._state_holder.state.round)  # type: ignore[method-assign]

    @property
    def name(self) -> str:
        """The name under which the nodes know this one."""
        return repr(self._handler._this_node)

    @property
    def participants(self) -> Set[Any]:
        """The nodes of the current round."""
        return set(self._handler._state_holder.state.participants)

    def wait_for_more(self, seconds: float) -> None:
        """Set how long later rounds wait for more nodes than they need."""
        asked = self._handler.settings.timeout
        later = RendezvousTimeout(join=asked.join, last_call=timedelta(seconds=seconds), close=asked.close)
        object.__setattr__(self._handler.settings, "timeout", later)

    def next(self) -> RendezvousInfo:
        """Wait for the next rendezvous."""
        info: RendezvousInfo = self._handler.next_rendezvous()
        return info

    def waiting(self) -> int:
        """The number of nodes waiting to join."""
        return int(self._handler.num_nodes_waiting())

    def close(self) -> None:
        """Close the rendezvous: no node may join from now on."""
        self._handler.set_closed()

    def shutdown(self) -> bool:
        """Leave the rendezvous."""
        return bool(self._handler.shutdown())


class _Agreed:
    """Replaces `RendezvousStoreInfo` before torch 2.5: the address is already agreed on."""

    def __init__(self, addr: str) -> None:
        self._addr = addr

    def build(self, _rank: int, _store: Any) -> RendezvousStoreInfo:
        return RendezvousStoreInfo(self._addr, 0)


def _shares_a_store() -> bool:
    """Whether this torch keeps one address for the workers' store; before 2.5, it agrees on one in each round."""
    return "server_port" in _arguments(RendezvousStoreInfo.build)


def _lacks(handler: Any) -> List[str]:
    """The attributes that a handler lacks, checked before its first rendezvous."""
    wanted: Dict[str, Callable[[], bool]] = {
        "_this_node": lambda: handler._this_node is not None,
        "_state_holder.state.round": lambda: isinstance(handler._state_holder.state.round, int),
        "_state_holder.state.participants": lambda: isinstance(handler._state_holder.state.participants, dict),
        "_state_holder.state.last_heartbeats": lambda: isinstance(handler._state_holder.state.last_heartbeats, dict),
        "settings.keep_alive_max_attempt": lambda: isinstance(handler.settings.keep_alive_max_attempt, int),
        "settings.timeout.last_call": lambda: isinstance(handler.settings.timeout.last_call, timedelta),
    }
    for name in _SHARED if _shares_a_store() else ():
        wanted[name] = lambda name=name: vars(handler)[name] is None  # type: ignore[misc]
    if not _shares_a_store():
        wanted["next_rendezvous() that calls RendezvousStoreInfo.build"] = lambda: hasattr(
            torch_rendezvous, "RendezvousStoreInfo"
        )
    return [f"{type(handler).__name__}.{name}" for name, fits in wanted.items() if not _holds(fits)]


def _holds(fits: Callable[[], bool]) -> bool:
    try:
        return fits()
    except (AttributeError, KeyError):
        return False


def without(state: bytes, name: str) -> Optional[bytes]:
    """The rendezvous state with the node of that name marked as lost; None if it has no such node."""
    found = pickle.loads(state)  # noqa: S301 - only holders of the run's key can write it
    lost = [node for node in found.last_heartbeats if repr(node) == name]
    for node in lost:
        found.last_heartbeats[node] -= _LONG_AGO
    return pickle.dumps(found) if lost else None


__all__ = [
    "DynamicRendezvousHandler",
    "NodeAgent",
    "Rendezvous",
    "RendezvousBackend",
    "RendezvousTimeout",
    "check",
    "without",
]
