"""Side by side with torchrun: how runs end, and what is reported of it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.command import ROOT
from tests.torchrun.behaviour import WORKER, free_port, rounds, shown, signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torchrun.behaviour import Both, Play

    Played = Callable[[Callable[[Play], None]], Both]

pytestmark = pytest.mark.torch


def reported(play: Play) -> dict[str, Any] | None:
    """The content of the launcher's own TORCHELASTIC_ERROR_FILE."""
    path = play.directory / "reported.json"
    return json.loads(path.read_text()) if path.exists() else None


def fails(play: Play) -> None:
    env = {"TORCHELASTIC_ERROR_FILE": str(play.directory / "reported.json")}
    play.start(
        "--nproc-per-node=2", "--log-dir", "logs", WORKER, "0:hold", "1:meet=0", "1:error=it broke", "1:exit=3", env=env
    )


def test_a_worker_that_fails_ends_the_others(played: Played) -> None:
    both = played(fails)

    assert both.same(lambda play: play.codes) == [1]
    assert both.same(signals) == [["SIGTERM"], []]


def test_the_failure_is_reported_with_rank_code_and_message(played: Played) -> None:
    for play in played(fails):
        said = play.ended[0].stderr
        assert "it broke" in said
        assert "3" in said
        assert "rank" in said


def saves(play: Play) -> None:
    """Rank 0 is busy after SIGTERM, until the file is there."""
    steps = ["0:hold", "0:await=x", "0:say", "1:meet=0", "1:exit=3"]
    play.start("--nproc-per-node=2", "--shutdown-timeout=0", WORKER, *steps)
    play.until(1, what="signals")
    (play.seen / "x").touch()


def test_the_shutdown_timeout_does_not_shorten_what_follows_a_failure(played: Played) -> None:
    both = played(saves)

    assert both.same(lambda play: play.codes) == [1]
    assert both.same(signals) == [["SIGTERM"], []]
    assert both.same(shown) == (["out of 0"], ["err of 0"])


def shot(play: Play) -> None:
    env = {"TORCHELASTIC_ERROR_FILE": str(play.directory / "reported.json")}
    play.start("--nproc-per-node=1", WORKER, "error=it broke", "kill=9", env=env)


def cleaned_up(play: Play) -> None:
    env = {"TORCHELASTIC_ERROR_FILE": str(play.directory / "reported.json")}
    play.start("--nproc-per-node=1", WORKER, "error=it broke", "raise=Connection reset by peer", env=env)


@pytest.mark.parametrize(("scene", "code"), [(fails, 3), (shot, -9), (cleaned_up, 1)])
def test_the_first_error_file_becomes_the_launchers(played: Played, scene: Callable[[Play], None], code: int) -> None:
    found = played(scene).same(reported)

    assert found["message"]["message"] == "it broke"
    assert found["message"]["errorCode"] == code


OWN_HANDLER = """
import json, os
extra = {"py_callstack": "its trace", "timestamp": "1700000000", "errorTraits": {"category": "mine"}}
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "ValueError: no good", "extraInfo": extra}}, file)
raise ValueError("no good")
"""


def handled(play: Play) -> None:
    (play.directory / "handles.py").write_text(OWN_HANDLER)
    play.start("handles.py", env={"TORCHELASTIC_ERROR_FILE": str(play.directory / "reported.json")})


def test_what_a_handler_has_recorded_of_the_exception_stays(played: Played) -> None:
    """Only a time with parts of a second is added."""
    both = played(handled)

    theirs, ours = reported(both.theirs), reported(both.ours)
    assert theirs
    assert ours
    assert ours.pop("raised_at") > 1700000000
    assert ours == theirs


def test_the_error_file_stays_in_the_directory_for_logs(played: Played) -> None:
    files = played(fails).same(lambda play: [path.partition("/")[2] for path in play.files("logs")])

    assert files == ["attempt_0/1/error.json"]


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (["exit=0"], ""),
        (["1:exit=77"], "77"),
        (["1:exit=255"], "255"),
        (["1:kill=9"], "SIGKILL"),
        (["1:kill=11"], "SIGSEGV"),
        (["1:kill=15"], "SIGTERM"),
        (["1:raise=no good"], "ValueError: no good"),
    ],
    ids=" ".join,
)
def test_how_a_worker_ended_is_reported(played: Played, steps: list[str], says: str) -> None:
    def scene(play: Play) -> None:
        play.start("--nproc-per-node=2", WORKER, *steps)

    both = played(scene)

    assert both.same(lambda play: play.codes) == [int(bool(says))]
    for play in both:
        name = says.replace("SIG", "") if says.startswith("SIG") else says
        assert name in play.ended[0].stderr


def syntax(play: Play) -> None:
    (play.directory / "bad.py").write_text("def f(:\n")
    play.start("bad.py")


def no_script(play: Play) -> None:
    play.start("no/such.py", "x")


