"""What is sent to a login node: packs whose size is known before they are written, by a pipe that nothing waits for."""

from __future__ import annotations

import hashlib
import io
import subprocess
import threading
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

import pytest

from launcher.errors import SpecError
from launcher.login.connection import Login
from launcher.login.feeder import Feeder
from launcher.login.remote import Answer
from launcher.login.store import Store, pack_bytes, write_pack
from launcher.payload import snapshot
from launcher.payload.snapshot_file import File

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LARGE = 3_000_000


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (511, 512, 513), (9216,), (100_000, 20)])
def test_the_size_of_a_pack_is_known_before_it_is_written(sizes: tuple[int, ...], tmp_path: Path) -> None:
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(bytes([number]) * size)
    taken = snapshot.collect(tmp_path, limit_bytes=LARGE)
    written = io.BytesIO()
    write_pack(taken, taken.files, written)
    assert len(written.getvalue()) == pack_bytes(taken.files)


def fed(program: list[str], first: bytes, write: Callable[[IO[bytes]], object] | None) -> tuple[bytes, Feeder]:
    """What the program prints of its stdin."""
    with Feeder(first, write) as feeder:
        with subprocess.Popen(program, stdin=feeder.reads, stdout=subprocess.PIPE) as process:
            feeder.start()
            assert process.stdout
            shown = process.stdout.read()
        return shown, feeder


def test_a_program_reads_what_is_written_meanwhile() -> None:
    shown, feeder = fed(["cat"], b"first ", lambda target: [target.write(b"x" * LARGE) for _ in range(3)])
    assert shown == b"first " + b"x" * 3 * LARGE
    assert feeder.written == len(shown)
    feeder.check()


def test_what_cannot_be_read_ends_the_stream_and_is_raised() -> None:
    def write(target: IO[bytes]) -> None:
        target.write(b"some")
        raise SpecError("changed")

    shown, feeder = fed(["cat"], b"", write)
    assert shown == b"some"
    with pytest.raises(SpecError, match="changed"):
        feeder.check()


@pytest.mark.parametrize("program", [["true"], ["head", "-c", "10"]])
def test_a_program_that_reads_no_more_ends_it(program: list[str]) -> None:
    shown, feeder = fed(program, b"", lambda target: target.write(b"x" * LARGE))
    assert len(shown) in (0, 10)
    assert feeder.written < LARGE
    feeder.check()


def test_one_that_is_given_up_while_nothing_is_read_leaves_no_thread() -> None:
    before = threading.active_count()
    with Feeder(b"x" * LARGE, None) as feeder:
        process = subprocess.Popen(["sleep", "60"], stdin=feeder.reads)
        feeder.start()
    try:
        assert threading.active_count() == before
        assert feeder.written < LARGE
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """One whose login node is this host."""

    def run(_login: Login, body: str, *args: str, timeout_s: float) -> Answer:
        done = subprocess.run(("sh", "-c", body, "sh", *args), capture_output=True, timeout=timeout_s, check=False)
        return Answer(done.returncode, done.stdout, done.stderr.decode())

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("launcher.login.remote.run", run)
    return Store(Login("here"), str(tmp_path / "scratch"))


def sent(store: Store, contents: list[str]) -> int:
    """Send files with these contents, as far as they are not there. Returns how many were sent."""
    files = [File(path=text, size=0, sha256=hashlib.sha256(text.encode()).hexdigest()) for text in contents]
    taken: Any = SimpleNamespace(files=files)
    missing = store.missing(taken, "agent.pyz", "run", "")
    if missing.new:
        with open(f"{store.directory}/packs/{missing.new}", "wb") as pack:
            pack.write(b"x")
        store.sent(missing)
    return len(missing.files)


def test_packs_that_are_gone_do_not_take_the_place_of_those_that_exist(store: Store, tmp_path: Path) -> None:
    contents = [str(number) for number in range(60)]
    for first in range(0, 60, 2):
        assert sent(store, contents[first : first + 2]) == 2
    for pack in (tmp_path / "scratch/packs").iterdir():
        pack.unlink()

    assert [sent(store, contents), sent(store, contents)] == [60, 0]
    for number in range(3):
        contents[number] += " edited"
        assert [sent(store, contents), sent(store, contents)] == [1, 0]


def test_of_packs_alike_the_latest_count_and_the_others_are_sent_again_once(store: Store) -> None:
    contents = [str(number) for number in range(30)]
    for one in contents:
        assert sent(store, [one]) == 1

    assert [sent(store, contents), sent(store, contents)] == [18, 0]
