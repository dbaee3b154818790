"""Before a node's agent begins: it gets its environment, with all other nodes, and becomes an agent in that Python."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from typing import Any, Callable, Iterator, NoReturn, Optional, Tuple

from ..job import Job
from ..named_tuple import NamedTuple
from ..network import ports, routes
from ..network.endpoint import Endpoint
from ..protocol import encode_event
from ..system import processes
from . import source
from .chain import Chain, Member, Stop
from .fetching import Fetching, Self, StoppedError
from .manifest import BringError, decode, digest_of
from .mending import lost
from .placing import place
from .serving import Serving
from .shelf import Shelf
from .store import Store, default_directory
from .wire import Limits, LostError

_LOOK_S = 0.05
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Refused(NamedTuple):
    """Why the node's agent cannot begin."""

    message: str
    secondary: bool = False
    """Whether another node is the reason."""

    signal: int = 0
    """The signal that asked this node to stop, if one did."""


class _SignalError(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Brought(NamedTuple):
    """The environment is on this node's disk."""

    digest: str
    python: str
    received_bytes: int
    linked_bytes: int
    new: bool
    """Whether it was not there before, or not all of it."""

    locks: Tuple[int, int]
    """Descriptors that keep it from being removed, by any run since it was seen to be there, or for its age."""


def become(job: Job, rank: int, stream: int, spec: str) -> Refused:
    """Bring the environment and become an agent in it; returns only if that fails."""
    began = time.monotonic()
    node = NodePart(job, rank, spec, lambda name, **about: _say(stream, rank, job.attempt, name, **about))
    try:
        with _signals(), processes.many_files():  # node 0 keeps a connection for each other node
            assert job.env_ship
            node.say("waiting", what=f"the environment from {job.env_ship['source']}", limit_s=job.rdzv_timeout_s)
            brought = node.bring()
            about = {"received_bytes": brought.received_bytes, "linked_bytes": brought.linked_bytes}
            removed = node.store.prune(int(job.env_ship["quota_bytes"])) if brought.new else []
            notes = [f"removed, as it was not used for longest: the environment from {path}" for path in removed]
            duration = round(time.monotonic() - began, 3)
            node.say("environment", path=brought.python, notes=notes, duration_s=duration, **about)
        _become(brought.python, brought.locks, node.listener)
    except _SignalError as told:
        return Refused("the run was stopped while the environment was brought", signal=told.number)
    except StoppedError as stopped:
        return Refused(str(stopped), secondary=True)
    except BringError as problem:
        return Refused(str(problem))
    except OSError as error:
        return Refused(f"the environment cannot be brought: {error}")


def taken_over(job: Job, words: str) -> Job:
    """In the agent that this one has become: the job without the environment. `words`: those of `--in-environment`."""
    numbers = [int(word) for word in words.split(",")]
    for fd in numbers:
        os.set_inheritable(fd, False)
    meeting: Any = {**job.rendezvous, **({"fd": numbers[2]} if len(numbers) > 2 else {})}
    return job._replace(env_ship=None, python_named=True, rendezvous=meeting)


def _say(stream: int, rank: int, attempt: int, name: str, **about: Any) -> None:
    """Write an event: the agent's own writer does not exist yet."""
    with contextlib.suppress(OSError):
        os.write(stream, encode_event(name, rank, **({"attempt": attempt} if attempt else {}), **about))


def _become(python: str, locks: Tuple[int, int], listener: Optional[socket.socket]) -> NoReturn:
    fds = [*locks, *([listener.fileno()] if listener else [])]
    for fd in fds:
        os.set_inheritable(fd, True)
    words, given = [os.path.abspath(sys.argv[0])], iter(sys.argv[1:])
    for word in given:
        if word == "--stdin":
            next(given)
        elif word != "--when-told":
            words.append(word)
    env = dict(os.environ)
    if env.get("VIRTUAL_ENV"):
        env["VIRTUAL_ENV"] = os.path.dirname(os.path.dirname(python))
    os.execve(python, [python, "-u", *words, "--in-environment", ",".join(map(str, fds))], env)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """A request to stop ends the stage, as the agent that takes them does not exist yet."""

    def hear(number: int, _frame: object) -> NoReturn:
        raise _SignalError(number)

    before = {number: signal.getsignal(number) for number in _STOPS}
    for number in _STOPS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _close(fds: Tuple[int, int]) -> None:
    for fd in fds:
        os.close(fd)


class NodePart:
    """One node's part, from nothing to an environment that is ready on all nodes."""

    def __init__(self, job: Job, rank: int, spec: str, say: Callable[..., None]) -> None:
        assert job.env_ship
        self.job, self.rank, self.say = job, rank, say
        self.listener: Optional[socket.socket] = None
        """Node 0's, which its agent takes over: those that it still has to accept are not refused meanwhile."""

        self._told = os.path.join(os.path.dirname(os.path.abspath(spec)), source.LIST)
        self._about = job.env_ship
        self._shelf: Optional[Shelf] = None
        self._limits = Limits(job.host_timeout_s, job.rdzv_timeout_s)
        self._host = os.environ.get("DISTLAUNCH_HOST") or socket.gethostname()

    def bring(self) -> Brought:
        """Bring the environment. Raises `BringError`."""
        brought = self._bring()
        if self._shelf is not None and self._shelf.damaged:  # another node has noticed
            self.store.forget(brought.digest)
            raise BringError(self._shelf.damaged)
        return brought

    def _bring(self) -> Brought:
        if self.job.max_nodes == 1:
            self._open_store()
            return self._read(None)
        endpoint = Endpoint(self.job)
        return self._first(endpoint) if self.rank == 0 else self._other(endpoint)

    def _open_store(self) -> None:
        self.store = Store(self._about.get("dir") or default_directory())

    # -- node 0 -------------------------------------------------------------------------------------------------------

    def _first(self, endpoint: Endpoint) -> Brought:
        endpoint.open()
        endpoint.tell(lambda: routes.candidates(self._host))
        self.listener = socket.socket(fileno=os.dup(endpoint.fds()[0]))
        chain = Chain(self.job.max_nodes, Member(0, self._host, [], endpoint.look()[1]))  # type: ignore[index]
        serving = Serving(self.listener, self.job.key, self._limits, chain.attend)
        problem, brought = None, None
        try:
            self._open_store()
            brought = self._read((chain, serving))
        except (BringError, OSError) as error:
            problem = Stop(str(error), 0, self._host)
        stop = chain.settle(problem, self.job.rdzv_timeout_s)
        serving.stop()
        if stop is not None and stop.node:
            raise StoppedError(stop)
        if stop is not None:
            raise BringError(stop.message)
        assert brought is not None
        return brought

    def _read(self, others: Optional[Tuple[Chain, Serving]]) -> Brought:
        """Read what is missing from the source, while others get it from here."""
        with source.opened(self._about["source"], self.store, self._told) as found:
            digest = digest_of(found.encoded)

            def fill(shelf: Shelf) -> None:
                if others:
                    others[1].offer(found.encoded, shelf)
                    others[0].begin(digest)
                source.read(found, shelf)

            return self._fill(digest, found.encoded, fill, always=others is not None)

    # -- other nodes --------------------------------------------------------------------------------------------------

    def _other(self, endpoint: Endpoint) -> Brought:
        address, port = self._find(endpoint)
        serving = Serving(ports.listening(), self.job.key, self._limits)
        _, own = routes.towards(address)
        every = [*([own] if own else []), *routes.candidates(self._host)]
        addresses = list(dict.fromkeys(every))
        me = Self(self.rank, self._host, addresses, serving.port, self.job.key, self._limits)
        try:
            fetching = Fetching(me, address, port)
        except LostError as error:
            raise StoppedError(Stop(f"it does not bring the environment: {error}", 0, "")) from error
        try:
            self._open_store()
            encoded = fetching.manifest()

            def fill(shelf: Shelf) -> None:
                serving.offer(encoded, shelf)
                fetching.pieces(shelf)

            brought = self._fill(fetching.digest, encoded, fill, always=True)
        except (BringError, OSError) as error:
            fetching.finish(str(error))
            raise
        fetching.finish()
        return brought

    def _find(self, endpoint: Endpoint) -> Tuple[str, int]:
        limit = time.monotonic() + self.job.rdzv_timeout_s
        while (address := endpoint.look()) is None:
            ended = endpoint.ended()
            if ended is not None:
                why = ended["cause"]
                raise StoppedError(Stop(str(why and why["message"]), 0, ""))
            if time.monotonic() > limit:
                raise BringError(f"waited {self.job.rdzv_timeout_s:.0f} s for {endpoint.waits_for}")
            time.sleep(_LOOK_S)
        return address

    # -- all nodes ----------------------------------------------------------------------------------------------------

    def _fill(self, digest: str, encoded: bytes, fill: Callable[[Shelf], None], *, always: bool) -> Brought:
        """Make the environment, unless it is there. `always`: others may need its contents from here nonetheless."""
        manifest = decode(encoded)
        while True:
            with self.store.making(digest) as mine:
                locks = (
                    self.store.use(digest),
                    self.store.guard(),
                )  # first: what is ready then stays, also while all wait
                part = lost(self.store, digest, manifest)
                ready = not (part.files or part.links)
                if not mine and not ready:
                    _close(locks)
                    time.sleep(_LOOK_S)  # another node on this host makes it
                    continue
                shelf = self._shelf = Shelf(self.store, manifest)
                try:
                    if always or not ready:
                        fill(shelf)
                    if not ready:
                        place(self.store, digest, manifest, locks[0])
                except BaseException as error:
                    shelf.fail(str(error))
                    shelf.close()
                    _close(locks)
                    raise
            break
        python = os.path.join(self.store.environment(digest), manifest.python)
        received = shelf.received_bytes
        return Brought(digest, python, received, manifest.total_bytes - received, not ready, locks)
