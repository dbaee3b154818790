"""Refusals of the API server that a run continues without: one warning each, and everything else is still reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.backends.kubernetes import api

if TYPE_CHECKING:
    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.pod_status import Object


def tell(cluster: Cluster, what: str, doing: str, error: api.ApiError) -> None:
    """Warn of `what` follows from a refusal, once per `doing`."""
    if doing not in cluster.warned:
        cluster.warned.add(doing)
        why = api.explained(error, cluster, doing)
        output.warn(f"{what}: {why.message}" + (f" ({why.hint})" if why.hint else ""))


def events(cluster: Cluster, name: str) -> list[Object]:
    """The events of the objects with that name; empty if they may not be read."""
    query = {"fieldSelector": f"involvedObject.name={name}", "limit": "100"}
    try:
        found: list[Object] = cluster.call("GET", f"/api/v1/namespaces/{cluster.namespace}/events", query=query)[
            "items"
        ]
    except api.ApiError as error:
        tell(cluster, "why pods wait is not known", "to read events", error)
        return []
    return found
