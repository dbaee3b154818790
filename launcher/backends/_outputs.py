"""The files that a node's workers have written, listed and read: from a directory here, or over a connection."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol

from launcher.agent import notice
from launcher.agent.named_tuple import NamedTuple
from launcher.agent.outputs import serve, signs
from launcher.agent.outputs.receive import receive
from launcher.agent.outputs.tree import Tree, TreeError
from launcher.errors import CommandError, RequestError, StorageError
from launcher.system import numbers, storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from launcher.system.pipes import Bridge

_SILENT_S = 60.0
_CONNECTED_S = 30.0
_LINE_BYTES = 64 << 20
_READ_BYTES = 1 << 20


class Listed(NamedTuple):
    """One file of a node."""

    name: str
    """Relative to the directory; bytes that are not UTF-8 as surrogates."""

    size: int
    mtime_ns: int


class Listing(NamedTuple):
    """The files that match a pattern."""

    directory: str
    files: tuple[Listed, ...]
    left_out: tuple[tuple[str, str], ...]
    """Names of what matches but cannot be fetched, with the reason."""

    there: tuple[str, ...]
    """If nothing matches: some names in the directory."""


class Ending(NamedTuple):
    """What was read of a file."""

    size: int
    mtime_ns: int
    sha256: str
    changed: bool
    """Whether the file changed while it was read."""


class Outputs(Protocol):
    """The files of one node."""

    def listed(self, pattern: str) -> Listing:
        """The files that match; an empty pattern: all that were not sent. Raises `LaunchError`."""

    def read(self, name: str, offset: int, sink: Callable[[bytes], None]) -> Ending:
        """Pass the file's bytes from the offset on to `sink`. Raises `LaunchError`.

        `RequestError`: it cannot be read; `in_part` if it has to be tried again, as its disk has failed.
        """

    def hold(self) -> None:
        """Have the node's agent wait at its end until `release`, if files are lost with the node. `LaunchError`."""

    def await_end(self) -> None:
        """Return once it does. Raises `LaunchError`."""

    def release(self) -> None:
        """Tell the node's agent that nothing more will be fetched. Raises `LaunchError`."""

    def put(self, files: Mapping[str, Path]) -> None:
        """Write files there before the workers start, by their names there, instead of any there. `LaunchError`."""

    def grant(self) -> None:
        """Tell node 0's agent that its run has the claim for which it waits. Raises `LaunchError`."""

    def take(self, name: str) -> bool:
        """Take on to send this notice of the run; False if somebody else has. Raises `LaunchError`."""

    def close(self) -> None:
        """Close the connection."""


