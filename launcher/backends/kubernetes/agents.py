"""What the agents of a run are to do in their pods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.failures import Failure
from launcher.backends._plan import PlannedNode
from launcher.backends._roles import with_roles
from launcher.backends.kubernetes import parts, pod
from launcher.errors import SpecError
from launcher.payload import scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.agent.job import Job
    from launcher.agent.messages import Rendezvous
    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.backends.kubernetes.parts import Part
    from launcher.spec import JobSpec

_PORT = 29_400
"""The rendezvous port: in a pod's own network every port is free."""


def command(spec: JobSpec, opts: KubernetesOptions) -> tuple[list[str], bool]:
    """The command in the pod, and whether its script is a bundled one."""
    script = spec.command[0]
    if spec.kind != "script" or opts.workdir or not opts.snapshot:
        return list(spec.command), False
    if scripts.is_bundled(script):
        return [f"{pod.DIRECTORY}/bundled/{Path(script).name}", *spec.command[1:]], True
    relative = os.path.relpath(os.path.join(spec.cwd, script), spec.cwd)
    if relative.startswith("../"):
        raise SpecError(
            f"script {script!r} is not in the working directory, whose files are sent",
            hint=f"cd {os.path.dirname(os.path.abspath(os.path.join(spec.cwd, script)))}, "
            "or --workdir PATH in the image",
        )
    return [relative, *spec.command[1:]], False


def own_scripts(of_run: Sequence[Part], commands: Sequence[tuple[list[str], bool]]) -> list[str]:
    """The user's scripts, which are sent whatever else is."""
    found = zip(of_run, commands, strict=True)
    return [words[0] for part, (words, bundled) in found if part.job.kind == "script" and not bundled]


def rows(of_run: Sequence[Part]) -> tuple[PlannedNode, ...]:
    """The nodes of all parts."""
    return tuple(
        PlannedNode(
            node_rank=part.first + rank,
            host="Kubernetes' choice",
            workers=pod.workers(part.job, part.opts),
            role=part.role,
        )
        for part in of_run
        for rank in range(part.nodes.max)
    )


def job(
    spec: JobSpec, opts: KubernetesOptions, run: str, commands: Sequence[tuple[list[str], bool]], first_pod: str
) -> Job:
    """The agents' job; `first_pod`: the DNS name of node 0's pod."""
    meet: Rendezvous = {"addr": first_pod}
    if opts.host_network:
        meet["ports"] = pod.beacons(run)
    else:
        meet["port"] = _PORT
    found = spec.job(run=run, directory=pod.DIRECTORY, rendezvous=meet)._replace(
        command=commands[0][0],
        **pod.places(spec, opts, run),
        master_addr=None if spec.nodes.elastic else meet["addr"],
        workers=pod.workers(spec, opts),
        sigterm_means=Failure.PREEMPTED,
        replaces_lost=opts.kind in pod.STARTS_AGAIN,
        **(pod.holding(spec) | pod.claiming(spec)),
        plain_stream=True,
    )
    found = with_roles(found, spec, lambda _: {})
    if not found.roles:
        return found
    of_run = parts.of(spec, opts)  # how many workers there are depends on a role's own options
    own = [
        {"command": words, "workers": pod.workers(part.job, part.opts)}
        for part, (words, _) in zip(of_run, commands, strict=True)
    ]
    return found._replace(roles=[{**role, **more} for role, more in zip(found.roles, own, strict=True)])
