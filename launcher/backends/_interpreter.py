"""Which module an interpreter needs to run a job's workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent import contracts
from launcher.agent.forkserver.guess import MAYBE, NO, SURELY
from launcher.agent.forkserver.program import Program

if TYPE_CHECKING:
    from launcher.spec import JobSpec


def needed(spec: JobSpec) -> tuple[str, int]:
    """The module by which an interpreter is chosen, and whether workers import it: NO, MAYBE or SURELY."""
    if spec.agents.get("env_ship"):  # the one that is brought runs the workers
        return "torch", NO
    return max(map(_of_part, spec.parts), key=lambda found: found[1])  # of several roles, the one that needs most


def _of_part(spec: JobSpec) -> tuple[str, int]:
    contract = contracts.load(spec.agents.get("contract") or "torchrun")
    torch = Program(list(spec.command), spec.kind, spec.cwd).wants_torch()
    if contract.module == "torch":
        return "torch", torch
    if contract.module and spec.kind != "program":
        return contract.module, SURELY if contract.required else MAYBE
    return "torch", SURELY if torch == SURELY else NO
