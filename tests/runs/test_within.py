"""A run that a worker of another run starts, as a sweep does: a run of its own."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from launcher.agent import outer_run
from tests.terminal.asks import on_screen
from tests.torchrun.behaviour import free_port

if TYPE_CHECKING:
    from tests.command import Cli

SWEEP = """
import os, subprocess, sys
print("directory", os.environ["DISTLAUNCH_OUTPUT_DIR"])
os.environ["WANDB_PROJECT"] = "ours"
words = [sys.executable, "-m", "launcher", "local", "--quiet", "--nproc-per-node", "2", "--log-ranks", "all"]
sys.exit(subprocess.call([*words, *sys.argv[1:], "inner.py"], cwd="trial"))
"""

OUTER = (
    """
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(1)
"""
    + SWEEP
)
"""Starts another run in its second round."""

SHOWS = """
import json, os, subprocess, sys
def shown():
    words = [sys.executable, "-m", "launcher", "config", "--output", "json"]
    told = subprocess.run(words, check=True, capture_output=True).stdout
    return json.loads(told)["result"]["settings"].get("output_dir")
assert os.environ["DISTLAUNCH_OUTPUT_DIR"]
print("at first", shown())
os.environ["DISTLAUNCH_OUTPUT_DIR"] = "/mine"
print("then", shown())
"""
"""Shows the setting that the worker's own directory looks like."""

INNER = """
import json, os
print(json.dumps({name: value for name, value in os.environ.items()}))
"""


def variables(text: str) -> list[dict[str, str]]:
    """What the workers of the inner run have printed, by their numbers."""
    found = [json.loads(line[line.index("{") :]) for line in text.splitlines() if line.endswith("}")]
    return sorted(found, key=lambda env: env["DISTLAUNCH_DEADLINE_FILE"] + env.get("RANK", ""))


def inner(distlaunch: Cli, *options: str) -> list[dict[str, str]]:
    """The variables of both workers of the run that was started by the worker of a restarted run."""
    distlaunch.write("outer.py", OUTER)
    distlaunch.write("trial/inner.py", INNER)
    done = distlaunch("local", "--max-restarts", "1", "--name", "outer", "outer.py", *options)
    assert done.exit_code == 0, done.stderr
    assert f"directory {distlaunch.directory}\n" in done.stdout
    return variables(done.stdout)


def test_it_has_nothing_of_the_outer_run(distlaunch: Cli) -> None:
    found = inner(distlaunch)

    assert len(found) == 2
    for rank, env in enumerate(found):
        run = env["DISTLAUNCH_RUN_ID"]
        assert run.startswith("inner-")
        assert env["WANDB_RUN_ID"] == (f"{run}-rank{rank}" if rank else run)
        assert (env["WANDB_RUN_GROUP"], json.loads(env["MLFLOW_RUN_CONTEXT"])["distlaunch.run"]) == (run, run)
        assert env["DISTLAUNCH_OUTPUT_DIR"] == str(distlaunch.directory / "trial")
        assert not {"DISTLAUNCH_ATTEMPT", "DISTLAUNCH_ATTEMPT_REASON", "DISTLAUNCH_ROUND"} & {*env}
        assert env["WANDB_PROJECT"] == "ours", "a variable of the user's stays"


def test_no_place_among_the_workers_of_the_outer_run_is_left(distlaunch: Cli) -> None:
    found = inner(distlaunch, "--contract", "env")

    assert len(found) == 2
    for env in found:
        assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_ERROR_FILE"} & {*env}
        assert env["DISTLAUNCH_WORLD_SIZE"] == "2"


