"""How an agent learns its rank, and which variables it keeps from its workers, by its arguments."""

from __future__ import annotations

import os
from typing import Any

import pytest

from launcher.agent import __main__ as agent
from launcher.agent.job import Job


def here(*arguments: str) -> int:
    """The node rank of an agent that is started with these arguments."""
    parser = agent._parser()
    meet: Any = {}
    job = Job(run="r", command=["x.py"], kind="script", cwd="/", env={}, directory="/", rendezvous=meet)
    _, rank, stream = agent._here(job, parser.parse_args(["--spec", "FILE", *arguments]), parser)
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
