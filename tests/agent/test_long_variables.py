"""The kernel starts no program with a variable of more than 32 pages, 128 KiB, which lists of many nodes reach."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import pytest

from launcher.agent import contracts
from launcher.agent.contracts._contract import Member, Variable, fitting, longest
from launcher.agent.ranks import Group, Ranks


def variables(contract: str, nodes: int) -> list[Variable]:
    """Of a worker on the first of so many nodes, each with 8."""

    class OneJob:
        ps = 0

    job: Any = OneJob()
    peers = [{"address": f"10.128.{at // 256}.{at % 256}", "ports": [*range(12340, 12348)]} for at in range(nodes)]
    group = Group(0, nodes, 8, "default", "10.128.0.0", 4000, 0, [8] * nodes)
    member = Member(job, group, Ranks(0, 0, 0, 8 * nodes, 8), 0, served=False, peers=peers)
    return contracts.load(contract).variables(member)


def starts(name: str, value: str) -> bool:
    try:
        return subprocess.run([shutil.which("true") or "true"], env={name: value}, check=True).returncode == 0
    except OSError:
        return False


def test_what_is_kept_is_what_the_kernel_takes() -> None:
    most = longest() - len("X_HOSTS=")

    for size in (most, most + 1):
        kept, left = fitting([Variable("X_HOSTS", "x" * size, "")])
        assert starts("X_HOSTS", "x" * size) == bool(kept)
        assert left == ([] if kept else ["X_HOSTS"])


def test_hosts_with_large_pages_take_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGESIZE": 65536}.__getitem__)

    assert fitting(variables("tensorflow", 1000))[1] == []
    assert fitting(variables("env", 12_000))[1] == []
    with pytest.raises(ValueError, match=r"^TF_CONFIG would have .* characters, and the kernel takes 2,048 KiB"):
        fitting(variables("tensorflow", 20_000))


def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGESIZE": 4096}.__getitem__)


def test_a_path_that_is_no_text_is_kept() -> None:
    dumps = Variable("TORCH_FR_DUMP_TEMP_FILE", os.fsdecode(b"/data/Jos\xe9/rank_"), "")

    assert fitting([dumps]) == ([dumps], [])
    assert starts(dumps.name, dumps.value)


@pytest.mark.parametrize(("nodes", "left"), [(8000, []), (12_000, ["DISTLAUNCH_HOSTS"])])
def test_a_list_of_hosts_is_left_out_where_it_is_too_long(
    nodes: int, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pages(monkeypatch)
    every = variables("env", nodes)
    kept, names = fitting(every)

    assert names == left
    assert {each.name for each in every} - {each.name for each in kept} == {*left}


def test_a_cluster_of_tensorflow_that_is_too_large_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    assert fitting(variables("tensorflow", 500))[1] == []
    with pytest.raises(ValueError, match=r"^TF_CONFIG would have 17\d,\d\d\d characters, and the kernel takes 128 KiB"):
        fitting(variables("tensorflow", 1000))
