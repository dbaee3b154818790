"""Real gloo processes for the bundled scripts: in torchrun's environment, forked from one that has torch; and under torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

from tests.forked import AT_START
from tests.train.ranks import Done, Ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.forked import Server
    from tests.train.ranks import Popen

SCRIPTS = Path(__file__).parents[2] / "train"

if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))  # as python itself does for a script's directory

Alone = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., Ranks]
Together = Callable[..., Done]


OF_A_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_JOB_ID")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of ranks: on the CPU, with one thread."""
    kept = {name: value for name, value in AT_START.items() if name not in OF_A_LAUNCHER}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **(more or {})}


@pytest.fixture(scope="session")
def scripts() -> Path:
    return SCRIPTS


@pytest.fixture(scope="session")
def popen(torch_server: Server) -> Popen:
    """`subprocess.Popen` by forks from a process that has imported what the scripts import, apart from their own modules."""

    def fork(argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        reason = torch_server.why_not(argv, **options)
        assert reason is None, f"it would import everything anew: {reason}"
        return torch_server.popen(argv, **options)

    return fork


@pytest.fixture(scope="session")
def alone(popen: Popen) -> Alone:
    """Run a script as `python SCRIPT ARGS`."""

    def launch(script: str | Path, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(SCRIPTS / script), *args]
        pipe = subprocess.PIPE
        process = popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=environment(env))
        try:
            stdout, stderr = process.communicate()
        finally:
            process.kill()
        return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)

    return launch


@pytest.fixture(scope="session")
def start(popen: Popen, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start a script on so many ranks; they end with the block."""

    def launch(count: int, script: str | Path, *args: str, env: Mapping[str, str] | None = None, watched: bool = True) -> Ranks:
        argv, directory = [sys.executable, str(SCRIPTS / script), *args], tmp_path_factory.mktemp("ranks")
        return Ranks(popen, argv, count=count, env=environment(env), directory=directory, watched=watched)

    return launch


@pytest.fixture(scope="session")
def ranks(start: Start) -> Together:
    """Run a script on so many ranks to its end."""

    def launch(count: int, script: str | Path, *args: str, **more: Any) -> Done:
        with start(count, script, *args, **more) as running:
            return running.done()

    return launch


@pytest.fixture(scope="session")
def torchrun() -> Alone:
    """Run a script on so many ranks under torchrun itself."""

    def launch(count: int, script: str | Path, *args: str) -> subprocess.CompletedProcess[str]:
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        argv = [*run, str(SCRIPTS / script), *args]
        return subprocess.run(argv, capture_output=True, text=True, env=environment(), check=False)

    return launch
