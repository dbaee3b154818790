"""How an agent learns its rank, and which variables it keeps from its workers, by its arguments."""

from __future__ import annotations

import os
from typing import Any

import pytest

from launcher.agent import __main__ as agent
from launcher.agent.arguments import read
from launcher.agent.job import Job


def here(*arguments: str) -> int:
    """The node rank of an agent that is started with these arguments."""
    meet: Any = {}
    job = Job(run="r", command=["x.py"], kind="script", cwd="/", env={}, directory="/", rendezvous=meet)
    _, rank, stream = agent._here(job, read(["--spec", "FILE", *arguments]))
    os.close(stream)
    return rank


@pytest.mark.parametrize(
    ("value", "argument", "rank"),
    [("3", "WHERE", 3), ("x-worker-3", "WHERE", 3), ("x-20260101-worker-12", "WHERE+1", 13), ("0", "WHERE+1", 1)],
)
def test_the_rank_is_the_number_at_the_end_of_a_variable_plus_k(
    monkeypatch: pytest.MonkeyPatch, value: str, argument: str, rank: int
) -> None:
    monkeypatch.setenv("WHERE", value)

    assert here("--node-rank-from", argument) == rank


@pytest.mark.parametrize("value", ["", "x-launcher", "-"])
def test_a_variable_without_a_number_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv("WHERE", value)

    with pytest.raises(SystemExit):
        here("--node-rank-from", "WHERE+1")
    assert "agent.pyz: WHERE must be a number" in capsys.readouterr().err


def test_variables_are_kept_from_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("OTHER", "1")

    here("--node-rank", "0", "--without", "NONE,TF_CONFIG")

    assert ("TF_CONFIG" in os.environ, os.environ["OTHER"]) == (False, "1")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--node-rank", "0"], "--spec is needed, and one of --node-rank, --node-rank-from, --slurm"),
        (["--spec", "FILE"], "--spec is needed, and one of"),
        (["--spec", "FILE", "--slurm", "--node-rank", "0"], "--spec is needed, and one of"),
        (["--spec", "FILE", "--node-rank", "-1"], "--node-rank must be a number, not '-1'"),
        (["--spec", "FILE", "--node-rank"], "--node-rank needs a value"),
        (["--spec", "FILE", "--slurm", "more"], "unknown argument 'more'"),
        (["--spec", "FILE", "--spec", "OTHER", "--slurm"], "unknown argument '--spec'"),
    ],
)
def test_wrong_arguments_are_refused(words: list[str], wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        read(words)

    assert error.value.code == 2
    assert f"agent.pyz: {wrong}" in capsys.readouterr().err
