"""Nodes with disks of their own get an environment from one another."""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.environment.listing import listed
from launcher.agent.environment.source import LIST
from launcher.agent.environment.store import Store
from testbed import fixtures
from tests.shipping import environments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., dict[int, environments.Part]]

MB = 1 << 20
LARGE = "lib/large.bin"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An environment with a file of several pieces."""
    made = environments.venv(tmp_path / "source")
    (made / LARGE).write_bytes(os.urandom(9 * MB))
    return made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts some of a run's nodes."""
    every: list[environments.Part] = []

    def started(*args: Any, **more: Any) -> dict[int, environments.Part]:
        found = environments.start(tmp_path, *args, **more)
        every.extend(found.values())
        return found

    yield started
    for part in every:
        part.process.kill()
        part.process.communicate()


def brought(tmp_path: Path, source: Path, nodes: int, **more: Any) -> list[dict[str, Any]]:
    """What all nodes of a run say at their ends, in the order of their ranks."""
    parts = environments.start(tmp_path, source, range(nodes), nodes, **more)
    return [parts[rank].result() for rank in range(nodes)]


def large_on(tmp_path: Path, rank: int) -> Path:
    """The large file in a node's only environment."""
    (found,) = (tmp_path / f"disk{rank}/envs").glob(f"*/env/{LARGE}")
    return found


def test_each_node_has_the_environment_on_its_own_disk(tmp_path: Path, source: Path) -> None:
    results = brought(tmp_path, source, 3)

    assert len({result["digest"] for result in results}) == 1
    for rank, result in enumerate(results):
        assert Path(result["python"]).parent.is_relative_to(tmp_path / f"disk{rank}")
        assert large_on(tmp_path, rank).read_bytes() == (source / LARGE).read_bytes()
        tool = Path(result["python"]).with_name("tool")
        where = subprocess.run([tool], check=True, capture_output=True, text=True).stdout.strip()
        assert Path(where).is_relative_to(tmp_path / f"disk{rank}")


def test_an_environment_that_changes_while_a_run_is_queued_is_listed_again(tmp_path: Path, source: Path) -> None:
    """The launcher's list is of the time when the run was submitted. What has only been added is not in it."""
    (packages,) = source.glob("lib/python*/site-packages")
    (packages / "old.py").touch()
    told = tmp_path / "run" / LIST
    told.parent.mkdir()
    told.write_bytes(listed(str(source), "").encode())
    os.utime(told, (0, 0))
    (packages / "added.py").touch()

    as_submitted = brought(tmp_path, source, 2)
    shutil.rmtree(tmp_path / "disk0")
    (packages / "brought.py").write_text("WHERE = 'new'\n")
    (packages / "old.py").unlink()
    as_now = brought(tmp_path, source, 2)

    where = packages.relative_to(source)
    before, after = (Path(results[1]["python"]).parents[1] / where for results in (as_submitted, as_now))
    assert sorted(path.name for path in before.glob("*.py")) == ["brought.py", "old.py"]
    assert sorted(path.name for path in after.glob("*.py")) == ["added.py", "brought.py"]
    assert (after / "brought.py").read_text() == "WHERE = 'new'\n"


def test_only_what_is_new_travels_and_the_rest_is_linked(tmp_path: Path, source: Path) -> None:
    first = brought(tmp_path, source, 2)
    again = brought(tmp_path, source, 2)
    (module,) = source.glob("lib/python*/site-packages/brought.py")
    module.write_text("WHERE = 'another'\n")
    changed = brought(tmp_path, source, 2)

    assert [result["received_bytes"] > 9 * MB for result in first] == [True, True]
    assert [result["received_bytes"] for result in again] == [0, 0]
    assert [0 < result["received_bytes"] < 1000 for result in changed] == [True, True]
    both = list((tmp_path / "disk1/envs").glob(f"*/env/{LARGE}"))
    assert len(both) == 2
    assert both[0].samefile(both[1])


def test_bytecode_is_valid_where_the_environment_is(tmp_path: Path, source: Path) -> None:
    """Otherwise each worker would compile, or write to the environment."""
    (result,) = brought(tmp_path, source, 1)
    code = (
        "import brought, sys; print(brought.__cached__, brought.__spec__.loader.path_stats(brought.__file__)['mtime'])"
    )
    done = subprocess.run([result["python"], "-v", "-c", code], check=True, capture_output=True, text=True)

    assert Path(done.stdout.split()[0]).exists()
    assert "brought.cpython" in done.stderr
    assert "# code object from" in done.stderr
    assert not [line for line in done.stderr.splitlines() if "wrote" in line and "brought" in line]


@contextmanager
def stopped(part: environments.Part, once: str) -> Iterator[None]:
    """Meanwhile the node stands still, from the time that something is there: `once`, a pattern."""
    limit = time.monotonic() + environments.LIMIT_S
    while not glob.glob(once):
        assert time.monotonic() < limit
        time.sleep(0.001)
    part.process.send_signal(signal.SIGSTOP)
    yield
    part.process.send_signal(signal.SIGCONT)


