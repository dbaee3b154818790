"""Runs to report on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.frameworks.conftest import in_pods, local, on_slurm, over_ssh

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

__all__ = ["in_pods", "local", "on_slurm", "over_ssh"]

SCRIPT = """\
import os, sys, time
rank = int(os.environ["RANK"])
if "slow" in sys.argv and rank == 2:
    time.sleep(3.5)
print("rank", rank, "starts", flush=True)
if "hostile" in sys.argv:
    print("</span></pre><script>document.title = 'taken'</script><img src=x onerror=\\"document.title = 'taken'\\">")
for step in range(30):
    print(f"\\033[1mstep {step}\\033[0m of rank {rank}", flush=True)
if "wait" in sys.argv:
    time.sleep(600)
if "tell" in sys.argv:
    for step in range(4):
        print(f"::distlaunch progress step={step + 1}/4 loss={4 - step}", flush=True)
        time.sleep(1.1)
if "fail" in sys.argv:
    printed = "printed-" + os.environ["TORCHELASTIC_RESTART_COUNT"] + "-"
    open(printed + str(rank), "w").close()
    if rank == 1:
        while not all(os.path.exists(f"{printed}{each}") for each in range(int(os.environ["WORLD_SIZE"]))):
            time.sleep(0.01)
        raise ValueError("this batch is bad")
"""


@pytest.fixture
def reporter(distlaunch: Cli) -> Cli:
    """The command line, with a script beside it."""
    distlaunch.write("work.py", SCRIPT)
    return distlaunch


def content(cli: Cli, *args: str, **more: Any) -> dict[str, Any]:
    """A report as JSON."""
    done = cli("report", *args, "--format", "json", **more)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def page_of(cli: Cli, *args: str) -> Path:
    """A report as HTML."""
    path = cli.directory / "run.html"
    done = cli("report", *args, "-o", str(path))
    assert done.exit_code == 0, done.stderr
    return path
