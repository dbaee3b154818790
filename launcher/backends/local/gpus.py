"""This machine's GPUs, and which of them each simulated node has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.spec import JobSpec


def ids(env: Mapping[str, str]) -> list[str]:
    """The ids of the GPUs. Raises `BackendUnavailableError` if their driver does not answer."""
    from launcher.agent.system import facts  # few launches ask

    try:
        return facts.gpus(env)
    except OSError as error:
        raise BackendUnavailableError(str(error), hint="--nproc-per-node NUMBER starts workers without it") from error


def workers(names: Sequence[str], part: JobSpec) -> int:
    """How many workers have one of these GPUs each, and at least one."""
    from launcher.agent.system import facts

    return max(1, facts.of_process(names, apart=part.agents.get("virtual_local_rank", False)))


def shares(nodes: int, env: Mapping[str, str]) -> list[list[str]] | None:
    """An equal share of the GPUs for each simulated node; None if there is nothing to divide."""
    found = ids(env) if nodes > 1 else []
    if not found:
        return None
    if len(found) < nodes:
        return [[found[rank % len(found)]] for rank in range(nodes)]
    each = len(found) // nodes
    return [found[rank * each : (rank + 1) * each] for rank in range(nodes)]
