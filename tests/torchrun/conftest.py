"""Scenarios are played once per module, however many tests look at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.torchrun import behaviour
from tests.torchrun.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.torchrun.behaviour import Both, Play


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[Play], None]], Both]:
    """Play a scene, or look at it again."""
    done: dict[object, Both] = {}

    def once(scene: Callable[[Play], None]) -> Both:
        if scene not in done:
            done[scene] = behaviour.play(scene, tmp_path_factory.mktemp("scene"))
        return done[scene]

    return once


@pytest.fixture
def port() -> int:
    """A free port that a launcher may name."""
    return behaviour.free_port()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts `distlaunch torchrun` for one node; `x.py` among its arguments is the script."""
    nodes: list[Node] = []

    def started(script: str, *words: str, **more: Any) -> Node:
        (tmp_path / "new").write_text(script)
        # It is whole at any moment, as a node that was started before may be reading it.
        (tmp_path / "new").replace(tmp_path / "x.py")
        nodes.append(Node(tmp_path, *words, name=str(len(nodes)), **more))
        return nodes[-1]

    yield started
    for node in nodes:
        node.end()
