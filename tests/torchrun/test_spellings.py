"""torchrun's options on the backends: they mean what they mean to torchrun, or one error says what to write."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from launcher.cli import spellings
from launcher.service.launch_options import LaunchOptions
from launcher.settings.options import JobOptions
from launcher.torchrun import options as torchrun_options

if TYPE_CHECKING:
    from tests.command import Cli


def plan(distlaunch: Cli, *options: str, backend: str = "local") -> tuple[dict[str, object], str]:
    """What would be sent, without the run's own id, and what was printed on stderr."""
    distlaunch.write("x.py", "")
    done = distlaunch(backend, *options, "--dry-run", "--output", "json", "x.py", "--nnodes", "7")
    assert done.exit_code == 0, done.stdout + done.stderr
    sent = done.json["result"]["plan"]["spec"]
    return {
        key: value for key, value in sent.items() if key not in ("run", "directory", "rendezvous", "session")
    }, done.stderr


def test_every_option_of_torchrun_is_supported_noted_or_refused_with_an_alternative() -> None:
    ours = {item.name.replace("_", "-") for cls in (JobOptions, LaunchOptions) for item in fields(cls)}
    tables = [set(spellings.BECOMES), {spellings.LOCAL_RANKS}, set(spellings.NOTED), set(spellings.REFUSED)]

    every = {option.name for option in torchrun_options.OPTIONS} | {"print-completion"}

    assert every - ours == set().union(*tables)
    assert sum(map(len, tables)) == len(every - ours)
    assert {
        option.name for option in torchrun_options.OPTIONS if option.kind is bool and option.name not in ours
    } == set(spellings._FLAGS)
    assert {option.short for option in torchrun_options.OPTIONS if option.short} - {"-m"} == set(
        spellings._SHORT.values()
    )


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            "--nnodes=2 --nproc_per_node=2 --max_restarts=3 --shutdown_timeout 9 --rdzv_conf timeout=7,join_timeout=8",
            "--nodes 2 --nproc-per-node=2 --max-restarts 3 --grace 9s --rdzv-timeout 8s",
        ),
        (
            "--nnodes=1:2 --rdzv-conf timeout=60 --role a --rdzv_id x",
            "--nodes=1:2 --rdzv-timeout 60s --role a --name x",
        ),
        (
            "--master_port 29501 --numa_binding node --virtual_local_rank",
            "--master-port 29501 --numa-binding node --virtual-local-rank",
        ),
    ],
)
def test_options_that_mean_the_same_give_the_same_plan(distlaunch: Cli, theirs: str, ours: str) -> None:
    assert plan(distlaunch, *theirs.split()) == plan(distlaunch, *ours.split())


def test_an_option_that_is_not_needed_is_noted_and_changes_nothing(distlaunch: Cli) -> None:
    flags = [f"--{name}" if name in spellings._FLAGS else f"--{name}=1" for name in spellings.NOTED]

    sent, said = plan(distlaunch, *flags)

    assert sent == plan(distlaunch)[0]
    noted = [line for line in said.splitlines() if " is not needed: " in line]
    assert noted == [f"--{name} is not needed: {why}" for name, why in spellings.NOTED.items()]
    assert "not needed" not in plan(distlaunch, "-r", "3", "--quiet")[1]


@pytest.mark.parametrize("backend", ["local", "slurm", "ansible", "k8s"])
def test_an_option_that_means_nothing_here_is_refused_with_the_alternative(distlaunch: Cli, backend: str) -> None:
    name = {"local": "rdzv_endpoint", "slurm": "node_rank", "ansible": "master-addr", "k8s": "local_addr"}[backend]

    done = distlaunch(backend, "--nnodes", "2", f"--{name}", "1", "x.py")

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error[bad_spec]: --{name.replace('_', '-')}: distlaunch determines it itself",
        "  hint: leave it out, or use distlaunch torchrun, which is started once per node",
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--nnodes 2 --nodes 2", "--nnodes and --nodes are the same: give one of them"),
        ("--local-ranks-filter 0 --log-ranks 1", "--local-ranks-filter and --log-ranks exclude each other"),
        ("--rdzv-id a --name b", "--rdzv-id and --name are the same: give one of them"),
        ("--nnodes many", "nodes 'many' is not a number"),
        ("--nnodes=", "--nnodes '' is empty"),
        ("--nproc_per_node gpu", "or auto: one per GPU"),
        ("--shutdown-timeout soon", "shutdown-timeout 'soon' is not a number of seconds"),
        ("--rdzv-conf timeout=soon", "rdzv-conf 'soon' is not a number of seconds"),
        ("--rdzv-conf is_host=1", "--rdzv-conf is_host: distlaunch determines it itself"),
        ("--rdzv-conf ,", "--rdzv-conf ',' sets nothing"),
        ("--local_ranks_filter a", "local-ranks-filter 'a' is not a list of local ranks"),
        ("--local_ranks_filter 5", "--log-ranks 5"),
        ("--log_dir logs", "DISTLAUNCH_RUNS_DIR"),
        ("--duplicate_stdout_filters a", "distlaunch logs RUN | grep"),
        ("--logs_specs a", "use distlaunch torchrun"),
        ("--print_completion bash", "distlaunch --install-completion"),
        ("--no_such_thing 1", "no such option: --no-such-thing"),
    ],
)
def test_wrong_values_are_one_error(distlaunch: Cli, options: str, says: str) -> None:
    distlaunch.write("x.py", "")

    done = distlaunch("local", *options.split(), "x.py")

    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def shown(distlaunch: Cli, *options: str) -> list[str]:
    """What is shown of the output of two nodes with two workers each."""
    distlaunch.write("rank.sh", 'echo "at $RANK"')
    done = distlaunch("local", "--nnodes", "2", "--nproc_per_node", "2", *options, "--no_python", "sh", "rank.sh")
    assert done.exit_code == 0, done.stderr
    return sorted(line[line.index("at ") :] for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ("--tee 3", [0, 1, 2, 3]),
        ("--tee 0", [0]),
        ("--local-ranks-filter 0", [0, 2]),
        ("-t 3 --local-ranks-filter 1", [1, 3]),
        ("-t 3 --log-ranks 2", [2]),
    ],
)
def test_the_ranks_that_torchrun_would_show_are_shown(distlaunch: Cli, options: str, ranks: list[int]) -> None:
    assert shown(distlaunch, *options.split()) == [f"at {rank}" for rank in ranks]


def test_they_are_not_in_the_help(distlaunch: Cli) -> None:
    done = distlaunch("slurm", "--help")

    assert "--rdzv" not in done.stdout.replace("--rdzv-timeout", "")
    assert "--nnodes" not in done.stdout
