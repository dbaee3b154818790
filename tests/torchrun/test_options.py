"""`distlaunch torchrun` reads a command line as the installed torchrun does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from launcher.torchrun import options as torchrun_options
from launcher.torchrun.options import TorchrunUsageError

if TYPE_CHECKING:
    import argparse

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def theirs() -> Any:
    from torch.distributed import run

    return run


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """torchrun itself reads its variables from the environment."""
    return monkeypatch


def facts(parser: argparse.ArgumentParser) -> dict[str, tuple[Any, ...]]:
    return {
        action.dest: (
            sorted(action.option_strings), action.nargs, action.default, sorted(action.choices or ()), action.required,
            getattr(action.type, "__name__", None) if action.type in (str, int, float, None) else "list",
        )
        for action in parser._actions
        if action.dest != "help"
    }  # fmt: skip


def test_every_option_of_the_installed_torchrun_is_there_with_its_default_and_no_other(theirs: Any) -> None:
    ours, wanted = facts(torchrun_options.parser({})), facts(theirs.get_args_parser())

    assert ours == wanted


LINES = [
    ["x.py"],
    [
        "--nnodes=2:4",
        "--nproc_per_node",
        "gpu",
        "--rdzv_id",
        "a",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint",
        "h:1",
        "x.py",
        "--nnodes",
        "7",
    ],
    ["--standalone", "--nproc-per-node", "8", "-m", "pkg.mod", "-m", "--", "-t", "3"],
    [
        "-t",
        "3",
        "-r",
        "0:1,1:2",
        "--log-dir",
        "/l",
        "--local-ranks-filter",
        "0,1",
        "--no-python",
        "sh",
        "-c",
        "echo $X",
    ],
    ["--nn", "2", "x.py"],
    [
        "--max-restarts",
        "3",
        "--monitor_interval",
        "5",
        "--role",
        "r",
        "--signals_to_handle",
        "SIGUSR1",
        "x.py",
        "a b",
        "",
        "--x=y",
    ],
    ["--duplicate-stdout-filters", "a,,b,c", "--duplicate_stderr_filters", "", "x.py"],
    [
        "--node_rank",
        "1",
        "--master_addr",
        "10.0.0.1",
        "--master-port",
        "29501",
        "--local-addr",
        "l",
        "--shutdown_timeout",
        "9",
        "x.py",
    ],
    ["--numa-binding", "core-complex", "--virtual_local_rank", "--run-path", "/x.py"],
    ["--", "x.py", "--y"],
]
VARIABLES = [
    {},
    {
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "auto",
        "PET_MAX_RESTARTS": "2",
        "PET_STANDALONE": "1",
        "PET_MASTER_PORT": "1234",
    },
    {
        "PET_NODE_RANK": "4",
        "PET_MODULE": "0",
        "PET_TEE": "3",
        "PET_DUPLICATE_STDOUT_FILTERS": "a,b",
        "PET_LOGS_SPECS": "x",
        "PET_RDZV_ID": "",
    },
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line)[:40])
@pytest.mark.parametrize("variables", VARIABLES, ids=["no variables", "PET_", "more PET_"])
def test_a_line_means_what_it_means_to_torchrun(
    theirs: Any, env: pytest.MonkeyPatch, line: list[str], variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        env.setenv(name, value)

    assert vars(torchrun_options.parse(line, variables)) == vars(theirs.parse_args(line))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "the following arguments are required: training_script"),
        (["--nonsense", "x.py"], "unrecognized arguments: --nonsense"),
        (["--max-restarts", "many", "x.py"], "argument --max-restarts/--max_restarts: invalid int value: 'many'"),
        (["--start-method", "thread", "x.py"], "argument --start-method/--start_method: invalid choice: 'thread'"),
        (["--r", "x.py"], "ambiguous option: --r could match"),
    ],
)
def test_a_line_that_torchrun_refuses_is_one_clear_error(
    theirs: Any, capsys: pytest.CaptureFixture[str], line: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        theirs.parse_args(line)
    said = capsys.readouterr().err

    with pytest.raises(TorchrunUsageError) as error:
        torchrun_options.parse(line, {})

    assert error.value.exit_code == ended.value.code
    assert message.partition(":")[0] in error.value.message
    assert error.value.message.split(" (choose")[0] in said or message in error.value.message


def test_a_variable_whose_value_is_not_a_flag_is_named() -> None:
    with pytest.raises(TorchrunUsageError, match="PET_STANDALONE=yes: write 0 or 1"):
        torchrun_options.parse(["x.py"], {"PET_STANDALONE": "yes"})


@pytest.mark.parametrize(
    ("word", "meant"), [("--nproc_pernode=2", "--nproc-per-node"), ("--rdzv_end_point", "--rdzv-endpoint")]
)
def test_a_misspelt_option_names_the_right_one(word: str, meant: str) -> None:
    with pytest.raises(TorchrunUsageError) as error:
        torchrun_options.parse([word, "x.py"], {})

    assert (error.value.hint or "").startswith(f"did you mean {meant}?")
