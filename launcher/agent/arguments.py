"""The agent's command line, read without argparse, whose import takes longer than that of the agent's own modules."""

from __future__ import annotations

import sys
from typing import Dict, List, NoReturn, Optional

_FLAGS = ("--slurm", "--when-told")
_NUMBERS = ("--node-rank", "--below", "--stdin")
_TEXTS = ("--spec", "--node-rank-from", "--without", "--unpack", "--in-environment", "--cold", "--room")
_RANKS = ("--node-rank", "--node-rank-from", "--slurm")


class Arguments:
    """What the command line says. No tuple with names: its class would take longer to make than all else here."""

    def __init__(self, given: Dict[str, str]) -> None:
        """`given`: the value of each argument, by its name; empty for a flag."""

        def number(name: str) -> Optional[int]:
            return int(given[name]) if name in given else None

        self.spec = given["--spec"]
        """The run's spec.json."""

        self.node_rank = number("--node-rank")
        self.node_rank_from = given.get("--node-rank-from", "")
        """The variable that ends with the node's rank, and what to add: `NAME` or `NAME+K`."""

        self.slurm = "--slurm" in given
        """Whether srun has started it, so that the rank and the nodes are taken from the job."""

        self.when_told = "--when-told" in given
        """Whether to start when a line arrives on stdin, and to exit if stdin ends first."""

        self.below = number("--below")
        """The pid of the process that reads the stream; the run's directory is removed when both have exited."""

        self.without = given.get("--without", "")
        """Variables that the workers do not get, separated by commas."""

        self.stdin = number("--stdin")
        """The workers' stdin."""

        self.cold = given.get("--cold")
        """Why it is not forked from a fork server that was left standing."""

        self.room = given.get("--room")
        """Any text: its place is for the command lines of processes that are forked from this one."""

        self.unpack = given.get("--unpack", "")
        """A directory with archives of the run, to be unpacked in the run's directory."""

        self.in_environment = given.get("--in-environment", "")
        """Descriptors that this agent has from itself, before it became one in the environment that was brought."""


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
    return Arguments(given)


def refuse(message: str) -> NoReturn:
    """Exit with an error about how the agent was started."""
    sys.stderr.write(f"agent.pyz: {message}\n")
    sys.exit(2)