def no_module(play: Play) -> None:
    play.start("-m", "no_such_module")


def no_program(play: Play) -> None:
    play.start("--no-python", "no-such-program")


def not_executable(play: Play) -> None:
    (play.directory / "text").write_text("x")
    play.start("--no-python", "./text")


@pytest.mark.parametrize(
    ("scene", "says"),
    [
        (syntax, "SyntaxError"),
        (no_script, "no/such.py"),
        (no_module, "no_such_module"),
        (no_program, "no-such-program"),
        (not_executable, "./text"),
    ],
)
def test_what_cannot_be_run_is_named(played: Played, scene: Callable[[Play], None], says: str) -> None:
    both = played(scene)

    assert both.same(lambda play: play.codes) == [1]
    for play in both:
        assert says in play.ended[0].stderr


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--print-completion", "ksh"],
        ["--print-completion", "bash"],
        ["--start-method", "thread"],
        ["--nproc-per-node", "gpu"],
        ["--nproc-per-node", "many"],
        ["--nnodes", "2:1"],
        ["--nnodes", "0"],
        ["--nnodes", "1:2:3"],
        ["--nnodes", "x"],
        ["--max-restarts", "-1"],
        ["--tee", "9"],
        ["--redirects", "0:1;1:2"],
        ["--local-ranks-filter", "a"],
        ["--no-python", "-m"],
        ["--rdzv-conf", "a"],
        ["--shutdown-timeout", "-1"],
        ["--log-dir", WORKER],
        ["--master-port", "x"],
        ["--no-such-option"],
    ],
    ids=" ".join,
)
def test_invalid_options_start_no_worker(played: Played, options: list[str]) -> None:
    def scene(play: Play) -> None:
        play.start(*options, *[WORKER] * bool(options))

    both = played(scene)

    assert both.same(lambda play: play.codes) in ([1], [2])
    assert both.same(lambda play: play.workers) == []
    said = both.ours.ended[0].stderr
    assert said.startswith(("error[", "distlaunch: --print-completion needs the package shtab"))
    assert len(said.splitlines()) <= 2


SHTAB = """
SUPPORTED_SHELLS = ("bash", "fish")

def complete(parser, shell):
    return f"{parser.prog} in {shell}"
"""


def completion(play: Play) -> None:
    (play.directory / "shtab.py").write_text(SHTAB)
    play.start("--print-completion", "fish", env={"PYTHONPATH": f"{play.directory}{os.pathsep}{ROOT}"})


def test_a_completion_script_needs_no_training_script(played: Played) -> None:
    assert played(completion).same(lambda play: play.ended[0]) == (0, "torchrun in fish\n", "")


def restarts(play: Play) -> None:
    options = ["--nproc-per-node=2", "--max-restarts=2", "--log-dir=logs", "-r3", "--rdzv-backend=c10d"]
    endpoint = f"--rdzv-endpoint=localhost:{free_port()}"
    ends = ["0.0:hold", "1.0:meet=0", "1.0:exit=3", "1.1:hold", "0.1:meet=1", "0.1:kill=9"]
    play.start(*options, endpoint, "--rdzv-id=me", WORKER, "say", *ends)


def test_all_workers_start_again_after_a_failure(played: Played) -> None:
    both = played(restarts)

    assert both.same(lambda play: play.codes) == [0]
    assert both.same(rounds) == [["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"], ["2", "0"], ["2", "1"]]
    assert both.same(signals) == [["SIGTERM"], [], [], ["SIGTERM"], [], []]


def test_each_attempt_has_a_directory(played: Played) -> None:
    files = played(restarts).same(lambda play: play.files("logs"))

    assert len(files) == 12
    assert files["me_*/attempt_2/1/stdout.log"] == "out of 1\n"


def too_often(play: Play) -> None:
    play.start("--nproc-per-node=2", "--max-restarts=1", WORKER, "1:hold", "0:meet=1", "0:exit=5")


def test_a_spent_budget_of_restarts_ends_the_run(played: Played) -> None:
    both = played(too_often)

    assert both.same(lambda play: play.codes) == [1]
    assert both.same(rounds) == [["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"]]
    assert all("5" in play.ended[0].stderr for play in both)


RECORD = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise RuntimeError("of the script's own")

main()
"""


def recorded(play: Play) -> None:
    (play.directory / "record.py").write_text(RECORD)
    play.start("record.py", env={"TORCHELASTIC_ERROR_FILE": str(play.directory / "reported.json")})


def test_record_reports_the_exception(played: Played) -> None:
    both = played(recorded)

    assert both.same(lambda play: play.codes) == [1]
    found = [reported(play) for play in both]
    assert all(found)
    texts = [each["message"]["message"] for each in found if each]
    assert texts == ["RuntimeError: of the script's own"] * 2
    for play in both:
        assert "of the script's own" in play.ended[0].stderr
