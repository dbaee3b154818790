"""What would be started on this machine, and the same as a script."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from launcher.agent.job import LOOPBACK
from launcher.backends._base import master_text

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.agent.job import Job
    from launcher.backends._base import PlannedNode

_AGENT = ("agent.pyz", "--spec", "spec.json", "--node-rank")
_START = """\
#!/bin/sh
# Runs this directory's agents, wherever it lies, to the end of the run. Their streams come on stdout; Ctrl-C ends the run.
cd "$(dirname "$0")" || exit
rm -f rendezvous.json nodes/*/agent.json
stop() {{  # PYTHON may be a script, below which the agent is: that has noted its pid
    node=0
    for pid in $agents; do
        noted=$(sed -n 's/^{{"pid": \\([0-9]*\\),.*/\\1/p' "nodes/$node/agent.json" 2>/dev/null)
        kill "${{noted:-$pid}}" 2>/dev/null
        node=$((node + 1))
    done
}}
trap stop INT TERM HUP
{agents}
fine=0 code=0
for agent in $agents; do
    wait "$agent"; ended=$?
    while kill -0 "$agent" 2>/dev/null; do wait "$agent"; ended=$?; done  # a signal ends the waiting
    case $ended in
        0) fine=$((fine + 1)) ;;
        124 | 130) [ $code = 0 ] && code=$ended; [ $code = $ended ] || code=1 ;;  # the time limit; cancelled
        *) code=1 ;;
    esac
done
[ $fine -ge {needed} ] || exit $code
"""


class Planned(TypedDict):
    """What would be started on this machine."""

    argv: list[list[str]]
    """Of each node's agent."""

    spec: dict[str, Any]
    """What the agents read, as `Job` in launcher/agent/job.py has it: for agents of the same version alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """The agents that would be started on this machine."""

    run_dir: Path
    python: str
    job: Job
    """Content of spec.json."""

    nodes: tuple[PlannedNode, ...]

    @property
    def master(self) -> str:
        """The loopback address; the port is chosen by binding it."""
        return master_text(LOOPBACK, self.job.master_port)

    def argv(self, node_rank: int) -> tuple[str, ...]:
        """The command that starts a node's agent."""
        return argv_of(self.run_dir, self.python, node_rank)

    def to_json(self) -> Planned:
        """The argv of each node and the spec that all of them read."""
        return {"argv": [list(self.argv(node.node_rank)) for node in self.nodes], "spec": self.job.to_json()}


def argv_of(run_dir: Path, python: str, node_rank: int) -> tuple[str, ...]:
    """The command that starts the agent of that node from the run's directory."""
    archive, option_, spec, rank = _AGENT
    return (python, str(run_dir / archive), option_, str(run_dir / spec), rank, str(node_rank))


def spec_text(job: Job) -> str:
    """Content of spec.json."""
    return json.dumps(job.to_json(), indent=2) + "\n"


def by_hand(plan: LocalPlan) -> str:
    """A script that starts the agents of the directory it is in, and ends with the run's exit code."""
    agents = [f'setsid {shlex.join((plan.python, *_AGENT, str(node.node_rank)))} & agents="$agents $!"' for node in plan.nodes]
    return _START.format(agents="\n".join(agents), needed=plan.job.min_nodes)
