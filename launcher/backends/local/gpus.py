"""This machine's GPUs, and which of them each simulated node has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.spec import JobSpec


def ids(env: Mapping[str, str]) -> list[str]:
    """The ids of the GPUs. Raises `BackendUnavailableError` if their driver does not answer."""
    return _listed(env)[1]


def _listed(env: Mapping[str, str]) -> tuple[str, list[str]]:
    from launcher.agent.system import facts  # few launches ask

    try:
        return facts.listed(env)
    except OSError as error:
        raise BackendUnavailableError(str(error), hint="--nproc-per-node NUMBER starts workers without it") from error


def workers(names: Sequence[str], part: JobSpec) -> int:
    """How many workers have one of these GPUs each, and at least one."""
    from launcher.agent.system import facts

    return max(1, facts.of_process(names, apart=part.agents.get("virtual_local_rank", False)))


def shares(nodes: int, env: Mapping[str, str]) -> tuple[str, list[list[str]]] | None:
    """The variable for the GPUs, and an equal share for each simulated node; None if there is nothing to divide."""
    variable, found = _listed(env) if nodes > 1 else ("", [])
    if not found:
        return None
    if len(found) < nodes:
        return variable, [[found[rank % len(found)]] for rank in range(nodes)]
    each = len(found) // nodes
    return variable, [found[rank * each : (rank + 1) * each] for rank in range(nodes)]