def test_the_roles_of_the_outer_run_are_no_settings_of_it(distlaunch: Cli) -> None:
    distlaunch.write("outer.py", f"import os\nassert os.environ['DISTLAUNCH_ROLE']\n{SWEEP}")
    distlaunch.write("trial/inner.py", INNER)

    done = distlaunch("local", "--role", "sweep:1:outer.py", "--role", "other:1:outer.py")

    assert done.exit_code == 0, done.stderr
    found = variables(done.stdout)
    assert [env["ROLE_NAME"] for env in found] == ["default"] * len(found)
    assert found
    assert not [name for env in found for name in env if name.startswith("DISTLAUNCH_ROLE")]


def test_what_its_worker_sets_for_it_counts_under_whatever_name(distlaunch: Cli) -> None:
    port = str(free_port())
    own = {"DISTLAUNCH_MASTER_PORT": port, "DISTLAUNCH_ROLE": "actor", "WANDB_RUN_GROUP": "trials"}
    distlaunch.write("outer.py", f"import os\nos.environ.update({own})\n{SWEEP}")
    distlaunch.write("trial/inner.py", INNER)

    done = distlaunch("local", "outer.py")

    assert done.exit_code == 0, done.stderr
    found = variables(done.stdout)
    assert len(found) == 2
    for env in found:
        assert (env["MASTER_PORT"], env["ROLE_NAME"], env["WANDB_RUN_GROUP"]) == (port, "actor", "trials")
        assert env["DISTLAUNCH_OUTPUT_DIR"] == str(distlaunch.directory / "trial")


@pytest.mark.parametrize(
    ("contract", "prefixes"),
    [("jax", ("JAX_", "OMPI_")), ("tensorflow", ("TF_CONFIG",)), ("torchrun", ("TORCHELASTIC_", "RANK", "MASTER_"))],
)
def test_nothing_of_another_contract_is_left(distlaunch: Cli, contract: str, prefixes: tuple[str, ...]) -> None:
    has_them = f"assert [each for each in os.environ if each.startswith({prefixes})]"
    distlaunch.write("outer.py", f"import os\n{has_them}\n{SWEEP}")
    distlaunch.write("trial/inner.py", INNER)
    program = ("--no-python", sys.executable, "outer.py", "--contract", "env")

    done = distlaunch("local", "--nproc-per-node", "1", "--contract", contract, *program)

    assert done.exit_code == 0, done.stderr
    found = variables(done.stdout)
    assert len(found) == 2
    assert not [name for env in found for name in env if name.startswith(prefixes)]


def test_a_run_from_a_shell_beside_the_workers(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", "import signal\nsignal.pause()\n")
    distlaunch.write(
        "trial/inner.py", "import os\nprint('at', os.environ['MASTER_PORT'], os.environ['DISTLAUNCH_OUTPUT_DIR'])"
    )
    run, port = distlaunch("local", "--detach", "waits.py").stdout.strip(), free_port()
    launch = f"{sys.executable} -m launcher local --quiet inner.py"

    with on_screen(distlaunch, "shell", run, env={}) as screen:
        screen.until("exit or Ctrl-D leaves it")
        screen.type(f"cd trial && DISTLAUNCH_MASTER_PORT={port} {launch} && exit\n")
        screen.until(f"at {port} {distlaunch.directory}/trial")
        assert screen.end() == 0

    assert distlaunch("cancel", "--force", run).exit_code == 0


def test_its_settings_are_shown_as_they_apply(distlaunch: Cli) -> None:
    distlaunch.write("shows.py", SHOWS)

    done = distlaunch("local", "shows.py")

    assert done.stdout == "at first None\nthen {'value': '/mine', 'source': 'DISTLAUNCH_OUTPUT_DIR'}\n", done.stderr


def test_the_devices_of_its_worker_stay() -> None:
    devices = {"CUDA_VISIBLE_DEVICES": "2,3", "JAX_LOCAL_DEVICE_IDS": "1"}

    env = outer_run.with_record({"HOME": "/home/me"}, {**devices, "JAX_PROCESS_ID": "1"})

    assert outer_run.without_it(env) == {"HOME": "/home/me", **devices}