class SharedOutputs:
    """Files of a directory that is also here."""

    def __init__(self, run_dir: Path) -> None:
        """`run_dir`: the run's directory, with its spec.json."""
        spec = storage.read_json(run_dir / "spec.json")
        if spec is None:
            raise StorageError(f"{run_dir / 'spec.json'} cannot be read")
        self._run_dir, self._tree = run_dir, Tree(serve.directory_of(spec))

    def listed(self, pattern: str) -> Listing:
        """As `Outputs` does."""
        return _listing(self._call(lambda: self._tree.listed(pattern)))

    def read(self, name: str, offset: int, sink: Callable[[bytes], None]) -> Ending:
        """As `Outputs` does."""

        def found() -> dict[str, Any]:
            try:
                return self._tree.read(name, offset, sink)
            except OSError as error:
                raise RequestError(f"{name}: {error.strerror}", in_part=True) from error

        return _ending(self._call(found))

    def release(self) -> None:
        """No agent waits for that."""

    hold = await_end = release

    def put(self, files: Mapping[str, Path]) -> None:
        """As `Outputs` does."""
        for name, path in files.items():
            with storage.storage_errors(path), path.open("rb") as file:
                problem = receive(self._tree.top, name, os.fstat(file.fileno()).st_size, file)
            if problem:
                raise StorageError(problem)

    def grant(self) -> None:
        """As `Outputs` does."""
        storage.write_whole(self._run_dir / signs.GRANTED, b"", mode=0o600)

    def take(self, name: str) -> bool:
        """As `Outputs` does."""
        with storage.storage_errors(self._run_dir):
            return notice.take(str(self._run_dir), name)

    def close(self) -> None:
        """Nothing is open."""

    def _call(self, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return call()
        except TreeError as error:
            raise RequestError(str(error)) from error
        except OSError as error:
            raise StorageError(f"{error.filename or self._tree.top}: {error.strerror}") from error


class RemoteOutputs:
    """Files of a node that runs `agent.pyz host outputs` at the other end of a connection."""

    def __init__(self, host: str, bridge: Bridge, more_s: float = 0.0) -> None:
        """Waits until the other end answers, for `more_s` longer than usual. Raises `CommandError` if it does not."""
        self._host, self._bridge, self._rest = host, bridge, b""
        try:
            bridge.wait_for(serve.READY, _CONNECTED_S + more_s)
        except CommandError as error:
            raise CommandError(f"{host}: {error.message}", hint=error.hint) from error

    def listed(self, pattern: str) -> Listing:
        """As `Outputs` does."""
        return _listing(self._ask({"list": pattern}, lambda _: None))

    def read(self, name: str, offset: int, sink: Callable[[bytes], None]) -> Ending:
        """As `Outputs` does."""
        return _ending(self._ask({"read": name, "offset": offset}, sink))

    def hold(self) -> None:
        """As `Outputs` does."""
        self._ask({"hold": True}, lambda _: None)

    def await_end(self) -> None:
        """As `Outputs` does."""
        self._ask({"await": True}, lambda _: None)

    def release(self) -> None:
        """As `Outputs` does."""
        self._ask({"release": True}, lambda _: None)

    def grant(self) -> None:
        """As `Outputs` does."""
        self._ask({"grant": True}, lambda _: None)

    def take(self, name: str) -> bool:
        """As `Outputs` does."""
        return self._ask({"take": name}, lambda _: None).get("taken") is True

    def put(self, files: Mapping[str, Path]) -> None:
        """As `Outputs` does."""
        for name, path in files.items():
            with storage.storage_errors(path), path.open("rb") as file:
                self._ask({"write": name, "bytes": os.fstat(file.fileno()).st_size}, lambda _: None, file)

    def close(self) -> None:
        """End the program at the other end."""
        self._bridge.end()

    def _start(self) -> None:
        """Limit how long the next answer may take."""
        self._bridge.sock.settimeout(_SILENT_S)

    def _ask(
        self, request: Mapping[str, Any], sink: Callable[[bytes], None], source: IO[bytes] | None = None
    ) -> dict[str, Any]:
        self._start()
        self._send_all(json.dumps(request).encode("ascii") + b"\n")
        while source is not None and (block := source.read(_READ_BYTES)):
            self._send_all(block)
        try:
            while (line := self._line())[:2] != b"a ":
                if line != b"k":
                    self._pass(int(line.removeprefix(b"d ")), sink)
            answer = dict(numbers.loads(line[2:]))
        except (ValueError, TypeError, RecursionError):
            raise CommandError(f"{self._host}: its answer is not an agent's") from None
        if "problem" in answer:
            raise RequestError(f"{self._host}: {answer['problem']}", in_part=answer.get("in_part") is True)
        return answer

    def _send_all(self, data: bytes) -> None:
        with self._connection():
            self._bridge.sock.sendall(data)

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            if len(self._rest) > _LINE_BYTES:
                raise CommandError(f"{self._host}: its answer is a line without an end")
            self._more()
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _pass(self, size: int, sink: Callable[[bytes], None]) -> None:
        while size > 0:
            if not self._rest:
                self._more()
            block, self._rest = self._rest[:size], self._rest[size:]
            size -= len(block)
            sink(block)

    def _more(self) -> None:
        with self._connection():
            data = self._bridge.sock.recv(_READ_BYTES)
        if not data:
            raise self._broken()
        self._rest += data

    @contextmanager
    def _connection(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise CommandError(f"{self._host} has sent nothing for {_SILENT_S:.0f} s", hint=_AGAIN) from None
        except ConnectionError as error:
            raise self._broken() from error

    def _broken(self) -> CommandError:
        return CommandError(f"{self._host}: the connection broke: {self._bridge.end() or 'it ended'}", hint=_AGAIN)


_AGAIN = "fetch again: it continues where it stopped"


def _listing(found: Mapping[str, Any]) -> Listing:
    try:
        files = tuple(Listed(str(name), int(size), int(mtime_ns)) for name, size, mtime_ns in found["files"])
        left_out = tuple((str(name), str(why)) for name, why in found["left_out"])
        listing = Listing(str(found["top"]), files, left_out, tuple(map(str, found["there"])))
    except (KeyError, ValueError, TypeError) as error:
        raise CommandError(f"the node's list of files is not an agent's: {error!r}") from error
    for name, *_ in files:
        check_name(name)
    return listing


def check_name(name: str) -> None:
    """Raise `CommandError` unless it can be the path of a file below a directory here: hosts are untrusted."""
    if not name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise CommandError(f"a node reports a file {name!r}, which is not a path in its directory")


def _ending(found: Mapping[str, Any]) -> Ending:
    try:
        return Ending(int(found["bytes"]), int(found["mtime_ns"]), str(found["sha256"]), found["changed"] is not False)
    except (KeyError, ValueError, TypeError) as error:
        raise CommandError(f"the node's report on a file is not an agent's: {error!r}") from error
