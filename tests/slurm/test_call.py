"""`distlaunch.call` as a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import calls

if TYPE_CHECKING:
    from tests.command import Result
    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm


def test_functions_are_called_in_jobs(login: Login) -> None:
    def run(*words: str) -> Result:
        return login(*words, python=(), real=True)

    calls.check(login.write, run, {"backend": "slurm", "nodes": 2})
