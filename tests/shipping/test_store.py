"""What a node keeps of environments, and what it removes."""

from __future__ import annotations

import errno
import io
import os
import socket
import subprocess
import sys
import tarfile
import time
import zlib
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from launcher.agent.environment import content, sending, source, stage
from launcher.agent.environment.manifest import STAMP_S, digest_of
from launcher.agent.environment.placing import place
from launcher.agent.environment.shelf import Shelf
from launcher.agent.environment.store import Store
from launcher.agent.job import Job
from launcher.agent.ssh import environment as received
from tests.shipping import environments

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one."""
    return Store(str(tmp_path / "store"))


def made(store: Store, directory: Path) -> Path:
    """The environment in a directory, made in the store; where it is there."""
    found = source.of_directory(str(directory), store.directory)
    digest = digest_of(found.encoded)
    with store.making(digest):
        source.read(found, Shelf(store, found.manifest))
        lock = store.use(digest)
        place(store, digest, found.manifest, lock)
    os.close(lock)
    return directory.parent / "store/envs" / digest


def packed(directory: Path) -> Path:
    """An environment, packed."""
    path = directory.with_suffix(".tar")
    with tarfile.open(path, "w") as tar:
        tar.add(environments.venv(directory), ".")
    return path


def test_nothing_is_removed_in_vain_while_another_run_makes_an_environment(tmp_path: Path) -> None:
    """What an environment shares with others, and with the one that is being made, cannot be told then."""
    store = Store(str(tmp_path / "store"))
    for name in ("first", "second"):
        source = environments.venv(tmp_path / name)
        (source / "large.bin").write_bytes(name.encode() * 100_000)
        part = environments.start(tmp_path, source, [0], 1, dirs={0: tmp_path / "store"})[0]
        os.close(store.use(part.result()["digest"]))

    with store.making("0" * 64):
        during = store.prune(1)
    after = store.prune(1)

    assert during == []
    assert after == [str(tmp_path / "first"), str(tmp_path / "second")]
    assert store.size() == 0


def test_what_a_killed_start_has_left_is_removed_and_nothing_else(tmp_path: Path, store: Store) -> None:
    first = environments.venv(tmp_path / "first")
    kept = made(store, first)
    (first / "large.bin").write_bytes(b"large" * 100_000)
    left = made(store, first)
    left.with_suffix(".json").unlink()
    unpacked = tmp_path / "store/unpacked/left"
    unpacked.mkdir(exist_ok=True, parents=True)

    removed = store.prune(400_000)

    assert removed == []
    assert kept.exists()
    assert not left.exists()
    assert not unpacked.exists()
    assert store.size() < 400_000


def test_what_is_only_on_its_way_is_not_taken_for_left(tmp_path: Path, store: Store) -> None:
    coming, held = tmp_path / "store/envs/coming", tmp_path / "store/envs/held"
    for each in (coming, held):
        each.mkdir()
    another = Store(store.directory)
    with store.making("coming"):
        another.prune(1)
        assert coming.exists()
    fd = store.use("held")
    with store.unpacking() as directory:
        another.prune(1)
        assert os.path.exists(directory)
        assert coming.exists()
    another.prune(1)
    assert not coming.exists()
    assert held.exists()
    os.close(fd)
    another.prune(1)
    assert not held.exists()


def test_a_number_of_a_process_that_was_killed_may_come_again(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = packed(tmp_path / "packed")
    (tmp_path / f"store/unpacked-{os.getpid()}").mkdir()
    (tmp_path / f".distlaunch/environments/unpacked-{socket.gethostname()}-{os.getpid()}").mkdir(0o700, parents=True)

    with source.opened(str(path), store, "") as found:
        assert found.manifest.total_bytes
    with sending.opened(str(path), lambda _: None) as here:
        assert here.total_bytes == found.manifest.total_bytes


def test_files_that_another_environment_shares_are_not_read_twice(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv and conda link files from their caches, while a run that brings one of their environments is queued."""
    directory = environments.venv(tmp_path / "env")
    (module,) = directory.glob("lib/python*/site-packages/brought.py")
    os.utime(module, (STAMP_S, STAMP_S))
    os.link(module, tmp_path / "cached.py")
    told = tmp_path / source.LIST
    told.write_bytes(source.of_directory(str(directory), store.directory).encoded)
    before = time.time_ns()
    os.utime(told, ns=(before, before))
    monkeypatch.setattr(source, "_NEW_S", -1.0)
    os.link(module, tmp_path / "other.py")
    while module.stat().st_ctime_ns < before:  # the kernel's clock has steps
        module.chmod(0o644)

    with mock.patch.object(content, "opened", wraps=content.opened) as read:
        with source.opened(str(directory), store, str(told)) as shared:
            assert read.call_count == 0
        (tmp_path / "new.py").write_text("WHERE = 'another'\n")
        os.link(tmp_path / "new.py", tmp_path / "new-cached.py")
        os.utime(tmp_path / "new.py", (STAMP_S, STAMP_S))
        os.rename(tmp_path / "new.py", module)  # an upgrade
        with source.opened(str(directory), store, str(told)) as upgraded:
            assert read.call_count > 0

    assert told.read_bytes() == shared.encoded != upgraded.encoded


