"""An agent that has no descriptor left for more files still looks at its failed workers."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from launcher.agent.system import processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torchrun.node import Node

FAILS = """
import os, sys, time
if os.fork() == 0:
    time.sleep(600)
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
raise ValueError("no")
"""
"""Its child keeps the pipes to the agent, which would give some descriptors back when they are closed."""


def test_what_looks_at_them_is_not_read_from_a_file_then(start: Callable[..., Node]) -> None:
    node = start(FAILS, "--tee", "3", "x.py", "go")
    node.until(lambda: "up" in node.out)
    agent = next(pid for pid, _ in node.below() if processes.below(pid))
    taken = {int(name) for name in os.listdir(f"/proc/{agent}/fd")}
    _, hard = resource.prlimit(agent, resource.RLIMIT_NOFILE)
    free = next(number for number in range(hard) if number not in taken)

    resource.prlimit(agent, resource.RLIMIT_NOFILE, (free, hard))
    (node.directory / "go").touch()

    assert node.wait() == 1
    assert "ValueError: no" in node.err
    assert "Too many open files" not in node.err, node.err
