"""The size of our window, sent to workers that only look on."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from launcher.console.terminal_size import SizeTeller
from testbed import wait_until
from tests.terminal.connections import BEGAN, Agents, received, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.console import terminal


@pytest.fixture
def window(ours: terminal.Terminal, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives our window another size."""
    now = list(BEGAN)
    monkeypatch.setattr(ours._sizes, "_size", lambda: list(now))

    def resize(rows: int, columns: int) -> None:
        now[:] = rows, columns
        os.kill(os.getpid(), signal.SIGWINCH)

    return resize


def test_a_launcher_that_only_looks_on_connects_when_its_window_changes_and_sends_only_its_size(
    ours: terminal.Terminal, agents: Agents, window: Callable[..., None]
) -> None:
    ours.only_looks_on(agents.connect)
    assert agents.met.empty()
    window(25, 80)
    with agents.next() as first:
        assert received(first) == {"size": [25, 80]}
        window(26, 90)
        assert received(first) == {"size": [26, 90]}
        assert not ours.shows(3, stderr=False)
    window(27, 90)
    with agents.next() as second:
        assert received(second) == {"size": [27, 90]}, "the connection was lost, and made again for the next change"
        ours.worker_ended()
        received(second, ends=True)
    ours.only_looks_on(agents.connect)
    with agents.next() as another:
        assert received(another) == {"size": [27, 90]}, "a worker that begins later has the size that ours had first"
    assert ours.trouble() == ""


def test_a_size_that_finds_its_connection_broken_is_sent_through_another(agents: Agents) -> None:
    teller = SizeTeller(BEGAN, lambda: None)
    teller._tell(agents.connect, [25, 80])
    agents.next().close()
    teller._tell(agents.connect, [26, 80])
    with agents.next() as second:
        assert received(second) == {"size": [26, 80]}
    teller._leave()


def test_a_size_that_cannot_be_sent_is_reported_once(ours: terminal.Terminal, window: Callable[..., None]) -> None:
    ours.only_looks_on(refused)
    for _ in range(2):
        window(25, 80)
        ours._sizes.look()
    wait_until("it to be tried", lambda: ours._sizes._failed is not None)
    assert ours.trouble() == "its terminal keeps its size: srun: no steps from here"
    window(26, 80)
    wait_until("it to be tried again", lambda: ours._sizes._failed is not None)
    assert ours.trouble() == ""


def test_a_size_that_cannot_be_sent_to_a_worker_that_has_ended_is_not_reported(
    ours: terminal.Terminal, window: Callable[..., None]
) -> None:
    ours.only_looks_on(refused)
    window(25, 80)
    wait_until("it to be tried", lambda: ours._sizes._failed is not None)
    ours.worker_ended()
    assert ours.trouble() == ""
