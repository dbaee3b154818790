"""A run on Slurm that its user leaves, and comes back to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.terminal import leaves

if TYPE_CHECKING:
    from tests.slurm.conftest import Login


def test_a_run_is_left_by_key_at_the_question_and_by_closing_the_terminal(login: Login) -> None:
    login.write("ticks.py", leaves.TICKS)
    desk = leaves.Desk(login.cli, login.env())
    leaves.leaves_and_comes_back(desk, "slurm", "--nodes", "2", "ticks.py")
    leaves.cancels_without_an_answer(desk, "slurm", "--nodes", "2", "ticks.py")


def test_a_terminal_that_is_closed_at_any_moment_of_a_run_loses_no_line_and_changes_no_end(login: Login) -> None:
    login.write("lines.py", leaves.LINES)
    desk = leaves.Desk(login.cli, login.env())

    def jobs(run: str) -> int:
        return sum(line.endswith(f":{run}") for line in login.queue("%k", "--states=all"))

    leaves.is_disconnected_in_each_phase(desk, "slurm", "--nodes", "2", submission_s=0.5, begun=jobs)


def test_a_terminal_that_is_closed_while_it_fetches_leaves_what_the_next_one_continues(login: Login) -> None:
    login.write("writes.py", leaves.WRITES)
    leaves.is_disconnected_while_it_fetches(leaves.Desk(login.cli, login.env()), "slurm", "--nodes", "1")
