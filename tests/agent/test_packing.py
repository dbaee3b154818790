"""The agent's archive."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from launcher.agent import bytecode
from launcher.payload import agent_archive
from tests.packed import with_damaged_seldom_modules

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

REDUCES = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
assert value == dist.get_world_size()
dist.destroy_process_group()
"""

PACK = """
import sys
if sys.argv[1:]:
    for text in map(chr, range(256)):
        sys.intern(text)
    import http.client, email.mime.text
from launcher.payload import agent_archive, agent_packing
sys.stdout.buffer.write(agent_packing.whole(agent_archive.sources()))
"""


def test_any_process_packs_the_same_bytes() -> None:
    """Their digest is the agent's name: a host has it, and a server that stands fits, whatever has packed it."""
    packed = [
        subprocess.run([sys.executable, "-c", PACK, *words], capture_output=True, timeout=60, check=True).stdout
        for words in ([], ["after others"])
    ]
    assert packed[0] == packed[1]
    assert len(packed[0]) > 1_000_000


@pytest.mark.torch
def test_a_run_on_two_nodes_imports_nothing_that_is_compressed(distlaunch: Cli, tmp_path: Path) -> None:
    distlaunch.write("work/reduces.py", REDUCES)
    nodes = ("--nodes", "2", "--nproc-per-node", "2", "--samples", "0")  # a run that takes long would have one
    argv = ("local", *nodes, "--render-to", str(tmp_path / "rendered"), "reduces.py")
    assert distlaunch(*argv, cwd=tmp_path / "work").exit_code == 0
    agent = tmp_path / "rendered/agent.pyz"
    agent.write_bytes(with_damaged_seldom_modules(agent.read_bytes()))

    done = subprocess.run(["sh", str(tmp_path / "rendered/start.sh")], capture_output=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_a_module_that_is_compressed_can_be_imported_and_read(tmp_path: Path) -> None:
    agent = tmp_path / "agent.pyz"
    agent.write_bytes(agent_archive.packed())
    use = "from distlaunch_agent import bytecode; bytecode.use(); from distlaunch_agent.terminal import attach"
    show = "import inspect; print(attach.__loader__.__class__.__name__, inspect.getsource(attach)[:3])"

    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(agent)!r}); {use}; {show}"],
        capture_output=True, timeout=60, check=True, text=True,
    )  # fmt: skip

    assert done.stdout.split() == [bytecode.Finder.__name__, '"""']
