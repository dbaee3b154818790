"""torchelastic as elastic runs need it, with all of its private names: they are used in this file alone.

`check` looks at the classes before a run relies on them, and `Rendezvous` at the object that it has made: a torch in which a
name is gone, or means something else, gives one sentence. Nothing is written to an attribute that torch does not read.
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
"""Methods of torchelastic's agent that are ours, with the arguments that they are called with."""

_SHARED = ("_bootstrap_store_info", "_shared_tcp_store_server")
"""From torch 2.5 on the handler agrees on an address for the workers' store once, and keeps it here."""

_NEVER = 10**6
"""So many signs of life may be missing: torch would take a node for lost after 15 s, by the clocks of two hosts. Node 0 knows
better, by the node's connection and its heartbeats (`watch.py`)."""

_LONG_AGO = timedelta(days=3650)
"""More than that many signs take."""


def _refuse(lacks: Iterable[str]) -> None:
    """Raise `UnknownTorchError` where something is missing."""
    names = ", ".join(lacks)
    if names:
        raise UnknownTorchError(str(torch.__version__), names)


def check(agent: Any = SimpleElasticAgent, handler: Any = DynamicRendezvousHandler, timeout: Any = RendezvousTimeout) -> None:
    """Raise `UnknownTorchError`, which names what these classes lack."""
    lacks = [_called(agent, name, arguments) for name, arguments in _HOOKS.items() if not _takes(agent, name, arguments)]
    lacks += [f"{handler.__name__}.{name}" for name in ("_get_store", "from_backend", "settings") if not hasattr(handler, name)]
    lacks += [f"{timeout.__name__}({name})" for name in ("join", "last_call", "close") if name not in _arguments(timeout)]
    lacks += [f"{timeout.__name__}.last_call"] * (not isinstance(getattr(timeout, "last_call", None), property))
    _refuse(lacks)


def _arguments(call: Any) -> Container[str]:
    return inspect.signature(call).parameters


def _takes(kind: type, name: str, arguments: Tuple[str, ...]) -> bool:
    """Whether that method's first arguments are these, and all others may be left out."""
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
    """torchelastic's agent, whose hooks have public names here."""

    def __init__(self, spec: WorkerSpec) -> None:
        check()
        super().__init__(spec)
        if getattr(self, "_remaining_restarts", None) != spec.max_restarts:
            _refuse(["SimpleElasticAgent._remaining_restarts"])
        self._asked_restarts = spec.max_restarts

    @property
    def restarts(self) -> int:
        """How many there have been."""
        return int(self._asked_restarts - self._remaining_restarts)

    @abc.abstractmethod
    def start_workers(self, group: WorkerGroup) -> Dict[int, Any]:
        """Start all of them; their pids by local rank."""

    @abc.abstractmethod
    def end_workers(self, number: signal.Signals, *, last: bool) -> None:
        """Signal and await them; `last`: no round follows."""

    @abc.abstractmethod
    def look(self) -> RunResult:
        """How they are."""

    @abc.abstractmethod
    def met(self, group: WorkerGroup) -> None:
        """The nodes have met in a round."""

    @abc.abstractmethod
    def ranks(self, node_rank: int) -> List[Worker]:
        """Those of this node's workers, by what the nodes have told in their rendezvous; torchelastic asks its store for ever."""

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
        """Nothing: the nodes have waited for one another, however long that took; torchelastic gives up after 5 minutes."""


class Rendezvous:
    """torchelastic's dynamic rendezvous, with a store of ours in place of those that it would agree on."""

    def __init__(
        self,
        handler: DynamicRendezvousHandler,
        store: Any,
        addr: str,
        part_of_round: Callable[[int], Any],
    ) -> None:
        """`part_of_round`: the keys of the round with that number, once torchelastic has agreed on it."""
        self._handler: Any = handler
        _refuse(_lacks(handler))
        # Not all versions can be told otherwise, and the settings are frozen.
        object.__setattr__(handler.settings, "keep_alive_max_attempt", _NEVER)
        if _shares_a_store():
            # Torch would agree on an address here, too: a rank 0 that did so in a round before does not tell it to nodes that are
            # new, and these wait for it without a sign of life. It is told that all is agreed on.
            self._handler._bootstrap_store_info = RendezvousStoreInfo(addr, 0)
            self._handler._shared_tcp_store_server = store
            os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "0"  # in this process; else it agrees on one whatever it is told
        else:  # as above, in each round; and it asks a store for what may not be there yet, as torch's own waits for that
            torch_rendezvous.RendezvousStoreInfo = _Agreed(addr)  # type: ignore[assignment, attr-defined]
        self._handler._get_store = lambda: part_of_round(self._handler._state_holder.state.round)  # type: ignore[method-assign]

    @property
    def name(self) -> str:
        """Under which the nodes know this one."""
        return repr(self._handler._this_node)

    @property
    def participants(self) -> Set[Any]:
        """The nodes of the present round."""
        return set(self._handler._state_holder.state.participants)

    def wait_for_more(self, seconds: float) -> None:
        """So long later rounds wait for more nodes than they need."""
        asked = self._handler.settings.timeout
        later = RendezvousTimeout(join=asked.join, last_call=timedelta(seconds=seconds), close=asked.close)
        object.__setattr__(self._handler.settings, "timeout", later)

    def next(self) -> RendezvousInfo:
        """Meet."""
        info: RendezvousInfo = self._handler.next_rendezvous()
        return info

    def waiting(self) -> int:
        """How many nodes want to take part."""
        return int(self._handler.num_nodes_waiting())

    def close(self) -> None:
        """No node may join any more."""
        self._handler.set_closed()

    def shutdown(self) -> bool:
        """Leave."""
        return bool(self._handler.shutdown())


class _Agreed:
    """In place of torch's class of that name, before torch 2.5: all is agreed on."""

    def __init__(self, addr: str) -> None:
        self._addr = addr

    def build(self, _rank: int, _store: Any) -> RendezvousStoreInfo:
        return RendezvousStoreInfo(self._addr, 0)


def _shares_a_store() -> bool:
    """Whether this torch keeps an address for the workers' store; before 2.5 it agrees on one in each round."""
    return "server_port" in _arguments(RendezvousStoreInfo.build)


def _lacks(handler: Any) -> List[str]:
    """What a handler that has not met anybody is to have, and has not."""
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
    """A rendezvous' state in which the node of that name is lost; None where it is not among them."""
    found = pickle.loads(state)  # noqa: S301 - only those who know the run's key write it
    lost = [node for node in found.last_heartbeats if repr(node) == name]
    for node in lost:
        found.last_heartbeats[node] -= _LONG_AGO
    return pickle.dumps(found) if lost else None


__all__ = ["DynamicRendezvousHandler", "NodeAgent", "Rendezvous", "RendezvousBackend", "RendezvousTimeout", "check", "without"]
