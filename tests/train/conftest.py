"""Gloo processes for the bundled scripts, forked from a process with torch or under torchrun, and what they work on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

from tests.fork_servers import AT_START
from tests.train.held import HELD
from tests.train.photographs import SAMPLES
from tests.train.ranks import Done, Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainer.world import World

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
    """The environment of ranks: on the CPU, with one thread."""
    kept = {name: value for name, value in AT_START.items() if name not in OF_A_LAUNCHER}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **(more or {})}


@pytest.fixture(scope="session")
def scripts() -> Path:
    return SCRIPTS


@pytest.fixture(scope="session")
def popen(torch_server: Server) -> Popen:
    """`subprocess.Popen` by forks from a process that has imported what the scripts import, but not their modules."""

    def fork(argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        reason = torch_server.why_not(argv, **options)
        assert reason is None, f"it would import everything anew: {reason}"
        return torch_server.popen(argv, **options)

    return fork


@pytest.fixture(scope="session")
def alone(popen: Popen) -> Alone:
    """Run a script as `python SCRIPT ARGS`."""

    def launch(
        script: str | Path, *args: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
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
    """Start a script on `count` ranks, which end with the block."""

    def launch(
        count: int, script: str | Path, *args: str, env: Mapping[str, str] | None = None, watched: bool = True
    ) -> Ranks:
        argv, directory = [sys.executable, str(SCRIPTS / script), *args], tmp_path_factory.mktemp("ranks")
        return Ranks(popen, argv, count=count, env=environment(env), directory=directory, watched=watched)

    return launch


@pytest.fixture(scope="session")
def ranks(start: Start) -> Together:
    """Run a script on `count` ranks to its end."""

    def launch(count: int, script: str | Path, *args: str, **more: Any) -> Done:
        with start(count, script, *args, **more) as running:
            return running.done()

    return launch


@pytest.fixture(scope="session")
def torchrun() -> Alone:
    """Run a script on `count` ranks under torchrun itself."""

    def launch(count: int, script: str | Path, *args: str) -> subprocess.CompletedProcess[str]:
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        argv = [*run, str(SCRIPTS / script), *args]
        return subprocess.run(argv, capture_output=True, text=True, env=environment(), check=False)

    return launch


@pytest.fixture
def world() -> Iterator[World]:
    from trainer.world import process_group

    with process_group() as alone:
        yield alone


@pytest.fixture(scope="module")
def script(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Write `HELD` with the place at which to hold."""

    def write(at: str = "", number: int = 0) -> Path:
        path: Path = tmp_path_factory.mktemp("held") / "driver.py"
        path.write_text(HELD.format(scripts=str(scripts), at=at, number=number))
        return path

    return write


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of 20 small photographs of 4 classes."""
    import make_shards

    out = tmp_path_factory.mktemp("shards")
    flags = ["--samples", str(SAMPLES), "--classes", "4", "--size", "40x50", "--samples-per-shard", "20"]
    assert make_shards.main(["synthetic", str(out), *flags]) == 0
    return out


@pytest.fixture
def photographs_copy(photographs: Path, tmp_path: Path) -> Path:
    """A copy of the shards, to damage."""
    shutil.copytree(photographs, tmp_path / "copy")
    return tmp_path / "copy"
