"""Programs that are started to outlive the launcher."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from launcher.errors import CommandError
from launcher.system import detached, proc
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long limits for what takes moments, so that no host is too slow."""
    monkeypatch.setattr(detached, "_HEARS_S", 100.0)
    monkeypatch.setattr(detached, "_ENDS_S", 100.0)


@pytest.mark.parametrize("said", ["libpython3.so: cannot open shared object file", "two lines\nthe second", ""])
def test_a_program_that_exits_before_it_is_told_to_begin_is_an_error_with_what_it_wrote(
    tmp_path: Path, said: str
) -> None:
    stderr = tmp_path / "stderr"
    stderr.write_text("of another attempt\n")

    def gone(identity: proc.Identity) -> None:
        wait_until("it to end", lambda: not identity.alive(), limit_s=60)

    argv = ["sh", "-c", f"printf '%s\\n' '{said}' >&2; exit 3"]
    with pytest.raises(CommandError) as raised:
        detached.start_detached(
            argv, cwd=str(tmp_path), env=os.environ, stdout=tmp_path / "out", stderr=stderr, record=gone
        )

    reason = "; ".join(said.splitlines())
    assert raised.value.message == "sh ended with exit code 3 right after it was started" + (
        f": {reason}" if reason else ""
    )
    assert str(stderr) in (raised.value.hint or "")


def begin(directory: Path, argv: list[str], record: Callable[[proc.Identity], None], told: list[detached.Told]) -> None:
    """Start it with its files in that directory."""
    detached.start_detached(
        argv,
        cwd=str(directory),
        env=os.environ,
        stdout=directory / "out",
        stderr=directory / "err",
        record=record,
        told=told,
    )


@pytest.mark.parametrize("script", ["read line; exec sleep 1000", "read line <&0; sleep 1000; true"])
def test_a_program_that_receives_the_message_has_begun(tmp_path: Path, script: str) -> None:
    found: list[proc.Identity] = []
    told: list[detached.Told] = []
    argv = ["sh", "-c", script]
    begin(tmp_path, argv, found.append, told)
    try:
        for word in told:
            word.wait()
            word.close()
        assert found[0].alive()
    finally:
        found[0].send_group(signal.SIGKILL)
        os.waitpid(found[0].pid, 0)


def test_those_that_have_ended_leave_no_process_once_another_is_started(tmp_path: Path) -> None:
    found: list[proc.Identity] = []
    for _ in range(3):
        for each in found:
            wait_until("it to end", lambda: not each.alive(), limit_s=60)  # noqa: B023 - called at once
        told: list[detached.Told] = []
        begin(tmp_path, ["sh", "-c", "read line; exit 0"], found.append, told)
        told[0].close()

    assert [os.path.exists(f"/proc/{each.pid}") for each in found[:2]] == [False, False]
    os.waitpid(found[2].pid, 0)


@pytest.mark.parametrize("ends", ["exit 3", "kill -9 $$", "exec true"])
def test_a_program_that_exits_without_reading_the_message_is_the_same_error_however_late(
    tmp_path: Path, ends: str
) -> None:
    """It exits after the message was sent, which another reader might still have read."""
    told: list[detached.Told] = []
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    argv = ["sh", "-c", f"read line < {fifo}; echo 'module load python first' >&2; {ends}"]
    begin(tmp_path, argv, lambda _: None, told)
    fifo.write_text("go on\n")

    with pytest.raises(CommandError) as raised:
        told[0].wait()
    told[0].close()

    how_it_ended = {"exit 3": "ended with exit code 3", "exec true": "ended with exit code 0"}.get(
        ends, "was killed by signal 9"
    )
    assert raised.value.message == f"sh {how_it_ended} right after it was started: module load python first"
