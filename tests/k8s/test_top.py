"""`distlaunch top` of a detached run on Kubernetes: a table, a terminal with its keys, and a rank that is slower."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.terminal.watching import STEPS, Desk, is_watched_with_keys_and_cancelled

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]


def test_a_detached_run_is_watched_from_another_process_and_cancelled_by_a_key(pods: User) -> None:
    """In a pod's log, samples come at three times their interval."""
    pods.write("steps.py", STEPS)
    run = pods.detached("--nodes", "2", "--nproc-per-node", "2", "--samples", "1", "steps.py")
    found = is_watched_with_keys_and_cancelled(Desk(pods.cli, pods.env()), run)

    assert len({node["host"] for node in found["nodes"]}) == 2
    assert pods("wait", run).exit_code == 130