def test_only_what_a_launcher_on_this_host_has_unpacked_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts may share the home directory, and one host's name may begin as another's."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    kept = tmp_path / ".distlaunch/environments"
    for host in ("gpu", "gpu-2"):
        (kept / f"unpacked-{host}-ab12cd3_-{ended.pid}").mkdir(0o700, parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu")

    with sending.opened(str(packed(tmp_path / "packed")), lambda _: None):
        left = sorted(path.name for path in kept.glob(f"*-{ended.pid}"))

    assert left == [f"unpacked-gpu-2-ab12cd3_-{ended.pid}"]


def test_what_is_compiled_here_counts_as_the_environments_own(tmp_path: Path, store: Store) -> None:
    first = environments.venv(tmp_path / "first")
    (module,) = first.glob("lib/python*/site-packages/brought.py")
    module.write_text(f"TEXT = {'x' * 100_000!r}\n")
    made(store, first)

    (kept,) = store.kept()
    assert 100_000 < kept.own_bytes < 150_000


def test_equal_files_may_be_more_than_a_file_can_have_links(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each empty `__init__.py` is one content, and ext4 has room for 65,000 links to it."""
    link = os.link

    def limited(existing: str, new: str) -> None:
        if os.stat(existing).st_nlink > 3:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), existing)
        link(existing, new)

    monkeypatch.setattr(os, "link", limited)
    directory = environments.venv(tmp_path / "first")
    (packages,) = directory.glob("lib/python*/site-packages")
    for number in range(8):
        (packages / f"equal{number}.py").write_text("EQUAL = True\n")
    environment = made(store, directory)

    equal = [path.stat() for path in environment.rglob("equal?.py")]
    assert [(about.st_size, about.st_mode, about.st_mtime) for about in equal] == [(13, 0o100444, STAMP_S)] * 8
    assert len({about.st_ino for about in equal}) == 3
    content = {path.stat().st_ino for path in (tmp_path / "store/objects").glob("*/*")}
    assert len(content & {about.st_ino for about in equal}) == 1
    assert not list((tmp_path / "store/objects").glob("*/*.[0-9]*"))


@pytest.fixture
def removed_at_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run is removing the environment when it is used for the first time: that waits until it is gone."""
    use, left = Store.use, [1]

    def late(self: Store, digest: str) -> int:
        if left:
            left.pop()
            store.forget(digest)
        return use(self, digest)

    monkeypatch.setattr(Store, "use", late)


def test_what_another_run_was_removing_is_made_again(
    tmp_path: Path, store: Store, request: pytest.FixtureRequest
) -> None:
    directory = environments.venv(tmp_path / "first")
    digest = made(store, directory).name
    request.getfixturevalue("removed_at_last")
    about = {"source": str(directory), "dir": store.directory}
    job = Job(
        command=["true"], kind="program", cwd="/", env={}, run="r", directory=str(tmp_path), rendezvous={},
        max_nodes=1, min_nodes=1, env_ship=about,
    )  # fmt: skip
    brought = stage.NodePart(job, 0, f"{tmp_path}/spec.json", lambda *_, **__: None).bring()
    list(map(os.close, brought.locks))

    assert brought.digest == digest
    assert brought.new
    assert os.path.exists(brought.python)


def test_what_another_run_was_removing_on_the_host_that_it_is_sent_to_is_made_again(
    tmp_path: Path, store: Store, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = environments.venv(tmp_path / "first")
    digest = made(store, directory).name
    encoded = zlib.compress(source.of_directory(str(directory), store.directory).encoded)
    asked = b'{"bytes":%d}\n%b{"do":"end"}\n' % (len(encoded), encoded)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(asked)))
    in_use: list[int] = []
    monkeypatch.setattr(received, "_in_use", in_use)
    request.getfixturevalue("removed_at_last")
    told = {"dir": store.directory, "directory": str(tmp_path), "source": "/nowhere", "mark": [], "quota_bytes": 10**12}
    received.bring(told, lambda _: None)
    for fd in in_use:
        os.close(fd)

    assert len(in_use) == 2
    assert store.is_complete(digest)
