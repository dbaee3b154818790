"""The plan of a local run, and a script that runs it by hand."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any, TypedDict

from launcher.agent.job import LOOPBACK
from launcher.backends._base import master_text
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.agent.job import Job
    from launcher.backends._plan import PlannedNode

_AGENT = ("-u", "agent.pyz", "--spec", "spec.json", "--node-rank")
_START = """\
#!/bin/sh
# Runs the agents of this directory, which may be moved, until the run ends. Their streams go to stdout; Ctrl-C ends it.
cd "$(dirname "$0")" || exit
rm -f rendezvous.json rendezvous.json.end nodes/*/agent.json
stop() {{  # PYTHON may be a wrapper script: the agent below it has recorded its pid
    node=0
    for pid in $agents; do
        noted=$(sed -n 's/^{{"pid": \\([0-9]*\\),.*/\\1/p' "nodes/$node/agent.json" 2>/dev/null)
        kill "${{noted:-$pid}}" 2>/dev/null
        node=$((node + 1))
    done
}}
trap stop INT TERM HUP
{agents}
fine=0 code=0 first=
for agent in $agents; do
    wait "$agent"; ended=$?
    while kill -0 "$agent" 2>/dev/null; do wait "$agent"; ended=$?; done  # a signal interrupts `wait`
    first=${{first:-$ended}}
    case $ended in
        0) fine=$((fine + 1)) ;;
        124 | 130) [ $code = 0 ] && code=$ended; [ $code = $ended ] || code=1 ;;  # the time limit; cancelled
        *) code=1 ;;
    esac
done
[ $fine -ge {needed} ] || {proof}exit $code
"""


class Planned(TypedDict):
    """What would be started on this machine."""

    argv: list[list[str]]
    """The command of each node's agent."""

    spec: dict[str, Any]
    """What the agents read: a `Job` of launcher/agent/job.py, for agents of the same version only."""


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
        """The loopback address; the port is chosen by binding to it."""
        return master_text(LOOPBACK, self.job.master_port)

    def argv(self, node_rank: int) -> tuple[str, ...]:
        """The command that starts a node's agent."""
        return argv_of(self.run_dir, self.python, node_rank)

    @property
    def tasks(self) -> tuple[int, ...]:
        """There are no job arrays."""
        return ()

    def to_json(self) -> Planned:
        """The argv of each node and the spec that all of them read."""
        return {"argv": [list(self.argv(node.node_rank)) for node in self.nodes], "spec": self.job.to_json()}


def argv_of(run_dir: Path, python: str, node_rank: int) -> tuple[str, ...]:
    """The command that starts the agent of that node from the run's directory."""
    unbuffered, archive, option_, spec, rank = _AGENT
    return (python, unbuffered, str(run_dir / archive), option_, str(run_dir / spec), rank, str(node_rank))


def spec_text(job: Job) -> str:
    """Content of spec.json."""
    return json.dumps(job.to_json(), indent=2) + "\n"


def by_hand(plan: LocalPlan) -> str:
    """A script that starts the agents of its directory and exits with the run's exit code."""
    agents = [
        f'setsid {shlex.join((plan.python, *_AGENT, str(node.node_rank)))} & agents="$agents $!"' for node in plan.nodes
    ]
    # Nodes of an elastic run may be lost after they have finished. Node 0 succeeds only if enough have.
    proof = '[ "$first" = 0 ] || ' if plan.job.elastic else ""
    return _START.format(agents="\n".join(agents), needed=plan.job.min_nodes, proof=proof)
