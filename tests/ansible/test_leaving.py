"""A run over SSH that its user leaves, and comes back to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.terminal import leaves

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh


def test_a_run_is_left_by_key_at_the_question_and_by_closing_the_terminal(rack: Rack) -> None:
    rack.write("ticks.py", leaves.TICKS)
    desk = leaves.Desk(rack.cli, {}, rack.directory)
    leaves.leaves_and_comes_back(desk, *rack.argv("--nodes", "2", "ticks.py"))
    leaves.cancels_without_an_answer(desk, *rack.argv("--nodes", "2", "ticks.py"))


def test_a_removed_run_is_gone_on_its_hosts_too_unless_one_of_them_does_not_answer(rack: Rack) -> None:
    rack.write("short.py", "print('done')\n")
    runs = [rack.detached("--nodes", "2", "short.py") for _ in range(2)]
    assert rack.shell("wait", *runs).exit_code == 0

    assert rack.shell("rm", runs[0]).exit_code == 0
    assert [path.name for path in rack.remote.glob("runs/*")] == [runs[1]]
    rack.ssh.hosts[1].cut_off()
    try:
        refused = rack.shell("rm", runs[1])
    finally:
        rack.ssh.hosts[1].reconnect()
    assert (refused.exit_code, "n2: " in refused.stderr) == (4, True)
    assert rack.shell("prune", "--older-than", "0.001s").exit_code == 0
    assert not list(rack.remote.glob("runs/*"))
    assert not list(rack.cli.runs.glob("short-*"))


def test_a_terminal_that_is_closed_at_any_moment_of_a_run_loses_no_line_and_changes_no_end(rack: Rack) -> None:
    rack.write("lines.py", leaves.LINES)

    def agents(run: str) -> int:
        streams = rack.remote.glob(f"runs/{run}/**/stream")
        return max(stream.read_bytes().count(b'"event":"agent_started"') for stream in streams)

    leaves.is_disconnected_in_each_phase(
        leaves.Desk(rack.cli, {}, rack.directory),
        *rack.argv("--nodes", "2", "--share"),
        submission_s=2.0,
        begun=agents,
    )


def test_a_terminal_that_is_closed_while_it_fetches_leaves_what_the_next_one_continues(rack: Rack) -> None:
    rack.write("writes.py", leaves.WRITES)
    desk = leaves.Desk(rack.cli, {}, rack.directory)
    leaves.is_disconnected_while_it_fetches(desk, *rack.argv("--nodes", "1"))
