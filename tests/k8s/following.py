"""A `distlaunch k8s` that runs while a test looks at it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from testbed.errors import WaitError
from testbed.running import Running
from tests.command import Result

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_RUN = re.compile(r"^(\S+-\d{8}-\d{6}-\w{4}) on ", re.MULTILINE)


class Follower(Running):
    """Its output is waited for line by line."""

    def wait(self, what: str, condition: Callable[[], T]) -> T:
        """Read on until its output meets a condition."""
        while not (answer := condition()):
            if not self._read(what):
                raise WaitError(f"it ended with {self.process.wait()} before {what}: {self}")
        return answer

    def wait_err(self, words: str) -> None:
        """Read on until it has printed this on stderr."""
        self.wait(f"{words!r} on stderr", lambda: words in self.stderr)

    @property
    def run(self) -> str:
        """The id of the run that it has submitted, from its first lines."""
        return self.wait("its run's id on stderr", lambda: _RUN.search(self.stderr))[1]  # type: ignore[index]

    def result(self) -> Result:
        """Read on until it has ended."""
        return Result(self.end(), self.stdout, self.stderr)
