"""The streams of a run's nodes, read while some process fetches the pods' logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from launcher.backends._files import FileStream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.backends._base import Chunk
    from launcher.backends.kubernetes.demand import Demand
    from launcher.errors import LaunchError


class Fetcher(Protocol):
    """Fetches the pods' logs in this process, unless another one does."""

    @property
    def failure(self) -> LaunchError | None:
        """Why it had to give up."""

    def start_following(self) -> bool:
        """Fetch from now on, in threads; False if another process does."""

    def stop_following(self) -> None:
        """Fetch no more."""

    @property
    def demand(self) -> Demand:
        """Whose logs it fetches."""


class KubeStream(FileStream):
    """Reads the files, and makes sure that some process writes them."""

    def __init__(self, run: Fetcher, directory: Path, offsets: Mapping[int, int]) -> None:
        super().__init__(directory, run.demand.nodes, offsets)
        self._run = run
        self._mine = run.start_following()
        self._next_try = time.monotonic() + 1.0

    def read(self, timeout_s: float) -> list[Chunk]:
        """The new chunks; takes over fetching if the process that did it has exited."""
        if not self._mine and time.monotonic() > self._next_try:
            self._mine = self._run.start_following()
            self._next_try = time.monotonic() + 1.0
        if not self._run.demand.of_all:
            self.include(self._run.demand.nodes)
        chunks = super().read(timeout_s)
        if not chunks and self._mine and (failure := self._run.failure):
            raise failure
        return chunks

    def close(self) -> None:
        """Fetch no more."""
        super().close()
        if self._mine:
            self._run.stop_following()
