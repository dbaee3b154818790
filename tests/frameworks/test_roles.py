"""Several contracts in one run: worlds of MPI beside one another, and TensorFlow's tasks as separate programs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.catalog import BY_NAME
from tests.frameworks.environment import ready
from tests.frameworks.place import LIMIT_S, lines, new_mark, nothing_left

if TYPE_CHECKING:
    from tests.command import Result
    from tests.frameworks.place import Place

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1500)]
WORLDS = """\
[roles.alone]
nodes = 1
nproc_per_node = 1
script = "./with_env.sh"
no_python = true
contract = "env"

[roles.one]
nodes = 1
nproc_per_node = 2
script = "with_mpi.py"
contract = "mpi"

[roles.two]
nodes = 2
nproc_per_node = 2
script = "with_mpi.py"
contract = "mpi"
"""
TASKS = "\n".join(
    f'[roles.{name}]\nnodes = {nodes}\nnproc_per_node = 1\nscript = "ps_tensorflow.py"\ncontract = "tensorflow"\n{more}'
    for name, nodes, more in (("chief", 1, ""), ("worker", 1, "serves = true\n"), ("ps", 1, "serves = true\n"))
)


def run(place: Place, framework: str, text: str) -> Result:
    """A run of these roles, which succeeds and leaves nothing."""
    mark, about = new_mark(f"roles-{framework}"), BY_NAME[framework]
    prefix = ready(about.packages).prefix
    file = place.cli.write("run.toml", text)
    options = [f"--name={mark}", "--log-ranks=all", f"--python={prefix / 'bin/python'}", f"--roles={file}"]
    options += [f"--env={name}={value}" for name, value in {"OMP_NUM_THREADS": "1", **about.env}.items()]
    if place.mounts:
        volumes = {place.work: "", prefix: ":ro"}
        options += [f"--volume=hostpath:{path}:{path}{mode}" for path, mode in volumes.items()]
    with nothing_left(mark):
        done = place.cli(
            place.backend, *place.where, *options, env=place.variables(), cwd=place.work, timeout_s=LIMIT_S
        )
    assert done.exit_code == 0, done.stdout + done.stderr
    return done


def worlds(place: Place) -> None:
    """Each role has a world of its own, and each of its ranks the sum of that world."""
    said = lines(run(place, "open-mpi-5", WORLDS))

    sums = {
        rank: found[1] for rank, texts in said.items() if (found := re.search(r"of \d on \S+: (sum \d+)", texts[0]))
    }
    assert {sums[rank] for rank in (1, 2)} == {"sum 3"}, said
    assert {sums[rank] for rank in (3, 4, 5, 6)} == {"sum 10"}, said


def test_worlds_of_mpi_beside_one_another_on_this_host(local: Place) -> None:
    worlds(local)


@pytest.mark.ssh
@pytest.mark.rotating
def test_worlds_of_mpi_beside_one_another_over_ssh(over_ssh: Place) -> None:
    worlds(over_ssh)


@pytest.mark.slurm
@pytest.mark.rotating
def test_worlds_of_mpi_beside_one_another_on_slurm(on_slurm: Place) -> None:
    worlds(on_slurm)


@pytest.mark.k8s
@pytest.mark.rotating
def test_worlds_of_mpi_beside_one_another_in_pods(in_pods: Place) -> None:
    worlds(in_pods)


@pytest.mark.rotating
def test_tasks_of_tensorflow_are_one_cluster(local: Place) -> None:
    done = run(local, "tensorflow", TASKS)

    served = {(rank, text) for rank, texts in lines(done).items() for text in texts if "serves as" in text}
    assert served == {(1, "1: serves as worker 0"), (2, "2: serves as ps 0")}, done.stdout
    assert re.search(r"^\[0:0\] chief of 1 workers: accuracy 0\.9", done.stdout, re.MULTILINE), done.stdout


def test_horovod_has_its_variables_in_a_world_of_mpi(local: Place) -> None:
    """With a package of its name: no release of Horovod installs here."""
    package = local.work / "stub/horovod"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    about = BY_NAME["open-mpi-5"]
    options = ("--contract=horovod", f"--env=PYTHONPATH={package.parent}", f"--name={new_mark('horovod')}")

    refused = local.run(about, "--contract=horovod", f"--name={new_mark('none')}", script="horovod_place.py")
    done = local.cli(
        *local.argv(about, *options, script="horovod_place.py"),
        env={**local.variables(), "PYTHONPATH": f"{package.parent}:{local.variables()['PYTHONPATH']}"},
        cwd=local.work,
        timeout_s=LIMIT_S,
    )

    assert refused.exit_code != 0
    assert "no horovod here" in refused.stderr
    assert done.exit_code == 0, done.stderr
    said = {rank: json.loads(texts[0].split(": ", 2)[2]) for rank, texts in lines(done).items()}
    same = {"SIZE": "4", "LOCAL_SIZE": "2", "CROSS_SIZE": "2", "CONTROLLER": "mpi", "CPU_OPERATIONS": "mpi"}
    places = {0: ("0", "0"), 1: ("1", "0"), 2: ("0", "1"), 3: ("1", "1")}
    expected = {
        rank: {**same, "RANK": str(rank), "LOCAL_RANK": local_rank, "CROSS_RANK": node}
        for rank, (local_rank, node) in places.items()
    }
    assert said == {
        rank: {f"HOROVOD_{name}": value for name, value in found.items()} for rank, found in expected.items()
    }
