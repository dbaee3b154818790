"""A run on this machine that nobody follows: who attaches to it may leave it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.terminal import leaves

if TYPE_CHECKING:
    from tests.command import Cli


def test_who_attaches_to_a_run_here_leaves_it_by_key_and_by_closing_the_terminal(distlaunch: Cli) -> None:
    distlaunch.write("ticks.py", leaves.TICKS)
    desk = leaves.Desk(distlaunch, {})
    assert desk.run("local", "--detach", "ticks.py")[0] == 0

    with desk.type("attach", "last") as by_key, desk.type("attach", "last") as closed:
        for screen in (by_key, closed):
            screen.until("d detaches, Ctrl-C asks")
            screen.until("tick ")
        by_key.type("d")
        assert by_key.end() == leaves.CONTINUES
        closed.close()
        assert closed.process.wait(60) == leaves.CONTINUES
    assert desk.run("status", "last")[1].splitlines()[1] == "state    running"
    assert desk.run("cancel", "--force", "last")[0] == 0