def test_a_node_that_dies_in_the_middle_loses_only_itself(tmp_path: Path, source: Path, start: Start) -> None:
    (source / LARGE).write_bytes(os.urandom(160 * MB))
    parts = start(source, [0], 4)
    for rank in (1, 2, 3):  # in this order, as each joins when it starts
        parts |= start(source, [rank], 4)
        joined(parts[0], rank + 1)
    with stopped(parts[0], f"{tmp_path}/disk1/objects/*/*.[0-9]*"):
        parts[1].process.kill()
    results = {rank: parts[rank].result() for rank in (0, 2, 3)}

    for rank in (0, 2, 3):
        assert results[rank]["error"] == "node 1: n1 was lost while the environment was brought to it"
        assert results[rank]["secondary"]
        assert large_on(tmp_path, rank).stat().st_size == 160 * MB
    assert large_on(tmp_path, 3).read_bytes() == (source / LARGE).read_bytes()


def test_no_other_run_removes_what_a_node_has_while_it_waits_for_the_others(
    tmp_path: Path, source: Path, start: Start
) -> None:
    parts = start(source, [0], 2)
    limit = time.monotonic() + environments.LIMIT_S
    while not (complete := glob.glob(f"{tmp_path}/disk0/envs/*.json")):
        assert time.monotonic() < limit
        time.sleep(0.01)
    store = Store(str(tmp_path / "disk0"))
    mine = False
    while not mine:
        assert time.monotonic() < limit
        with store.making(Path(complete[0]).stem) as mine:
            pass
    removed = store.prune(1)
    parts |= start(source, [1], 2)
    results = [parts[rank].result() for rank in range(2)]

    assert removed == []
    assert [result.get("error") for result in results] == [None, None]
    assert Path(results[0]["python"]).exists()
    assert store.prune(1) == [str(source)]


def test_damage_on_a_nodes_disk_is_noticed_by_the_next_one(tmp_path: Path, source: Path, start: Start) -> None:
    brought(tmp_path, source, 2)
    damaged = large_on(tmp_path, 1)
    damaged.chmod(0o600)
    with damaged.open("r+b") as file:
        file.seek(5 * MB)
        file.write(b"damaged")
    parts = start(source, [0, 1], 3)
    joined(parts[0], 2)
    parts |= start(source, [2], 3)
    results = [parts[rank].result() for rank in range(3)]
    again = brought(tmp_path, source, 3)

    assert large_on(tmp_path, 2).read_bytes() == (source / LARGE).read_bytes()
    assert "was damaged on this node's disk" in results[1]["error"]
    assert [result.get("error") for result in again] == [None] * 3
    assert large_on(tmp_path, 1).read_bytes() == (source / LARGE).read_bytes()


def joined(first: environments.Part, nodes: int) -> None:
    """Wait until so many nodes have a connection to node 0, itself included."""
    limit = time.monotonic() + environments.LIMIT_S
    while len(connections(first.process.pid)) < nodes - 1:
        assert time.monotonic() < limit
        assert first.process.poll() is None
        time.sleep(0.01)


def connections(pid: int) -> set[int]:
    """The peers' ports of the connections that a process has accepted from those that joined."""
    import psutil

    process = psutil.Process(pid)
    listening = {each.laddr.port for each in process.net_connections("tcp") if each.status == "LISTEN"}
    return {
        each.raddr.port
        for each in process.net_connections("tcp")
        if each.status == "ESTABLISHED" and each.laddr.port in listening
    }


def test_a_full_disk_is_one_error(tmp_path: Path, source: Path) -> None:
    if os.getuid():
        pytest.skip("only root can mount a small disk")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "tmpfs", small], check=True)
    try:
        results = brought(tmp_path, source, 3, dirs={1: small})
    finally:
        subprocess.run(["umount", small], check=True)

    assert results[1]["error"].startswith(f"{small}: No space left on device: the environment does not fit")
    assert not results[1]["secondary"]
    for rank in (0, 2):
        assert results[rank]["error"] == f"node 1: {results[1]['error']}"
        assert results[rank]["secondary"]


def test_a_source_that_node_0_does_not_see_is_one_error(tmp_path: Path) -> None:
    results = brought(tmp_path, tmp_path / "nowhere", 2)

    lost = f"{tmp_path}/nowhere is not on node 0, from which all other nodes would get it"
    assert results[0]["error"] == f"{lost}: name one on a disk that node 0 sees"
    assert not results[0]["secondary"]
    assert results[1]["secondary"]


def test_a_node_that_never_joins_ends_the_wait(source: Path, start: Start) -> None:
    parts = start(source, [0, 1], 3, wait_s=3.0)

    assert parts[0].result()["error"] == "1 of 3 nodes have not joined within 3 s"
    assert parts[1].result()["secondary"]


@pytest.mark.ssh
def test_every_link_carries_each_byte_once(tmp_path: Path, source: Path) -> None:
    """Counted by the kernel, on the links of eight hosts."""
    (source / LARGE).write_bytes(os.urandom(40 * MB))
    with fixtures.make(8, ssh=True) as testbed:
        hosts = dict(enumerate(testbed.hosts))

        def carried(name: str) -> list[int]:
            shown = [hosts[rank].run(("ip", "-json", "-stats", "link", "show", "eth0"), check=True) for rank in hosts]
            return [int(json.loads(each.stdout)[0]["stats64"][name]["bytes"]) for each in shown]

        before = {name: carried(name) for name in ("rx", "tx")}
        results = brought(tmp_path, source, 8, hosts=hosts)
        after = {name: carried(name) for name in ("rx", "tx")}

    assert [result.get("error") for result in results] == [None] * 8
    size = 40 * MB
    for name in ("rx", "tx"):
        for now, then in zip(after[name], before[name], strict=True):
            assert now - then < 1.25 * size
    received = [now - then for now, then in zip(after["rx"], before["rx"], strict=True)]
    assert sum(count > size for count in received) == 7
