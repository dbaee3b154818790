"""One node that brings an environment to its disk, in a process of its own: `node.py JOB RANK`; prints what came."""

from __future__ import annotations

import json
import sys
import time

from launcher.agent import cause
from launcher.agent.environment import stage
from launcher.agent.environment.fetching import StoppedError
from launcher.agent.environment.manifest import BringError
from launcher.agent.job import Job
from launcher.agent.network.endpoint import Endpoint


def main() -> None:
    """Bring it; the last line says how that ended."""
    told = json.loads(sys.argv[1])
    job = Job(command=["true"], kind="program", cwd="/", env={}, **told)
    part = stage.NodePart(job, int(sys.argv[2]), f"{job.directory}/spec.json", lambda *_, **__: None)
    try:
        brought = part.bring()._asdict()
    except BringError as error:
        why = cause.of_node(host="n", node=part.rank, message=str(error), time=time.time())
        Endpoint(job).end(why)  # as its agent would
        brought = {"error": str(error), "secondary": isinstance(error, StoppedError)}
    print(json.dumps(brought), flush=True)


if __name__ == "__main__":
    main()
