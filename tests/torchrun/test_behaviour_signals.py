"""Side by side with torchrun: signals to the launcher."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.torchrun.behaviour import WORKER, rounds, runs, signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torchrun.behaviour import Both, Play

    Played = Callable[[Callable[[Play], None]], Both]

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (signal.SIGTERM, []),
        (signal.SIGINT, []),
        (signal.SIGHUP, []),
        (signal.SIGQUIT, []),
        (signal.SIGUSR1, ["--signals-to-handle=SIGUSR1,SIGTERM"]),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "",
)
def test_a_signal_to_the_launcher_ends_the_run(played: Played, number: signal.Signals, options: list[str]) -> None:
    def scene(play: Play) -> None:
        launcher = play.start("--nproc-per-node=2", "--max-restarts=3", *options, WORKER, "hold")
        play.until(2)
        launcher.send_signal(number)

    both = played(scene)

    assert both.same(signals) == [[number.name]] * 2
    assert both.same(lambda play: play.codes) == [1]
    assert both.same(rounds) == [["0", "0"], ["0", "1"]]


def deaf(play: Play) -> None:
    launcher = play.start("--nproc-per-node=2", "--shutdown-timeout=1", WORKER, f"deaf={signal.SIGTERM:d}", "hold")
    play.until(2)
    launcher.send_signal(signal.SIGTERM)


def test_a_worker_that_ignores_the_signal_is_killed(played: Played) -> None:
    both = played(deaf)

    assert both.same(signals) == [[], []]
    assert both.same(lambda play: play.codes) == [1]
    for play in both:
        assert not [noted["pid"] for noted in play.workers if runs(noted)]
