"""Real gloo processes for the bundled scripts, under torchrun and by torchrun's environment alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator

import pytest

SCRIPTS = Path(__file__).parents[2] / "train"
TIMEOUT_S = 300

if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))  # as python itself does for a script's folder

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(**more: str) -> dict[str, str]:
    """This process's, without what a launcher set, on the CPU, with one thread."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}


@pytest.fixture(scope="session")
def scripts() -> Path:
    return SCRIPTS


@pytest.fixture(scope="session")
def alone() -> Launch:
    """Run a script as `python SCRIPT ARGS`."""

    def launch(script: str | Path, *args: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(SCRIPTS / script), *args]
        return subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(), check=False)

    return launch


@pytest.fixture(scope="session")
def torchrun() -> Launch:
    """Run a script on `ranks` ranks under torchrun."""

    def launch(ranks: int, script: str | Path, *args: str) -> subprocess.CompletedProcess[str]:
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        argv = [*run, str(SCRIPTS / script), *args]
        return subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(), check=False)

    return launch


@contextmanager
def two_ranks(script: str, *args: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks that nobody watches, to see what each does by itself; killed at the end of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = []
    for rank in ("0", "1"):
        place = environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        argv = [sys.executable, str(SCRIPTS / script), *args]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=place))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="session", name="two_ranks")
def two_ranks_fixture() -> Callable[..., object]:
    return two_ranks
