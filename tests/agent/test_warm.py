"""Agents that are forked from a process with torch behave like all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.agent.harness import Runner

pytestmark = pytest.mark.torch

SEEN = (
    "import os, sys\n"
    "print(sorted(os.environ), sys.argv, sys.path, sys.flags, os.getcwd(), os.getsid(0) == os.getpid())\n"
)


def test_a_worker_sees_the_same_and_torch_is_imported(agents: Runner, warm_agents: Runner) -> None:
    script = agents.directory / "seen.py"
    script.write_text(SEEN)
    cold, warm = (runner(script, "a b", cwd=agents.directory) for runner in (agents, warm_agents))
    assert warm.result() == "success", (warm.events, warm.agent_stderr())
    assert warm.stdout[0] == cold.stdout[0]

    preloaded = warm_agents("import sys\nprint('torch' in sys.modules)\n", nodes="2", nproc_per_node="2")
    assert list(preloaded.stdout.values()) == [b"True\n"] * 4
    assert preloaded.of("warning") == []
