"""Leases of a host and of its GPUs, held by processes of this machine: each directory of lock files is a host."""

from __future__ import annotations

import json
import os
import pwd
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.lease import gpus, lock_files
from launcher.agent.lease.lease import Holder, Wish
from launcher.agent.lease.lock_files import LeaseError, LockFiles
from testbed import wait_until
from tests.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

UNKNOWN_GPU = "there is no GPU '7' (CUDA_VISIBLE_DEVICES=0,7); GPUs here: 0, 1"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has nvidia-smi report GPUs with this much memory in use; the first call puts it on PATH."""
    table = tmp_path / "gpus"

    def report(*used_mib: int) -> None:
        table.write_text("".join(f"{n}, GPU-0000{n}, {used}, 80000\n" for n, used in enumerate(used_mib)))
        program = tmp_path / "bin/nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\nexec cat {table}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        for name in gpus.VISIBLE:
            monkeypatch.delenv(name, raising=False)

    return report


@pytest.fixture
def host(tmp_path: Path) -> Callable[[], Holder]:
    """Processes that want leases of one host."""
    place = tmp_path / "locks"
    place.mkdir()
    return lambda: Holder(LockFiles(str(place)))


def take(holder: Holder, run: str, workers: str = "auto", *, queue: bool = False, **env: str) -> dict[str, Any]:
    """What the host answers at once."""
    return holder.take(Wish(run, workers, env), wait_s=0, queue=queue)


def test_runs_share_the_gpus_of_a_host_and_a_process_without_a_lease_counts(
    host: Callable[[], Holder], smi: Callable[..., None]
) -> None:
    smi(0, 5, 20_000, 0)
    first, second, third = host(), host(), host()

    assert take(first, "a", "2")["leased"] == {"gpus": [0, 1]}
    assert first.environment() == {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert take(second, "b", "1")["leased"] == {"gpus": [3]}
    refused = take(third, "c", "1")
    assert refused["leased"] is None
    assert [(one.get("run"), one["gpus"], one.get("used_mib")) for one in refused["held"]] == [
        ("a", [0, 1], None), (None, [2], 20_000), ("b", [3], None)]  # fmt: skip
    assert [one["user"] for one in refused["held"] if "run" in one] == [pwd.getpwuid(os.getuid()).pw_name] * 2
    smi(0, 5, 0, 0)
    assert take(third, "c", CUDA_VISIBLE_DEVICES="GPU-00002")["leased"] == {"gpus": [2]}
    assert third.environment() == {}, "the user has named them"


def test_a_host_without_gpus_is_leased_as_a_whole_and_an_unknown_gpu_is_an_error(
    host: Callable[[], Holder], smi: Callable[..., None]
) -> None:
    smi()
    first, second = host(), host()

    assert take(first, "a", "1")["leased"] == {"gpus": None}
    assert [(one["run"], one["gpus"]) for one in take(second, "b", "1")["held"]] == [("a", None)]
    assert first.environment() == {}
    smi(0, 0)
    assert take(second, "b", "1")["leased"] is None, "of whatever another sees of the host"
    first.close()
    with pytest.raises(LeaseError) as raised:
        take(second, "b", "1", CUDA_VISIBLE_DEVICES="0,7")
    assert str(raised.value) == UNKNOWN_GPU


def test_who_came_first_gets_the_lease_first_even_if_the_next_would_need_less(
    host: Callable[[], Holder], smi: Callable[..., None]
) -> None:
    smi(0, 0)
    holder, large, small, hasty = host(), host(), host(), host()
    assert take(holder, "holder", "1")["leased"]

    assert [one.get("run") for one in take(large, "large", "2", queue=True)["ahead"]] == []
    assert [one["run"] for one in take(small, "small", "1", queue=True)["ahead"]] == ["large"]
    answer = take(hasty, "hasty", "1")
    assert (answer["leased"], [one["run"] for one in answer["ahead"]]) == (None, ["large", "small"])
    holder.close()
    assert take(small, "small", "1", queue=True)["leased"] is None
    assert take(large, "large", "2", queue=True)["leased"] == {"gpus": [0, 1]}
    large.close()
    assert take(small, "small", "1", queue=True)["leased"] == {"gpus": [0]}
    assert take(hasty, "hasty", "1")["leased"] == {"gpus": [1]}


def test_a_lease_passes_to_the_forked_agent_and_ends_with_it_even_if_its_children_go_on(
    host: Callable[[], Holder], smi: Callable[..., None]
) -> None:
    smi(0)
    launcher, other = host(), host()
    assert take(launcher, "a")["leased"]
    orphan_said, orphan_says = os.pipe()
    agent = os.fork()
    if not agent:
        # As an agent does, it starts a program.
        subprocess.Popen(["sleep", "1000"], stdout=orphan_says)
        signal.pause()
    launcher.hand_over(agent)
    launcher.close()

    assert take(other, "b")["held"][0]["run"] == "a"
    os.close(orphan_says)
    wait_until("the agent to have started a program", lambda: Path(f"/proc/{agent}/task/{agent}/children").read_text())
    orphan = int(Path(f"/proc/{agent}/task/{agent}/children").read_text())
    try:
        os.kill(agent, signal.SIGKILL)
        os.waitpid(agent, 0)
        assert take(other, "b")["leased"]
        assert Path(f"/proc/{orphan}").exists()
    finally:
        os.kill(orphan, signal.SIGKILL)
        os.close(orphan_said)


def _two_names(path: Path) -> None:
    path.touch()
    path.chmod(0o666)
    os.link(path, f"{path}2")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "Too many levels of symbolic links"),
        (os.mkfifo, "it is not a regular file"),
        (Path.mkdir, "Is a directory"),
        (lambda path: path.touch(0o600), "its mode 0600 keeps other users out"),
        (_two_names, "it has a second name"),
    ],
)
def test_a_lock_file_that_is_none_of_ours_is_named_and_left_as_it_is(
    make: Callable[[Path], Any], why: str, tmp_path: Path
) -> None:
    files = LockFiles(str(tmp_path))
    path = Path(files.path("host"))
    make(path)
    before = os.lstat(path)

    with pytest.raises(LeaseError) as raised:
        take(Holder(files), "a")

    assert str(path) in str(raised.value)
    assert why in str(raised.value)
    assert os.lstat(path) == before


def test_all_users_of_a_host_use_the_same_directory_from_which_none_can_remove_files(tmp_path: Path) -> None:
    shut, shared = tmp_path / "shut", tmp_path / "shared"
    shut.mkdir(mode=0o755)
    shared.mkdir()
    shared.chmod(0o1777)
    if os.getuid() == 0:
        assert lock_files.directory([str(tmp_path / "none"), str(shut), str(shared)]) == str(shared)
    shared.chmod(0o777)
    with pytest.raises(LeaseError, match=r"no directory for leases: .*/shut belongs to user \d+, mode 0755; .*0777; "):
        lock_files.directory([str(shut), str(shared)])

    umask = os.umask(0o077)
    try:
        lock = LockFiles(str(tmp_path)).locked("host")
    finally:
        os.umask(umask)
    assert lock is not None
    assert stat.S_IMODE(os.fstat(lock).st_mode) == 0o666
    os.close(lock)


def test_threads_that_create_lock_files_at_once_leave_the_umask_as_it_was(tmp_path: Path) -> None:
    files = LockFiles(str(tmp_path))
    interval, before = sys.getswitchinterval(), os.umask(0o027)

    def create(number: int) -> None:
        for each in range(200):
            os.close(files.create(f"host-{number}-{each}", {}))

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(create, range(8)))
        after = os.umask(0o027)
    finally:
        os.umask(before)
        sys.setswitchinterval(interval)

    assert after == 0o027
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o666}


@pytest.mark.parametrize("seed", [1, 2])
def test_of_20_launchers_killed_at_random_no_two_have_one_gpu_none_starves_and_no_lease_is_left(
    seed: int, tmp_path: Path, smi: Callable[..., None]
) -> None:
    smi(0, 0)
    for number in range(4):
        (tmp_path / str(number)).mkdir()

    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/scripts/leases.py"), str(tmp_path), str(seed)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, timeout=240, check=True,
    )  # fmt: skip

    found = json.loads(done.stdout)
    assert found["doubled"] == []
    assert found["finished"] + found["killed"] >= 20, "each that was not killed has had all that it wanted"
    assert found["killed"] > 0
    assert found["free"] == [True] * 4
