"""The agent's command line, read without argparse, whose import takes longer than that of the agent's own modules."""

from __future__ import annotations

import sys
from typing import Dict, List, NamedTuple, NoReturn, Optional

_FLAGS = ("--slurm", "--when-told")
_NUMBERS = ("--node-rank", "--below", "--stdin")
_TEXTS = ("--spec", "--node-rank-from", "--without", "--unpack")
_RANKS = ("--node-rank", "--node-rank-from", "--slurm")


class Arguments(NamedTuple):
    """What the command line says."""

    spec: str
    """The run's spec.json."""

    node_rank: Optional[int]
    node_rank_from: str
    """The variable that ends with the node's rank, and what to add: `NAME` or `NAME+K`."""

    slurm: bool
    """Whether srun has started it, so that the rank and the nodes are taken from the job."""

    when_told: bool
    """Whether to start when a line arrives on stdin, and to exit if stdin ends first."""

    below: Optional[int]
    """The pid of the process that reads the stream; the run's directory is removed when both have exited."""

    without: str
    """Variables that the workers do not get, separated by commas."""

    stdin: Optional[int]
    """The workers' stdin."""

    unpack: str
    """A directory with archives of the run, to be unpacked in the run's directory."""


def read(words: List[str]) -> Arguments:
    """The words as arguments, each value in a word of its own; exits with an error if they are wrong."""
    given: Dict[str, str] = {}
    ahead = iter(words)
    for word in ahead:
        if word in given or word not in (*_FLAGS, *_NUMBERS, *_TEXTS):
            refuse(f"unknown argument {word!r}")
        value = "" if word in _FLAGS else next(ahead, None)
        if value is None:
            refuse(f"{word} needs a value")
        if word in _NUMBERS and not value.isdigit():
            refuse(f"{word} must be a number, not {value!r}")
        given[word] = value
    if "--spec" not in given or sum(name in given for name in _RANKS) != 1:
        refuse(f"--spec is needed, and one of {', '.join(_RANKS)}")
    numbers = {name[2:].replace("-", "_"): int(given[name]) if name in given else None for name in _NUMBERS}
    texts = {name[2:].replace("-", "_"): given.get(name, "") for name in _TEXTS}
    flags = {name[2:].replace("-", "_"): name in given for name in _FLAGS}
    found: Dict[str, object] = {**numbers, **texts, **flags}
    return Arguments(**found)  # type: ignore[arg-type]


def refuse(message: str) -> NoReturn:
    """Exit with an error about how the agent was started."""
    sys.stderr.write(f"agent.pyz: {message}\n")
    sys.exit(2)
