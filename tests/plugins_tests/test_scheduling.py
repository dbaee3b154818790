"""Which process runs which test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.plugins import scheduling

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.plugins_tests.conftest import Inner


def test_tests_that_share_something_even_through_others_are_in_one_group() -> None:
    shared = {"a": ["slurm"], "b": ["slurm", "x.py:big"], "c": ["x.py:big"], "d": ["kube"], "e": [], "f": ["y.py:big"]}

    found = scheduling.groups(shared)

    assert found == {"a": "slurm", "b": "slurm", "c": "slurm", "d": "kube", "f": "y.py:big"}


def test_a_test_with_clusters_of_several_kinds_does_not_put_all_tests_with_clusters_into_one_group() -> None:
    shared = {"a": ["kube_nodes"], "b": ["kube_nodes", "slurm", "x.py:big"], "c": ["slurm"], "d": ["x.py:big"]}
    shared |= {"e": ["kube_controllers", "kube_nodes"]}

    found = scheduling.groups(shared)

    kube = found["a"]
    assert found == {"a": kube, "b": kube, "c": "slurm", "d": kube, "e": kube}


def test_clusters_go_to_one_process_up_to_its_share_of_the_work() -> None:
    weights = {"k8s": 300.0, "slurm": 200.0, "ssh": 150.0, "rest": 1100.0}

    assert scheduling.shares(weights, ["ssh", "k8s", "slurm"], 2) == [["k8s", "slurm", "ssh"], []]
    assert scheduling.shares({**weights, "rest": 100.0}, ["ssh", "k8s", "slurm"], 2) == [["k8s"], ["slurm", "ssh"]]
    assert scheduling.shares({"k8s": 9.0, "a": 1.0}, ["k8s"], 2) == [["k8s"], []]
    assert scheduling.shares({"k8s": 1.0}, ["k8s"], 1) == [["k8s"]]


CONFTEST = """
import os, time
import pytest

def note(text):
    with open("notes", "a") as file:
        file.write(f"{os.getpid()} {text}\\n")


def cluster(name):
    def up():
        note(f"{name} up")
        yield name
        note(f"{name} down")
    up.__module__ = "testbed.fixtures"
    return pytest.fixture(scope="session", name=name)(up)


slurm = cluster("slurm")
kube = cluster("kube")


@pytest.fixture(autouse=True)
def noted(request):
    note(request.node.name)


@pytest.fixture(scope="module")
def dear():
    note("dear up")
"""

CLUSTERS = """
import pytest

@pytest.mark.parametrize("n", range(4))
def test_with_slurm(slurm, n):
    pass


def test_with_kube(kube):
    pass


def test_after_all():
    pass
"""

BOTH = """

def test_with_both(kube, slurm):
    pass
"""

MODULE = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_shares(dear, n):
    pass

@pytest.mark.parametrize("n", range(20))
def test_alone(n):
    pass
"""


def test_each_cluster_starts_once_and_is_taken_down_after_its_last_test(inner: Callable[..., Inner]) -> None:
    done = inner({"conftest.py": CONFTEST, "test_clusters.py": CLUSTERS, "test_module.py": MODULE}, "-n2")

    assert "29 passed" in done.lines[-1], done.text
    notes = [line.split(" ", 1) for line in (done.results.parent / "inner/notes").read_text().splitlines()]
    for name in ("slurm", "kube"):
        (owner,) = (pid for pid, text in notes if text == f"{name} up")
        mine = [text for pid, text in notes if pid == owner]
        users = [index for index, text in enumerate(mine) if text.startswith(f"test_with_{name}")]
        assert len(users) == (4 if name == "slurm" else 1)
        assert mine[users[-1] + 1] == f"{name} down", mine
    assert [text for _, text in notes].count("dear up") == 1
    both = {pid for pid, text in notes if text.startswith("test_alone")}
    assert len({pid for pid, _ in notes}) == 2, both


@pytest.mark.parametrize("processes", ["-n0", "-n2"])
def test_a_test_with_two_clusters_has_both_and_leaves_neither_up(inner: Callable[..., Inner], processes: str) -> None:
    files = {"conftest.py": CONFTEST, "test_clusters.py": CLUSTERS + BOTH}

    done = inner(files, processes)

    assert "7 passed" in done.lines[-1], done.text
    notes = [line.split(" ", 1) for line in (done.results.parent / "inner/notes").read_text().splitlines()]
    for process in {pid for pid, _ in notes}:
        up: set[str] = set()
        for text in (text for pid, text in notes if pid == process):
            name, _, change = text.partition(" ")
            if change:
                up = up | {name} if change == "up" else up - {name}
            wanted = {"slurm", "kube"} if name == "test_with_both" else {name.split("[")[0].removeprefix("test_with_")}
            assert change or "after" in name or wanted <= up, notes
        assert not up
    assert [text for _, text in notes].count("kube up") == 1


def test_the_longest_tests_of_the_last_run_come_first(inner: Callable[..., Inner], tmp_path: Path) -> None:
    names = [f"test_some.py::test_{number}" for number in range(8)]
    known = tmp_path / "cache/v" / scheduling.CACHE
    known.parent.mkdir(parents=True)
    known.write_text(json.dumps({name: 10.0 + number for number, name in enumerate(names)} | {"gone.py::test_x": 1.0}))
    tests = "".join(f"def test_{number}():\n    pass\n\n" for number in range(8))
    note = "import os\ndef pytest_runtest_setup(item):\n"
    note += "    open(os.environ['PYTEST_XDIST_WORKER'], 'a').write(item.name + '\\n')\n"

    done = inner({"test_some.py": tests, "conftest.py": note}, "-n2")

    assert "8 passed" in done.lines[-1], done.text
    for path in (tmp_path / "inner").glob("gw*"):  # however late one of the processes has started
        order = [int(name.removeprefix("test_")) for name in path.read_text().split()]
        assert order == sorted(order, reverse=True)
    now = json.loads(known.read_text())
    assert set(now) == set(names)
    assert max(now.values()) < 10
