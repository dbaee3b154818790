"""Near misses: the nearest known name is suggested, and what only looks like a setting or an option is warned of."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher import backends
from launcher.settings import checks, config
from launcher.settings.options import JobOptions
from launcher.system import names

if TYPE_CHECKING:
    from tests.command import Cli

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["local", "trian.py"], "did you mean train.py?"),
        (["local", "src/modle.py"], "did you mean src/model.py?"),
        (["local", "reduse.py"], "did you mean reduce.py?"),
        (["local", "--node", "2", "train.py"], "did you mean --nodes?"),
        (["local", "--max_restart", "2", "train.py"], "did you mean --max-restarts?"),
        (["status", "--ouput", "json", "x"], "did you mean --output?"),
        (["doctor", "locl"], "did you mean local?"),
        (["slrum", "train.py"], "did you mean slurm?"),
        (["cancle", "x"], "did you mean cancel?"),
        (["lab", "train.py"], "distlaunch run --on lab"),
        (["run", "--on", "lap", "train.py"], "did you mean lab?"),
        (["local", "--cluster", "LAB", "train.py"], "did you mean lab?"),
        (["ls", "--on", "labb"], "did you mean lab?"),
        (["ls", "--on", "k8"], "did you mean k8s?"),
        (["config", "--cluster", "labb"], "did you mean lab?"),
    ],
)
def test_the_nearest_name_is_suggested(distlaunch: Cli, args: list[str], meant: str) -> None:
    distlaunch.write("train.py", "")
    distlaunch.write("src/model.py", "")
    distlaunch.write("distlaunch.toml", '[clusters.lab]\nbackend = "local"\n')

    done = distlaunch(*args)

    assert done.exit_code == 2
    assert meant in done.stderr


def test_the_nearest_backend_and_key_of_a_file_are_suggested(distlaunch: Cli) -> None:
    path = distlaunch.write("distlaunch.toml", '[clusters.lab]\nbackend = "kubernets"\n')
    assert "unknown backend 'kubernets'" in distlaunch("config").stderr
    path.write_text('[clusters.lab]\nbackend = "slumr"\n')
    assert "did you mean slurm? known: ansible, k8s, local, slurm" in distlaunch("config").stderr
    path.write_text('[clusters.lab]\nbackend = "slurm"\nGPUs-per-node = 3\n')
    assert "did you mean gpus_per_node?" in distlaunch("config").stderr


def test_names_are_near_whatever_their_case_and_dashes() -> None:
    assert names.nearest("Nodes", ["nodes"]) == "nodes"
    assert names.nearest("max-restart", ["max_restarts", "nodes"]) == "max_restarts"
    assert names.nearest("zzz", ["nodes"]) is None
    assert names.hint("zzz", ["a", "b"]) == "known: a, b"


def test_a_variable_that_only_looks_like_a_setting_is_warned_of_once(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    env: dict[str, str | None] = {"DISTLAUNCH_NODE": "2", "DISTLAUNCH_PARTITION": "a", "DISTLAUNCH_FACTS": "full"}

    for args in (("local", "-q", "x.py"), ("config",)):
        done = distlaunch(*args, env={**env, "DISTLAUNCH_MINE": "for the script"})
        assert done.exit_code == 0
        warnings = [line for line in done.stderr.splitlines() if line.startswith("warning")]
        assert warnings == [
            "warning: DISTLAUNCH_MINE is not a setting of distlaunch" + (warnings[0].partition("distlaunch")[2]),
            "warning: DISTLAUNCH_NODE is not a setting of distlaunch: did you mean DISTLAUNCH_NODES?",
        ]
    assert "warning" not in distlaunch("ls", env={"DISTLAUNCH_NODE": "2"}).stderr, "nothing is launched"


@pytest.mark.parametrize("name", ["DRY_RUN", "DETACH", "RENDER_TO", "VERBOSE"])
def test_a_variable_for_what_only_a_flag_can_set_is_an_error(distlaunch: Cli, name: str) -> None:
    distlaunch.write("x.py", "")

    done = distlaunch("local", "x.py", env={f"DISTLAUNCH_{name}": "1"})

    assert done.exit_code == 2, "a run that was not wanted"
    assert f"DISTLAUNCH_{name}: --{name.lower().replace('_', '-')} is not a setting" in done.stderr
    assert not distlaunch.runs.exists()


def test_our_own_variables_are_known() -> None:
    named = set()
    for path in [*ROOT.glob("launcher/**/*.py"), *ROOT.glob("train/**/*.py"), *ROOT.glob("slurm_templates/*")]:
        named |= set(re.findall(r"(?<![A-Z_])DISTLAUNCH_[A-Z_]*[A-Z]\b", path.read_text())) if path.is_file() else set()
    every = [config.GlobalOptions, JobOptions, *(backends.load(name).options for name in backends.names())]

    assert {"DISTLAUNCH_DEADLINE_FILE", "DISTLAUNCH_RUN_ID"} <= named
    assert checks.unknown_variables(dict.fromkeys(named, ""), every) == []


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--log-ranks", "99"), 2, "error[bad_spec]: --log-ranks 99: the run has 4 ranks"),
        (("--log-ranks", "4-7"), 2, "error[bad_spec]: --log-ranks 4-7: the run has 4 ranks"),
        (("--log-ranks", "3,99"), 0, "warning: --log-ranks 99: the run has 4 ranks"),
        (("--log-ranks", "0-3"), 0, ""),
        (("--log-ranks", "all"), 0, ""),
    ],
)
def test_ranks_that_will_not_exist_are_reported(
    distlaunch: Cli, options: tuple[str, ...], code: int, says: str
) -> None:
    distlaunch.write("x.py", "")

    done = distlaunch("local", "--dry-run", "--nodes", "2", "--nproc-per-node", "2", *options, "x.py")

    assert done.exit_code == code
    assert says in done.stderr
    assert ("warning" in done.stderr) == ("warning" in says)


def test_ranks_in_the_settings_are_not_a_mistake_unless_no_line_is_shown(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")

    few = distlaunch("local", "--dry-run", "x.py", env={"DISTLAUNCH_LOG_RANKS": "0,8"})
    none = distlaunch("local", "--dry-run", "x.py", env={"DISTLAUNCH_LOG_RANKS": "8"})

    assert (few.exit_code, "warning" in few.stderr) == (0, False)
    assert none.exit_code == 0
    assert "warning: log-ranks 8: the run has 1 rank, so no line of its workers is shown" in none.stderr


def test_ranks_that_are_known_only_at_the_start_are_warned_of_then(distlaunch: Cli) -> None:
    from launcher.agent.protocol import Event
    from launcher.console.announce import Announcer
    from launcher.console.worker_output import WorkerOutput

    read, write = os.pipe()
    kept = os.dup(2)
    os.dup2(write, 2)
    try:
        for ranks in (frozenset({7}), frozenset({0, 7}), frozenset[int](), None):
            Announcer(["a"], WorkerOutput(ranks)).record(0, Event("rendezvous", {"world_size": 4, "nodes": 1}))
    finally:
        os.dup2(kept, 2)
        os.close(write)
        os.close(kept)
    said = os.read(read, 10_000).decode()
    os.close(read)

    assert said.count("started: 1 node, 4 ranks (master ") == 4
    assert said.count("warning: log-ranks 7: the run has 4 ranks, so no line of its workers is shown") == 1


@pytest.mark.parametrize(
    ("args", "script", "told"),
    [
        (["--nodes", "4"], "", "--nodes comes after x.py, so it goes to the script"),
        (["--nodes=4", "--dry-run"], "", "--nodes, --dry-run come after x.py, so they go to the script"),
        (["--nnodes=4", "--nproc_per_node", "2"], "", "--nnodes, --nproc-per-node come after x.py"),
        (["--nproc_per_node", "2"], "parser.add_argument('--nproc_per_node')", ""),
        (["--no-snapshot"], "", ""),
        (["--lr", "0.1"], "", ""),
        (["--", "--nodes", "4"], "", ""),
        (["-n", "4"], "", ""),
        (["--nodes", "4"], "parser.add_argument('--nodes')", ""),
        (["--max-restarts", "4"], "class Config:\n    max_restarts: int = 3", ""),
        (["--time", "4"], "import time; time.time(); nodes = time", "--time comes after"),
    ],
)
def test_options_after_the_script_that_look_like_ours_are_warned_of(
    distlaunch: Cli, args: list[str], script: str, told: str
) -> None:
    distlaunch.write("x.py", f"if 0:\n  {script or 'pass'}\n" if "class" not in script else script)

    done = distlaunch("local", "--dry-run", "x.py", *args)

    assert done.exit_code == 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning")]
    assert len(warnings) == bool(told)
    assert told in "".join(warnings)
    assert all(arg in done.stdout for arg in args), "and the script does get them"


def test_options_of_a_bundled_script_are_its_own(distlaunch: Cli) -> None:
    assert "warning" not in distlaunch("local", "--dry-run", "doctor.py", "--seconds", "3").stderr
    assert "--rdzv-timeout comes after" in distlaunch("local", "--dry-run", "doctor.py", "--rdzv-timeout", "3").stderr
