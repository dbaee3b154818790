"""A script cannot tell a forked worker from one that torchrun started: all it can see is compared, one by one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.system.processes import ASKS_FOR_STACKS
from tests.agent.harness import SCRIPTS, Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.command import Cli
    from tests.forked import Server

pytestmark = pytest.mark.torch

TRACKERS = {"WANDB_RUN_GROUP", "WANDB_RUN_ID", "WANDB_RESUME", "MLFLOW_RUN_CONTEXT"}
FILES = {"DISTLAUNCH_DEADLINE_FILE", "DISTLAUNCH_PROGRESS_FILE"}
OURS = {"DISTLAUNCH_RUN_ID", "DISTLAUNCH_OUTPUT_DIR", "DISTLAUNCH_GIVEN", *FILES, *TRACKERS}
"""Variables that only distlaunch sets."""

PER_RUN = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "CENSUS_OUT",
    "PYTEST_CURRENT_TEST",
}
"""Variables that torchrun sets too, with another value in each run."""

STACKS = {"/fds", "/kernel_signals/SigCgt"}
"""What a forked worker has so that it can be asked for its stacks: the highest descriptor, and one signal's handler."""

ARGS = ["a b", "'\"$HOME`x`\\", "--flag=ü", "line\nbreak", "--", "-x"]


