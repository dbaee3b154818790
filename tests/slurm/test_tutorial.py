"""docs/tutorials/slurm.md, on a real Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import tutorial
from tests.command import ROOT

if TYPE_CHECKING:
    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm


def test_the_tutorial(login: Login) -> None:
    tutorial.play(ROOT / "docs/tutorials/slurm.md", login, login.write)
