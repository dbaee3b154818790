"""`--env-ship` over SSH, from a directory that the first host sees, and from one that only this machine has."""

from __future__ import annotations

import os
import re
import signal
import tarfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.shipping import environments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from testbed import Host
    from testbed.running import Running
    from tests.ansible.behind import Lab
    from tests.ansible.conftest import Rack
    from tests.command import Result

pytestmark = pytest.mark.ssh

MB = 1 << 20
LARGE = "lib/large.bin"


@contextmanager
def private(rack: Rack, *directories: Path, size_bytes: int | None = None, first: int = 0) -> Iterator[None]:
    """Each host, from the `first` on, has its own of these directories; all are empty here, or not seen there."""
    hosts = rack.ssh.hosts[first:]
    for host in hosts:
        for directory in directories:
            host.private_directory(directory, size_bytes=size_bytes)
    try:
        yield
    finally:
        for host in hosts:
            for directory in directories:
                host.shared_directory(directory)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An environment, in a directory of its own."""
    return environments.venv(tmp_path / "here/source")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where environments are kept."""
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def run(rack: Rack, source: Path, store: Path, nodes: int = 2) -> Result:
    """A run in that environment."""
    rack.write("where.py", environments.SCRIPT)
    return rack(*words(source, store, nodes), "where.py")


def words(source: Path, store: Path, nodes: int) -> tuple[str, ...]:
    """The options of a run in that environment."""
    return ("--nodes", str(nodes), "--nproc-per-node", "1", "--env-ship", str(source), "--env-ship-dir", str(store))


def check(rack: Rack, done: Result, store: Path, nodes: int = 2) -> None:
    """All workers ran in the environment, on the disk of their node."""
    assert done.exit_code == 0, done.stderr
    environments.check(environments.lines(rack.shell("logs", environments.latest(rack.cli)).stdout), nodes, store)
    assert not list(store.iterdir())


def sent(done: Result) -> str:
    """What was sent to node 0; empty if nothing was."""
    found = re.search(r"sending (\d+ of \d+ [kM]B) of ", done.stderr)
    return found[1] if found else ""


def test_hosts_get_the_environment_from_one_another(rack: Rack, source: Path, store: Path) -> None:
    """Only the first of them sees it."""
    with private(rack, store), private(rack, source.parent, first=1):
        done = run(rack, source, store, 3)
        check(rack, done, store, 3)
        assert not sent(done)


def test_what_only_this_machine_has_is_sent_to_node_0_once(rack: Rack, source: Path, store: Path) -> None:
    (source / LARGE).write_bytes(os.urandom(21 * MB))
    with private(rack, store, source.parent):
        first = run(rack, source, store)
        check(rack, first, store)
        again = run(rack, source, store)
        check(rack, again, store)
        (source / "lib/new.bin").write_bytes(os.urandom(2 * MB))
        third = run(rack, source, store)
        check(rack, third, store)

        requeued = rack.shell("requeue", environments.latest(rack.cli))
        waited = rack.shell("wait", environments.latest(rack.cli))

    assert sent(first) == "22 of 22 MB"
    assert not sent(requeued)
    assert (requeued.exit_code, waited.exit_code) == (0, 0), requeued.stderr + waited.stderr
    assert "which does not see it" in first.stderr
    assert not sent(again)
    assert sent(third) == "2 of 24 MB"


def test_another_environment_at_that_path_is_not_taken_for_the_one_here(rack: Rack, source: Path, store: Path) -> None:
    with private(rack, store, source.parent):
        for host in rack.ssh.hosts:
            host.run(("python3", "-m", "venv", "--without-pip", str(source)))
        done = run(rack, source, store)
        check(rack, done, store)

    assert "which has another one at that path" in done.stderr


def test_a_packed_environment_is_unpacked_here_and_sent(rack: Rack, source: Path, store: Path) -> None:
    packed = source.parent / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(source, ".")
    with private(rack, store, source.parent):
        first, again = run(rack, packed, store), run(rack, packed, store)
        check(rack, first, store)
        check(rack, again, store)

    assert sent(first)
    assert not sent(again)
    assert not list((rack.cli.directory / ".distlaunch/environments").glob("unpacked-*"))


