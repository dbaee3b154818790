"""A signal to all of a run's pods."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from launcher.agent.system.folding import folded
from launcher.backends.kubernetes import api
from launcher.backends.kubernetes.pod_exec import execute
from launcher.errors import CommandError
from launcher.system import proc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.pod_status import Pod

_STARTS_S, _LOOK_S = 30.0, 1.0
"""How long a signal waits for nodes that have not started, and how often it tries them."""

_THREADS, _PODS_EACH = (8, 64), 8
"""At least and at most so many pods are signalled at once, and so many by each thread: each takes 0.25 s or more."""

_NAMED = 5
"""How many of the pods a message names."""


def send(
    cluster: Cluster, look: Callable[[], Sequence[Sequence[Pod]]], container: str, python: str, signum: int
) -> None:
    """Signal every node's agent, which passes it on. Raises `LaunchError` if nodes do not start in time.

    The API server may see a running pod as starting for a minute: such pods are tried, too.
    """
    code = f"{proc.WITHOUT_HERE}import os; os.kill(1, {signum})"  # the agent is the container's PID 1
    told, limit = set[str](), 0.0
    failed: list[api.UnreachableError] = []

    def tell(pod: Pod) -> None:
        try:
            execute(cluster, pod.name, container, [python, "-c", code])
            told.add(pod.name)
        except api.UnreachableError as error:
            if "running" in pod.container:  # it may have the signal, and must not get it twice
                failed.append(error)  # reported once the others have it

    try:
        while True:
            left = [pod for known in look() for pod in known[-1:] if not pod.ended and pod.name not in told]
            with ThreadPoolExecutor(min(max(_THREADS[0], len(left) // _PODS_EACH), _THREADS[1])) as pool:
                list(pool.map(tell, left))
            if failed:
                raise failed[0]
            if not (missed := [pod.name for pod in left if pod.name not in told]):
                return
            limit = limit or time.monotonic() + _STARTS_S  # to signal many takes a while
            if time.monotonic() > limit:
                names = folded(missed, _NAMED)
                raise CommandError(f"pods that have not started in {_STARTS_S:.0f} s were not signalled: {names}")
            time.sleep(_LOOK_S)
    except (api.ApiError, api.UnreachableError) as error:
        raise api.explained(error, cluster, "to signal the workers") from error
