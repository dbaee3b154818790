"""A node that fails before it has met the others: they learn why, whichever it is, and do not wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.torchrun.node import ROOT, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLEEPS = "import time; time.sleep(600)"
NO_SCRIPT = "FileNotFoundError: [Errno 2] No such file or directory"
STATIC, C10D = ("--rdzv-backend=static",), ("--rdzv-backend=c10d",)
REPLACEABLE = (*C10D, "--max-restarts=1")
MEETINGS = pytest.mark.parametrize("how", [STATIC, C10D, REPLACEABLE], ids=["static", "c10d", "replaceable"])


@pytest.fixture
def launch(tmp_path: Path, port: int) -> Iterator[Callable[..., Node]]:
    """Starts a node in a directory of its own, with its own script and modules."""
    nodes: list[Node] = []

    def launched(how: tuple[str, ...], script: str | None, *, torch: str | None = None, count: int | str = 2) -> Node:
        rank = len(nodes)
        directory = tmp_path / str(rank)
        directory.mkdir()
        if script is not None:
            (directory / "x.py").write_text(script)
        if torch is not None:
            (directory / "lib").mkdir()
            (directory / "lib" / "torch.py").write_text(torch)
        meets = [f"--rdzv-endpoint=127.0.0.1:{port}", *how, f"--node-rank={rank}"]
        path = {"PYTHONPATH": f"{ROOT}:{directory / 'lib'}"}
        nodes.append(Node(directory, f"--nnodes={count}", *meets, "x.py", env=path))
        # It has begun, and listens if it is the first.
        nodes[-1].until(lambda: nodes[-1].left() or nodes[-1].process.poll() is not None)
        return nodes[-1]

    yield launched
    for node in nodes:
        node.end()


@MEETINGS
@pytest.mark.parametrize("without", [0, 1])
def test_a_node_without_the_script_ends_the_others_with_its_cause(
    launch: Callable[..., Node], how: tuple[str, ...], without: int
) -> None:
    nodes = [launch(how, None if rank == without else SLEEPS) for rank in (0, 1)]

    assert [node.wait() for node in nodes] == [1, 1]
    for node in nodes:
        assert f"{NO_SCRIPT}: '{nodes[without].directory / 'x.py'}'" in node.err
        assert f"node {without}" in node.err
        assert node.left() == []


@MEETINGS
@pytest.mark.parametrize("broken", [0, 1])
def test_a_node_that_cannot_import_torch_ends_the_others_with_its_cause(
    launch: Callable[..., Node], how: tuple[str, ...], broken: int
) -> None:
    raises = "raise ImportError('libnothing.so: cannot open shared object file')"
    nodes = [launch(how, "import torch", torch=raises) if rank == broken else launch(how, SLEEPS) for rank in (0, 1)]

    assert [node.wait() for node in nodes] == [1, 1]
    assert [node.err.count("cannot import torch: ImportError: libnothing.so") for node in nodes] == [1, 1]


@MEETINGS
def test_nodes_that_come_after_the_failure_learn_of_it(launch: Callable[..., Node], how: tuple[str, ...]) -> None:
    first = launch(how, None, count=3)
    first.until(lambda: "waits for 3 nodes to learn" in first.err)
    later = [launch(how, SLEEPS, count=3) for _ in range(2)]

    assert [node.wait() for node in (first, *later)] == [1, 1, 1]
    assert all(NO_SCRIPT in node.err for node in (first, *later))


def test_a_run_is_not_ended_by_a_spare_node_without_the_script(launch: Callable[..., Node], tmp_path: Path) -> None:
    script = (
        f"import pathlib, time\nprint('up')\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.1)"
    )
    nodes = [launch(REPLACEABLE, script) for _ in range(2)]
    nodes[0].until(lambda: all("up" in node.out for node in nodes))
    spare = launch(REPLACEABLE, None)

    assert spare.wait() == 1
    assert NO_SCRIPT in spare.err
    (tmp_path / "go").touch()
    assert [node.wait() for node in nodes] == [0, 0]


def test_a_node_that_waits_to_tell_its_failure_ends_on_a_signal(launch: Callable[..., Node]) -> None:
    node = launch(STATIC, None)
    node.until(lambda: "waits for" in node.err)

    node.process.terminate()

    assert node.wait() == 1
    assert NO_SCRIPT in node.err


def test_a_node_that_may_run_alone_waits_for_no_others(launch: Callable[..., Node]) -> None:
    alone = launch(C10D, None, count="1:8")

    assert alone.wait() == 1
    assert NO_SCRIPT in alone.err
    assert "to learn that the run has failed" not in alone.err