def test_what_neither_has_is_one_error(rack: Rack, tmp_path: Path, store: Path) -> None:
    done = run(rack, tmp_path / "nowhere", store)

    first = rack.ssh.hosts[0].name
    assert done.exit_code == 2
    assert f"]: {tmp_path}/nowhere is neither on this machine nor on {first}, node 0: name one" in done.stderr


def test_what_is_no_environment_is_one_error_if_only_this_machine_has_it(rack: Rack, source: Path, store: Path) -> None:
    (source / "bin/python3").unlink()
    (source / "bin/python").unlink()
    with private(rack, source.parent):
        done = run(rack, source, store)

    assert done.exit_code == 2
    assert f"]: env-ship {source}: {source} is not a Python environment: it has no bin/python" in done.stderr


def test_a_full_disk_of_node_0_is_one_error_and_leaves_no_half_files(rack: Rack, source: Path, store: Path) -> None:
    (source / LARGE).write_bytes(os.urandom(40 * MB))
    with private(rack, store, size_bytes=24 * MB), private(rack, source.parent):
        done = run(rack, source, store)
        left = half(rack.ssh.hosts[0], store)

    first = rack.ssh.hosts[0].name
    assert done.exit_code == 3
    assert f"{first}: while the environment was sent to {store}: {store}: No space left on device" in done.stderr
    assert "--env-ship-dir DIR names another place" in done.stderr
    assert not left


def ctrl_c(launcher: Running, _host: Host) -> None:
    """The user presses it."""
    launcher.kill(signal.SIGINT)


def lost_connection(_launcher: Running, host: Host) -> None:
    """The processes of the host's connections are killed, the server itself is not."""
    for process in host.processes():
        if process.command().startswith("sshd") and "listener" not in process.command():
            process.send(signal.SIGKILL)


@pytest.mark.parametrize(
    ("breaks", "code", "says"), [(ctrl_c, 130, ""), (lost_connection, 3, "while the environment was sent to {store}: ")]
)
def test_after_a_break_no_half_files_are_left_and_the_next_start_goes_on(
    rack: Rack, source: Path, store: Path, breaks: Callable[[Running, Host], None], code: int, says: str
) -> None:
    for number in range(3):
        (source / f"lib/large{number}.bin").write_bytes(os.urandom(2 * MB))
    (source / "lib/largest.bin").write_bytes(os.urandom(32 * MB))
    first = rack.ssh.hosts[0]
    with private(rack, store, source.parent):
        first.slow_link(rate_kbit=20_000)
        try:
            rack.write("where.py", environments.SCRIPT)
            launcher = rack.start(*words(source, store, 2), "where.py")
            wait_until(
                "a part of the largest file to be there",
                lambda: len(whole(first, store)) == 3 and half(first, store),
                limit_s=120,
            )
            breaks(launcher, first)
            assert launcher.end() == code, launcher
        finally:
            first.full_speed()
        wait_until("no half file to be there", lambda: not half(first, store), limit_s=60)
        again = run(rack, source, store)
        check(rack, again, store)

    assert says.format(store=store) in launcher.stderr, launcher
    missing, total = map(int, re.findall(r"\d+", sent(again)))
    assert 0 < missing < total


def whole(host: Host, store: Path) -> list[Path]:
    """The large files that a host has."""
    found = host.path(store).glob("objects/*/*")
    return [path for path in found if "." not in path.name and path.stat().st_size == 2 * MB]


def half(host: Host, store: Path) -> list[Path]:
    """The files that a host still receives, or has left."""
    return [path for path in host.path(store).glob("objects/*/*") if re.search(r"\.\d+$", path.name)]


def test_it_is_sent_through_a_login_node_too(lab: Lab, source: Path, store: Path) -> None:
    rack = lab.rack
    rack.write("where.py", environments.SCRIPT)
    with private(rack, store, source.parent):
        done = lab.run(*words(source, store, 2), "--log-ranks", "all", "where.py")

    assert done.exit_code == 0, done.stderr
    assert sent(done)
    environments.check(environments.lines(done.stdout), 2, store)
