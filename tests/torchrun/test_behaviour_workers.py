"""Side by side with torchrun: what is run as a worker, and what workers are given."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest

from tests.torchrun.behaviour import WORKER, free_port, of, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torchrun.behaviour import Both, Play

    Played = Callable[[Callable[[Play], None]], Both]

pytestmark = pytest.mark.torch

OWN = re.compile(
    r"MASTER_(ADDR|PORT)$|TORCHELASTIC_ERROR_FILE$|TORCHELASTIC_RUN_ID$|HOME$|TMPDIR$|SEEN$|PWD$|DISTLAUNCH_"
)
"""Variables whose values differ in each run."""


def environment(play: Play) -> list[dict[str, Any]]:
    """The workers' variables that differ from the launcher's (None: removed)."""
    found = []
    for noted in play.workers:
        env: dict[str, Any] = {name: value for name, value in noted["env"].items() if os.environ.get(name) != value}
        env |= dict.fromkeys(set(play.given[0]) - set(noted["env"]))
        found.append({name: value for name, value in env.items() if not OWN.match(name)})
    return found


def two_workers(play: Play) -> None:
    args = ["say", "a b", "", "$x", "${local_rank}", "x${local_rank}y", "$local_rank", "${rank}", "--nnodes", "7", "-t"]
    play.start(
        "--nproc_per_node", "2", "--role", "trainer", "--max-restarts", "2", WORKER, *args, env={"MINE": "ü \n="}
    )


def test_two_workers_are_given_the_same_variables(played: Played) -> None:
    both = played(two_workers)

    assert both.same(lambda play: play.codes) == [0]
    found = both.same(environment)
    assert [env["RANK"] for env in found] == ["0", "1"]
    assert (found[0]["ROLE_NAME"], found[0]["OMP_NUM_THREADS"], found[0]["MINE"]) == ("trainer", "1", "ü \n=")


def test_the_macro_is_replaced_and_nothing_else_is(played: Played) -> None:
    found = played(two_workers).same(lambda play: [noted["argv"][1:] for noted in play.workers])

    assert found[1] == ["say", "a b", "", "$x", "1", "x1y", "1", "${rank}", "--nnodes", "7", "-t"]


def test_what_two_workers_write_is_shown_as_it_is(played: Played) -> None:
    assert played(two_workers).same(shown) == (["out of 0", "out of 1"], ["err of 0", "err of 1"])


def test_they_run_where_the_launcher_does_and_unbuffered(played: Played) -> None:
    both = played(two_workers)

    assert both.same(lambda play: [os.path.relpath(noted["cwd"], play.directory) for noted in play.workers]) == [
        ".",
        ".",
    ]
    assert both.same(lambda play: [noted["unbuffered"] for noted in play.workers]) == [True, True]


def test_nothing_of_ours_is_left_in_the_temporary_directory(played: Played) -> None:
    assert sorted(path.name for path in played(two_workers).ours.temporary.iterdir()) == []


def module(play: Play) -> None:
    (play.directory / "pkg").mkdir()
    (play.directory / "pkg/__init__.py").write_text("")
    (play.directory / "pkg/mod.py").write_text(f"exec(open({WORKER!r}).read())\n")
    options = ["--standalone", "--nproc-per-node=2", "--virtual-local-rank", "-m", "pkg.mod", "-m", "say"]
    play.start(*options, env={"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})


def test_a_module_runs_in_standalone_mode_with_virtual_local_ranks(played: Played) -> None:
    both = played(module)

    assert both.same(lambda play: play.codes) == [0]
    both.same(environment)
    assert both.same(lambda play: of(play, "LOCAL_RANK", "RANK", "OMP_NUM_THREADS")) == [
        ["0", "0", "3"],
        ["0", "1", "3"],
    ]
    assert (
        both.same(lambda play: [(noted["package"], noted["argv"][1:]) for noted in play.workers])
        == [("pkg", ["-m", "say"])] * 2
    )


SERVES = """
import os, socket
try:
    with socket.create_server(("", int(os.environ["MASTER_PORT"]))):
        print("free", os.environ["TORCHELASTIC_USE_AGENT_STORE"])
except OSError:
    print("taken", os.environ["TORCHELASTIC_USE_AGENT_STORE"])
