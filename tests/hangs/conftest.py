"""Scripts that hang in four ways, and a file system that no longer answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from testbed.hosts import Host
    from tests.command import Cli

LIMIT_S = 90

SCRIPT = """\
import os, signal, sys, time
import torch, torch.distributed as dist


def odd(how):
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "asleep":
        time.sleep(600)
    elif how == "left out":
        while not os.path.exists("never"):
            time.sleep(0.1)
    else:
        open(how).read()


dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
print("ready", flush=True)
if dist.get_rank() == dist.get_world_size() - 1:
    odd(sys.argv[1])
dist.all_reduce(ones)
"""


@pytest.fixture
def hang(distlaunch: Cli) -> str:
    """The path of a script whose last rank does not come to the second all_reduce; its argument says why."""
    return str(distlaunch.write("hang.py", SCRIPT))


@pytest.fixture
def start(distlaunch: Cli) -> Iterator[Callable[..., str]]:
    """Starts a run on this machine; returns its id once as many lines `ready` are there as it has ranks."""
    runs = []

    def started(*words: str, ranks: int = 4) -> str:
        done = distlaunch("local", "--detach", *words)
        assert done.exit_code == 0, done.stderr
        run = done.stdout.strip()
        runs.append(run)
        limit = time.monotonic() + LIMIT_S
        while (logs := distlaunch("logs", run).stdout).count("ready") < ranks:
            assert time.monotonic() < limit, logs
            time.sleep(0.2)
        return run

    yield started
    for run in runs:
        distlaunch("cancel", "--force", run)


class DeadFile(NamedTuple):
    """A file that can be opened, and not read."""

    path: str
    end: Callable[[], None]
    """Ends all waits for it, with an error."""


@contextmanager
def dead_files(directory: Path, hosts: Sequence[Host] = ()) -> Iterator[DeadFile]:
    """A file there, on a file system whose server does not answer; hosts of a testbed have mounts of their own."""
    if os.getuid() or not os.path.exists("/dev/fuse"):
        pytest.skip("only root can mount a FUSE file system")
    directory.mkdir()
    with ExitStack() as cleanup:
        servers = [cleanup.enter_context(dead_server(directory, host)) for host in hosts or (None,)]

        def end() -> None:
            for server in servers:
                server.kill()

        yield DeadFile(str(directory / "file"), end)


@contextmanager
def dead_server(directory: Path, host: Host | None) -> Iterator[subprocess.Popen[bytes]]:
    """Such a file system, mounted on a host or on this machine. Its end ends all waits for it."""
    argv = (sys.executable, str(Path(__file__).with_name("dead_fuse.py")), str(directory))
    with (host.popen if host else subprocess.Popen)(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"mounted\n"
            yield process
        finally:
            process.kill()
            unmount = ("umount", "--lazy", str(directory))
            subprocess.run(host.argv(*unmount, cwd="/") if host else unmount, check=True, timeout=LIMIT_S)


@pytest.fixture
def dead_file(tmp_path: Path) -> Iterator[DeadFile]:
    """Such a file."""
    with dead_files(tmp_path / "dead") as found:
        yield found
