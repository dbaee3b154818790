"""The flight recorder of a round's workers, as the worker group's process sees it: on or off, and what it tells."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence

from ..contracts._contract import Contract
from ..job import Job
from ..system.facts import gpu_count
from .nodes import Nodes

if TYPE_CHECKING:
    from ..flight.recorder import Recorder
    from ..messages import Cause
    from ..stacks.judging import Sample


def begin_round(job: Job, nodes: Nodes, contract: Contract, scratch: str, first_rank: int) -> None:
    """Switch the recorders of this node's workers on for a round: NCCL's with torch and GPUs, others if the user has.

    Args:
        job: the run's request.
        nodes: this node's part of the run, which gets the recorder and its variables.
        contract: the workers' one.
        scratch: the node's directory in memory.
        first_rank: the number of workers in the roles before this one.
    """
    hangs = nodes.whole.hangs
    hangs.recorder, hangs.recorders = None, []
    seen = gpu_count(os.environ)
    if not seen and not any(name.endswith("_TEMP_FILE") for name in os.environ):  # imports nothing without need
        return
    from ..contracts._contract import version_of
    from ..flight import recorder

    found = recorder.of_user(os.environ)
    if seen and contract.torch and job.kind != "program" and "PYTHON_EXEC" not in os.environ:
        where = os.path.join(job.directory, "nodes", str(nodes.node_rank), "flight", f"{job.attempt}-{nodes.round}")
        version = recorder.numbers(version_of("torch"))
        found, hangs.recorders = recorder.switched_on(os.environ, version, where, scratch, nodes.round)
    hangs.recorder = found and found.below(job.cwd)._replace(role=job.role, first_rank=first_rank)


class Told:
    """What the recorders of all ranks of this role tell together."""

    def __init__(self, recorder: Recorder, answers: Sequence[Mapping[str, Any]], limit_s: float) -> None:
        """`answers`: those of the nodes to a request for stacks and dumps, which may be compared for `limit_s`."""
        self.findings: List[Dict[str, Any]] = []
        self.problem = ""
        """Why there are no findings, though there are dumps."""

        mine = [each["flight"] for each in answers if (each.get("flight") or {}).get("role") == recorder.role]
        self.files = [each["files"] for each in mine if each["files"]]
        """Where the dumps of each node are: a host's name and the beginning of their names."""

        self.problems = [each["problem"] for each in mine if each["problem"]]
        dumps = [each["dumps"] for each in mine if each["dumps"]]
        if dumps:
            self._analyse(dumps, recorder.first_rank, limit_s)

    def _analyse(self, dumps: List[str], first_rank: int, limit_s: float) -> None:
        from ..flight import findings, program

        try:
            found = program.ask({"do": program.ANALYSE, "dumps": dumps}, limit_s)["findings"]
        except program.FailedError as error:
            self.problem = str(error)
        else:
            self.findings = [findings.of_run(each, first_rank) for each in found]

    def guilty(self) -> List[int]:
        """The ranks of the run for which the others wait, by the first finding."""
        from ..flight import findings

        return findings.guilty(self.findings[0]) if self.findings else []

    def never_came(self) -> List[int]:
        """The same, if they have not called that collective at all."""
        return self.guilty() if self.findings and self.findings[0]["missing"] else []

    def in_words(self, seen: Sample, *, with_places: bool = False) -> str:
        """The findings in one line, or where the dumps of one node are if there are none: all nodes get the cause.

        `seen`: the stacks of all ranks. `with_places`: also say where ranks are that never came.
        """
        from ..flight import findings
        from ..stacks import judging
        from ..system.folding import folded

        if not self.findings:
            return f"{self.problem or 'nothing was found'}; see {folded(self.files, 1, few=1)}" if self.files else ""
        first, *others = [
            findings.in_words([each], lambda rank: seen.hosts.get(rank, "")) for each in self.findings[:2]
        ]
        if with_places and self.never_came():
            name, number = findings.called(self.findings[0])
            first = judging.missing(seen, self.never_came(), name, number) or first
        return "; ".join([first, *others])

    def added_to(self, cause: Cause, words: str) -> Cause:
        """The cause of a failure, with these words if they are not in it, and the guilty rank."""
        message = f"{cause['message']}; flight recorder: {words}" if words else cause["message"]
        found: Cause = {**cause, "message": message}
        guilty = self.guilty()
        if guilty and guilty[0] != cause["rank"]:
            found["rank"] = guilty[0]
            found["host"] = found["node"] = found["local_rank"] = found["exit_code"] = found["signal"] = None
        return found

    def event(self, seen: Sample) -> Dict[str, Any]:
        """The fields of the event."""
        from ..flight import findings

        brief = [findings.brief(each) for each in self.findings]
        return {"message": self.in_words(seen), "findings": brief, "files": self.files, "problems": self.problems}
