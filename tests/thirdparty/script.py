"""A record of one of the public's scripts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script that runs on CPUs with two workers, in seconds."""

    name: str
    package: str
    packages: str = "plain"
    """The packages that are installed with it: a file below `packages/`."""

    file: str
    """Its path below `site-packages`, or, with `source`, below the directory of that source distribution."""

    sha256: str
    source: str = ""
    module: str = ""
    """It is started with `-m`, as in its documentation."""

    args: tuple[str, ...] = ()
    """`{inputs}` is the directory of its inputs."""

    copies: Mapping[str, str] = field(default_factory=dict)
    """Directories below the inputs that are copied to its working directory, by name."""

    env: Mapping[str, str] = field(default_factory=dict)
    prints: tuple[str, ...] = ()
    """Patterns for the parts of a worker's lines that count."""

    times: int = 1
    """How many matches all workers print together, at least: what is not printed cannot differ."""

    saves: tuple[str, ...] = ()
    """Files whose tensors count; each pattern matches."""

    each_host_speaks: bool = False
    """One process of each host prints what counts: two hosts are compared with two torchruns, one per host."""

    heavy: bool = False
    """It takes longer than most; every second run of all tests has one of these."""

    @property
    def started(self) -> str:
        """How its users start it."""
        return f"-m {self.module}" if self.module else self.file

    @property
    def compared(self) -> str:
        """What counts, in words."""
        printed = "what is printed, on two hosts by both" if self.each_host_speaks else "what is printed"
        return " and ".join([printed] * bool(self.prints) + [f"the tensors of `{name}`" for name in self.saves])


NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
