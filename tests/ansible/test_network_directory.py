"""Runs in a directory that several hosts share over the network, each with a cache that may show an older state.

sshfs stands for NFS, whose client is in the kernel and so not available everywhere: like NFS, it caches directories,
attributes and names, creates a file for one host only, and has no locks that hold between hosts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from testbed import NotAvailableError, packages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed import Host, SshHosts

pytestmark = [pytest.mark.ssh, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
HELD = 5
WORDS = 12
CACHED_S = 3
"""A host may show an old state of a directory for this long."""

HOLDS = f"""
import json, os, sys, time
from pathlib import Path
from launcher.runs import lock
from launcher.system import storage
directory, inside = Path(sys.argv[1]), Path(sys.argv[2])
first = []
for number in range({WORDS}):
    os.listdir(directory)  # so that there is something to remember
    first.append(storage.write_once(directory / f"word-{{number}}", json.dumps(os.uname().nodename).encode()))
for _ in range({HELD}):
    with lock.hold(directory, "test", wait_s=400):
        with open(inside, "x"):  # on a disk that needs no network
            time.sleep(0.02)
        inside.unlink()
print(json.dumps(first))
"""
"""Fails where two are inside at once."""

COMES_LATE = """
import os, sys
from pathlib import Path
from launcher.runs import lock
directory, inside = Path(sys.argv[1]), Path(sys.argv[2])
os.listdir(directory)
print("has looked", flush=True)
sys.stdin.readline()
with lock.hold(directory, "late", wait_s=400):
    open(inside, "x")
"""

MANY_TIMES = """
import sys
from pathlib import Path
from launcher.runs import lock
directory, inside = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(5):
    with lock.hold(directory, "often"):
        pass
with lock.hold(directory, "often"):
    open(inside, "x")
    print("inside", flush=True)
    sys.stdin.readline()
    inside.unlink()
"""

OWN = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--", sys.executable, "-c")
"""Each looks like another host to the other: their processes do not see one another."""


@pytest.fixture(params=[True, False], ids=["with hard links", "without"])
def shared(request: pytest.FixtureRequest, ssh_hosts: SshHosts, tmp_path: Path) -> Iterator[Path]:
    """A directory of the first host's, mounted on the second and the third under one name."""
    if not Path("/dev/fuse").exists():
        pytest.skip("no FUSE here: there is no /dev/fuse")
    try:
        packages.require(packages.NETWORK_DIRECTORY)
    except NotAvailableError as error:
        pytest.skip(str(error))
    disk, name = tmp_path / "disk", tmp_path / "shared"
    for path in (disk, name):
        path.mkdir()
    with ExitStack() as stack:
        for host in ssh_hosts.hosts[1:3]:
            stack.enter_context(mounted(ssh_hosts, host, disk, name, hard_links=request.param))
        yield name


@contextmanager
def mounted(hosts: SshHosts, host: Host, disk: Path, name: Path, *, hard_links: bool) -> Iterator[None]:
    options = [
        f"{kind}_timeout={CACHED_S}" for kind in ("dcache", "dcache_stat", "dcache_dir", "dcache_link", "entry", "attr")
    ]
    options += [] if hard_links else ["disable_hardlink"]
    source = f"{hosts.hosts[0].name}:{disk}"
    host.run(("sshfs", "-F", str(hosts.config), source, str(name), "-o", ",".join(options)), check=True)
    try:
        yield
    finally:
        host.run(("umount", "--lazy", str(name)), check=True)


def test_only_one_host_at_a_time_changes_a_run_and_only_one_writes_its_result(
    shared: Path, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        started = [stack.enter_context(on(host, HOLDS, shared, tmp_path)) for host in ssh_hosts.hosts[1:3]]
        said = [process.communicate(timeout=450) for process in started]

    assert [process.returncode for process in started] == [0, 0], said
    first = [json.loads(out) for out, _ in said]
    assert all(one != other for one, other in zip(*first, strict=True)), first
    assert len(list((tmp_path / "disk").glob("lock-*"))) == 1
    assert len(list((tmp_path / "disk").glob("word-*"))) == WORDS


def test_a_host_that_sees_an_old_directory_does_not_take_a_lock_that_is_held(
    shared: Path, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    """Its cache shows no lock, and the first names are free again, as later holders have removed them."""
    late, often = ssh_hosts.hosts[1:3]
    with on(late, COMES_LATE, shared, tmp_path) as second:
        assert next_line(second.stdout) == "has looked\n"
        with on(often, MANY_TIMES, shared, tmp_path) as first:
            assert next_line(first.stdout) == "inside\n"
            send_line(second)
            assert next_line(second.stderr).startswith("waiting for `distlaunch often`, process ")
            send_line(first)
            assert (first.wait(120), next_line(first.stderr)) == (0, "")
        assert (second.wait(120), next_line(second.stderr)) == (0, "")


def on(host: Host, program: str, shared: Path, tmp_path: Path) -> subprocess.Popen[str]:
    argv = (*OWN, program, str(shared), str(tmp_path / "inside"))
    pipe = subprocess.PIPE
    return host.popen(argv, cwd=str(ROOT), text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def next_line(stream: IO[str] | None) -> str:
    assert stream
    return stream.readline()


def send_line(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()
