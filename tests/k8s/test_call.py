"""`distlaunch.call` in pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import calls

if TYPE_CHECKING:
    from tests.command import Result
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]


def test_functions_are_called_in_pods(pods: User) -> None:
    def run(*words: str) -> Result:
        return pods(*words, python=(), real=True)

    calls.check(pods.write, run, {"backend": "k8s", "nodes": 2})


def test_arguments_that_are_too_large_for_a_secret_are_refused_before_anything_is_created(user: User) -> None:
    user.write("calls.py", "import distlaunch\ndistlaunch.call(len, ['x' * 1_000_000], backend='k8s')\n")

    done = user("calls.py", python=(), real=True)

    assert "SpecError: the function and its arguments have 1.3 MB, and at most 1 MB fit into a Secret" in done.stderr
    assert user.left() == []
