"""What a run goes on without where the API server refuses it: said once, and whatever else is known stays known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.backends.kubernetes import api

if TYPE_CHECKING:
    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.states import Object


def tell(cluster: Cluster, what: str, doing: str, error: api.ApiError) -> None:
    """Warn of `what` has become of a refusal, once for what was being done."""
    if doing not in cluster.warned:
        cluster.warned.add(doing)
        why = api.explained(error, cluster, doing)
        output.warn(f"{what}: {why.message}" + (f" ({why.hint})" if why.hint else ""))


def events(cluster: Cluster, name: str) -> list[Object]:
    """What the cluster tells of the objects of that name; nothing where that may not be read."""
    query = {"fieldSelector": f"involvedObject.name={name}", "limit": "100"}
    try:
        found: list[Object] = cluster.call("GET", f"/api/v1/namespaces/{cluster.namespace}/events", query=query)["items"]
    except api.ApiError as error:
        tell(cluster, "why pods wait is not known", "to read events", error)
        return []
    return found
