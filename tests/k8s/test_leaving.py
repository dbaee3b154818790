"""A run on Kubernetes that its user leaves, and comes back to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.k8s.conftest import KINDS, LABEL
from tests.terminal import leaves

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]


def test_a_run_is_left_by_key_at_the_question_and_by_closing_the_terminal(pods: User) -> None:
    pods.write("ticks.py", leaves.TICKS)
    desk = leaves.Desk(pods.cli, pods.env())
    leaves.leaves_and_comes_back(desk, "k8s", "--nodes", "2", "ticks.py")
    leaves.cancels_without_an_answer(desk, "k8s", "--nodes", "2", "ticks.py")


def test_a_removed_run_leaves_no_object(pods: User) -> None:
    pods.write("short.py", "print('done')\n")
    run = pods.detached("--nodes", "2", "short.py")
    assert pods("wait", run).exit_code == 0
    path = KINDS["jobs"].format(pods.namespace)
    assert pods.kube.api.get(path, labelSelector=f"{LABEL}={run}")["items"]

    assert pods("rm", run).exit_code == 0
    assert not pods.kube.api.get(path, labelSelector=f"{LABEL}={run}")["items"]
    assert pods("status", run).exit_code == 2


def test_a_terminal_that_is_closed_at_any_moment_of_a_run_loses_no_line_and_changes_no_end(pods: User) -> None:
    pods.write("lines.py", leaves.LINES)

    def jobs(run: str) -> int:
        listed = pods.kube.api.get(KINDS["jobs"].format(pods.namespace), labelSelector=f"{LABEL}={run}")
        return len([job for job in listed["items"] if not job["spec"].get("suspend")])

    leaves.is_disconnected_in_each_phase(
        leaves.Desk(pods.cli, pods.env()), "k8s", "--nodes", "2", submission_s=1.0, begun=jobs, removes_logs=True
    )


def test_a_terminal_that_is_closed_while_it_fetches_leaves_what_the_next_one_continues(pods: User) -> None:
    pods.write("writes.py", leaves.WRITES)
    leaves.is_disconnected_while_it_fetches(leaves.Desk(pods.cli, pods.env()), "k8s", "--nodes", "1")