@pytest.fixture(scope="module", autouse=True)
def default_signals() -> Iterator[None]:
    """Default actions, even if the tests run under nohup: torchrun has handlers, so its workers ignore no signal."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)}
    ignored = [number for number, handler in before.items() if handler == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def read(prefix: Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads(prefix.with_name(f"{prefix.name}.{rank}").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory: pytest.TempPathFactory, torch_server: Server) -> Callable[..., list[dict[str, Any]]]:
    """What the workers of torchrun saw; each case runs once."""
    seen: dict[str, list[dict[str, Any]]] = {}

    def run(target: list[str], ranks: int, env: dict[str, str]) -> list[dict[str, Any]]:
        key = repr((target, ranks, env))
        if key not in seen:
            seen[key] = under_torchrun(torch_server, tmp_path_factory.mktemp("torchrun") / "theirs", target, ranks, env)
        return seen[key]

    return run


def under_torchrun(
    server: Server, prefix: Path, target: list[str], ranks: int, env: dict[str, str]
) -> list[dict[str, Any]]:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *target, *ARGS]
    environment = {**os.environ, **env, "CENSUS_OUT": str(prefix)}
    server.run(
        argv, check=True, timeout=120, env=environment, stdin=subprocess.DEVNULL, capture_output=True, cwd=SCRIPTS
    )
    return read(prefix, ranks)


def check_stacks(theirs: dict[str, Any], ours: dict[str, Any], *, has_them: bool) -> None:
    caught = int(ours["kernel_signals"]["SigCgt"], 16) ^ int(theirs["kernel_signals"]["SigCgt"], 16)
    more = [fd for fd in ours["fds"] if fd not in theirs["fds"]]
    assert (caught, more) == ((1 << ASKS_FOR_STACKS - 1, [1023]) if has_them else (0, []))


def without_stacks(told: Any) -> Any:
    """The same without the one signal that a forked worker catches for its stacks."""
    if isinstance(told, dict):
        return {key: _uncaught(value) if key == "SigCgt" else without_stacks(value) for key, value in told.items()}
    return [without_stacks(each) for each in told] if isinstance(told, list) else told


def _uncaught(signals: str) -> str:
    return f"{int(signals, 16) & ~(1 << (ASKS_FOR_STACKS - 1)):016x}"


def differences(theirs: Any, ours: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found = {}
        for key in sorted(set(theirs) | set(ours)):
            found.update(differences(theirs.get(key), ours.get(key), f"{path}/{key}"))
        return found
    return {} if theirs == ours else {path: (theirs, ours)}


CASES = [
    pytest.param(["census.py"], "script", 2, {}, id="script"),
    pytest.param(["-m", "census"], "module", 2, {}, id="module"),
    pytest.param(["census.py"], "script", 1, {}, id="one worker, so no OMP_NUM_THREADS"),
    pytest.param(
        ["./../scripts/census.py"], "script", 2, {"OMP_NUM_THREADS": "2", "PYTHONPATH": "/nowhere"}, id="threads"
    ),
]


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize(("target", "kind", "ranks", "env"), CASES)
def test_a_worker_sees_what_it_sees_under_torchrun(
    agents: Runner, torchrun: Callable[..., Any], tmp_path: Path, target: list[str], kind: str, ranks: int,
    env: dict[str, str], start: str,
) -> None:  # fmt: skip
    theirs = torchrun(target, ranks, env)
    pairs = tuple(f"{key}={value}" for key, value in {**env, "CENSUS_OUT": str(tmp_path / "ours")}.items())
    run = agents(target[-1], *ARGS, kind=kind, nproc_per_node=str(ranks), env=pairs, start_method=start, cwd=SCRIPTS)
    assert run.result() == "success", run.stderr
    ours = read(tmp_path / "ours", ranks)

    expected = (
        {f"/env/{name}" for name in OURS | PER_RUN} | {"/seeds", "/authkey"} | (STACKS if start == "fork" else set())
    )
    for rank in range(ranks):
        found = differences(theirs[rank], ours[rank])
        assert {key: value for key, value in found.items() if key not in expected} == {}
        assert ours[rank]["env"]["TORCHELASTIC_USE_AGENT_STORE"] == "True"
        assert set(ours[rank]["env"]) - set(theirs[rank]["env"]) == OURS
        check_stacks(theirs[rank], ours[rank], has_them=start == "fork")


def in_a_terminal(argv: list[str], env: dict[str, str]) -> int:
    """Run a command in a terminal; return its exit code."""
    leader, terminal = pty.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    argv = ["setsid", "--ctty", "--wait", *argv]
    process = subprocess.Popen(argv, stdin=terminal, stdout=terminal, stderr=terminal, env=env, cwd=SCRIPTS)
    os.close(terminal)
    with contextlib.suppress(OSError):  # no process has the terminal open any more
        while os.read(leader, 65536):
            pass
    os.close(leader)
    return process.wait(120)


def test_in_a_terminal_a_worker_sees_what_it_sees_under_torchrun(distlaunch: Cli, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "census.py"]
    assert in_a_terminal(run, distlaunch.env({"CENSUS_OUT": str(theirs)})) == 0
    argv = [sys.executable, "-m", "launcher", "local", "census.py"]
    assert in_a_terminal(argv, distlaunch.env({"CENSUS_OUT": str(ours)})) == 0

    found = differences(read(theirs, 1)[0], read(ours, 1)[0])

    own = {key: value for key, value in found.items() if not key.startswith(("/env/", "/seeds", "/authkey"))}
    assert set(own) <= {"/stdin", *STACKS}  # terminals, whose numbers may be the same by chance
    assert all(name.startswith("/dev/pts/") for name in own.get("/stdin", ()))
    check_stacks(read(theirs, 1)[0], read(ours, 1)[0], has_them=True)
    assert all(read(ours, 1)[0]["streams"][name]["isatty"] for name in ("stdout", "stderr"))
    assert [told[0] for told in read(ours, 1)[0]["terminal"].values()] == [[101, 33]] * 3


def test_every_rank_and_run_draws_its_own_seeds(agents: Runner, tmp_path: Path) -> None:
    seen = []
    for name in ("one", "two"):
        run = agents(SCRIPTS / "census.py", nproc_per_node="2", env=(f"CENSUS_OUT={tmp_path / name}",))
        assert run.result() == "success", run.stderr
        seen += read(tmp_path / name, 2)

    for kind in range(4):  # torch's initial seed, numpy, random, torch's first number
        assert len({census["seeds"][kind] for census in seen}) == len(seen)
    assert len({census["authkey"] for census in seen}) == len(seen)
