"""Each framework on each backend: an unchanged script adds up 1 to 4 over four ranks on two nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.frameworks.catalog import FRAMEWORKS
from tests.frameworks.place import lines, new_mark, nothing_left, sums

if TYPE_CHECKING:
    from tests.frameworks.catalog import Framework
    from tests.frameworks.place import Place

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1500)]
each = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)


def check(place: Place, framework: Framework) -> None:
    """Every rank has printed the sum, with its own number and that of its node before the line."""
    mark = new_mark(f"sum-{framework.name}")

    with nothing_left(mark):
        done = place.run(framework, f"--name={mark}")

    assert done.exit_code == 0, done.stderr
    assert sums(done) == {0: (0, 10), 1: (0, 10), 2: (1, 10), 3: (1, 10)}, done.stdout + done.stderr
    if framework.script.endswith(".sh"):
        assert all(f"{rank // 2}: a shell has rank {rank} of 4" in texts for rank, texts in lines(done).items())


@each
def test_on_this_host(local: Place, framework: Framework) -> None:
    check(local, framework)


@each
@pytest.mark.slurm
def test_on_slurm(on_slurm: Place, framework: Framework) -> None:
    check(on_slurm, framework)


@each
@pytest.mark.ssh
def test_over_ssh(over_ssh: Place, framework: Framework) -> None:
    check(over_ssh, framework)


@each
@pytest.mark.k8s
def test_on_kubernetes(in_pods: Place, framework: Framework) -> None:
    check(in_pods, framework)
