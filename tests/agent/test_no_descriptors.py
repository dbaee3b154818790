"""A node that has no descriptor left for more files still looks at its failed workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOOKS = """
import resource, types
from launcher.agent.node.analysis import FailureAnalysis

node = types.SimpleNamespace(out_of_memory=lambda: 0)
FailureAnalysis.begin_round(node)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(FailureAnalysis.of_workers(node, []))
"""


def test_what_looks_at_them_is_not_read_from_a_file_then() -> None:
    root = Path(__file__).parents[2]

    done = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=False, cwd=root)

    assert (done.stdout, done.stderr) == ("[]\n", "")
