"""Runs of the command line whose results are compared with those of the API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest

import distlaunch
from tests.command import Cli
from tests.serve.conftest import serving

if TYPE_CHECKING:
    from pathlib import Path


def result_of(here: Path, *words: str) -> Any:
    """The result that a command prints as JSON."""
    done = Cli(here)(*words, env={"DISTLAUNCH_OUTPUT": "json"})
    assert done.stdout, done.stderr
    return done.json["result"]


def ended(here: Path, *args: str) -> str:
    """The id of a run that has ended."""
    run = distlaunch.submit("work.py", args, nproc_per_node=2)
    run.wait(120)
    return run.id


def login(here: Path) -> None:
    (here / "distlaunch.toml").write_text('[clusters.far]\nbackend = "slurm"\nlogin = "me@far.invalid"\n')
    theirs, ours = result_of(here, "login")["logins"], distlaunch.logins()
    assert ours == theirs == [{"cluster": "far", "login": "me@far.invalid", "open": False, "lasts": None}]


def stacks(here: Path) -> None:
    run = distlaunch.submit("work.py", ["wait"], nproc_per_node=2)
    for rank in (0, 1):
        assert next(line for line in run.logs(rank=rank, follow=True) if line.text == "waits")
    ours, theirs = run.stacks(rank=1), result_of(here, "stacks", "--rank", "1", run.id)
    run.cancel(force=True)
    assert ours == theirs
    assert [(group["ranks"], group["frames"][0]["text"]) for group in ours["groups"]] == [([1], "time.sleep(600)")]


def report(here: Path) -> None:
    run = ended(here, "fail")
    theirs, ours = result_of(here, "report", "--format", "json", run), distlaunch.get(run).report(here / "ours.md")
    assert theirs.pop("made") <= ours["made"]
    assert theirs == {key: value for key, value in json.loads(json.dumps(ours)).items() if key != "made"}
    written = result_of(here, "report", run, "-o", "theirs.md")
    assert (written["run"], written["format"], written["path"]) == (run, "md", str(here / "theirs.md"))
    assert (here / "theirs.md").read_text() == (here / "ours.md").read_text()


def top(here: Path) -> None:
    run = ended(here, "fail")
    theirs, ours = result_of(here, "top", run), distlaunch.get(run).top()
    for each in (*theirs["nodes"], *ours["nodes"]):
        assert each.pop("silent_s") >= 0  # to a tenth
    assert theirs == ours


def metrics(here: Path) -> None:
    run = ended(here)
    page = result_of(here, "metrics", run)
    assert page["runs"] == [run]
    assert page["text"] == distlaunch.metrics(run)
    assert distlaunch.metrics() == page["text"]


def serve(here: Path) -> None:
    run = ended(here)
    with distlaunch.serve(token_file=here / "token") as url, serving(Cli(here)) as theirs:
        ours = urlsplit(url)
        assert parse_qs(ours.query)["token"] == [(here / "token").read_text().strip()]
        answer = urlopen(f"{ours.scheme}://{ours.netloc}/runs.json?{ours.query}", timeout=60)
        assert "set-cookie" in {name.lower() for name in answer.headers}
        asked = Request(f"{ours.scheme}://{ours.netloc}/runs.json")
        asked.add_header("Authorization", f"Bearer {parse_qs(ours.query)['token'][0]}")
        found = json.loads(urlopen(asked, timeout=60).read())
        assert [each["run"] for each in found["runs"]] == [run]
        assert found == theirs.json("/runs.json")
    assert not (here / "token").exists()
    with pytest.raises(URLError):
        urlopen(url, timeout=60)
