"""More than a sum: much data between ranks, and models that learn. A few of these in a run, others at each commit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.catalog import BY_NAME
from tests.frameworks.place import lines, new_mark, nothing_left

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.command import Result
    from tests.frameworks.place import Place

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1500), pytest.mark.rotating]
ENOUGH = 0.97
"""Of the digits that a model has not learned from, it recognizes at least this part."""


def run(place: Place, framework: str, script: str, *options: str) -> Result:
    """A run that succeeds, and leaves nothing."""
    mark = new_mark(framework)
    with nothing_left(mark):
        done = place.run(BY_NAME[framework], f"--name={mark}", *options, script=script)
    assert done.exit_code == 0, done.stdout + done.stderr
    return done


def exchange(place: Place, framework: str) -> None:
    """64 MB from each rank to all others."""
    done = run(place, framework, "alltoall.py")

    assert lines(done) == {rank: [f"{rank // 2}: rank {rank} of 4: 64 MB, right"] for rank in range(4)}


def learn(place: Place, framework: str) -> None:
    """All ranks end with the same model, which has learned."""
    done = run(place, framework, f"digits_{framework}.py")

    found = {int(rank): float(part) for rank, part in re.findall(r"rank (\d) of 4: accuracy (\S+)", done.stdout)}
    assert {*found} == {0, 1, 2, 3}, done.stdout
    assert len({*found.values()}) == 1, found
    assert min(found.values()) >= ENOUGH


def serve(place: Place, framework: str) -> None:
    """The run ends with the chief, although the parameter server and the workers never do."""
    done = run(place, framework, "ps_tensorflow.py", "--ps=1")

    served = {(rank, text) for rank, texts in lines(done).items() for text in texts if "serves as" in text}
    assert served == {(1, "0: serves as worker 0"), (2, "1: serves as worker 1"), (3, "1: serves as ps 0")}
    (accuracy,) = re.findall(r"^\[0:0\] chief of 2 workers: accuracy (\S+)$", done.stdout, re.MULTILINE)
    assert float(accuracy) >= ENOUGH


WAYS: Mapping[str, tuple[Callable[[Place, str], None], str]] = {
    **{f"alltoall-{name}": (exchange, name) for name in ("open-mpi-4", "open-mpi-5", "mpich")},
    "digits-jax": (learn, "jax"),
    "digits-tensorflow": (learn, "tensorflow"),
    "parameter-server": (serve, "tensorflow"),
}
each = pytest.mark.parametrize("way", WAYS)


def check(place: Place, way: str) -> None:
    play, framework = WAYS[way]
    play(place, framework)


@each
def test_on_this_host(local: Place, way: str) -> None:
    check(local, way)


@each
@pytest.mark.slurm
def test_on_slurm(on_slurm: Place, way: str) -> None:
    check(on_slurm, way)


@each
@pytest.mark.ssh
def test_over_ssh(over_ssh: Place, way: str) -> None:
    check(over_ssh, way)


@each
@pytest.mark.k8s
def test_on_kubernetes(in_pods: Place, way: str) -> None:
    check(in_pods, way)