"""


def served(play: Play, *options: str) -> None:
    (play.directory / "serves.py").write_text(SERVES)
    play.start(*options, "serves.py", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def alone(play: Play) -> None:
    served(play)


def standalone(play: Play) -> None:
    served(play, "--standalone", "--nproc-per-node=1")


def of_c10d(play: Play) -> None:
    served(play, "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=one")


def static(play: Play) -> None:
    served(play, f"--master-port={free_port()}")


@pytest.mark.parametrize(
    ("scene", "said"),
    [(alone, "free False"), (standalone, "free False"), (of_c10d, "free False"), (static, "taken True")],
)
def test_rank_0_may_serve_its_port_itself(played: Played, scene: Callable[[Play], None], said: str) -> None:
    assert played(scene).same(lambda play: play.ended[0].stdout) == f"{said}\n"


def variables(play: Play) -> None:
    env = {
        "PET_NPROC_PER_NODE": "2",
        "PET_ROLE": "of_env",
        "PET_MAX_RESTARTS": "5",
        "PET_TEE": "1",
        "PET_LOG_DIR": "logs",
    }
    play.start("--max_restarts=4", WORKER, "say", env=env)


def test_variables_give_defaults(played: Played) -> None:
    both = played(variables)

    names = ("ROLE_NAME", "WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS")
    assert both.same(lambda play: of(play, *names)) == [["of_env", "2", "4"]] * 2
    assert both.same(shown) == (["[of_env0]:out of 0", "[of_env1]:out of 1"], ["err of 0", "err of 1"])
    assert len(both.same(lambda play: list(play.files("logs").values()))) == 2


def program(play: Play) -> None:
    (play.directory / "run.sh").write_text(f'exec "$MINE" {WORKER} "$@"\n')
    play.start("--no_python", "sh", "run.sh", "say", "l${local_rank}", "rest of it", env={"MINE": sys.executable})


def test_a_program_runs_with_the_workers_variables(played: Played) -> None:
    both = played(program)

    assert both.same(lambda play: play.codes) == [0]
    assert both.same(lambda play: [noted["argv"][1:] for noted in play.workers]) == [["say", "l0", "rest of it"]]
    assert both.same(lambda play: of(play, "OMP_NUM_THREADS", "WORLD_SIZE")) == [[None, "1"]]
    both.same(shown)


def run_path(play: Play) -> None:
    play.start("--run_path", "--no-python", WORKER, "say", "--", "x")


def test_a_script_runs_in_the_same_interpreter(played: Played) -> None:
    both = played(run_path)

    assert both.same(lambda play: play.codes) == [0]
    assert both.same(lambda play: [noted["argv"] for noted in play.workers]) == [[WORKER, "say", "--", "x"]]
    assert both.same(shown) == (["out of 0"], ["err of 0"])


def directory(play: Play) -> None:
    (play.directory / "app").mkdir()
    (play.directory / "app/__main__.py").write_text(Path(WORKER).read_text())
    play.start("app", "say")


def archive(play: Play) -> None:
    with ZipFile(play.directory / "app.pyz", "w") as app:
        app.write(WORKER, "__main__.py")
    play.start("--nnodes=+1", "--nproc-per-node=1", "app.pyz", "say")


def piped_script(play: Play) -> None:
    with open(WORKER, "rb") as script:
        play.start("/dev/stdin", "say", stdin=script)


@pytest.mark.parametrize("scene", [directory, archive, piped_script])
def test_what_python_runs_may_be_a_directory_an_archive_or_a_pipe(played: Played, scene: Any) -> None:
    both = played(scene)

    assert both.same(lambda play: play.codes) == [0]
    assert both.same(lambda play: [noted["argv"] for noted in play.workers])[0][1:] == ["say"]
    assert both.same(shown) == (["out of 0"], ["err of 0"])


@pytest.mark.parametrize("value", ["cpu", "auto"])
def test_there_are_as_many_workers_as_cpus(played: Played, value: str) -> None:
    def scene(play: Play) -> None:
        play.start("--nproc-per-node", value, WORKER)

    found = played(scene).same(lambda play: [play.codes, of(play, "LOCAL_WORLD_SIZE")])

    assert found == [[0], [[str(os.cpu_count())]] * (os.cpu_count() or 0)]
