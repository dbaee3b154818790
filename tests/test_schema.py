"""docs/schema: the schemas of `--output json` are those of the types, and tests check every JSON against them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import backends
from launcher.cli import group
from tests import envelope
from tests.command import Cli, Result

ROOT = Path(__file__).resolve().parent.parent
ENDED = {"run": "a-20250101-000000-abcd", "state": "cancelled", "exit_code": 130}


def printed(command: str, ok: bool = True, **content: Any) -> str:
    return json.dumps({"version": 1, "command": command, "ok": ok, **content}) + "\n"


def test_the_schemas_are_those_of_the_types() -> None:
    check = [sys.executable, "-m", "tests.schema", "--check"]  # as scripts/schema runs it
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_every_command_has_a_schema() -> None:
    commands = {*backends.names(), *group.command_names()} - {"torchrun"}  # whose command line is torchrun's own
    assert {path.stem for path in envelope.DIRECTORY.glob("*.json")} == {*commands, "error", "version", "lines"}


@pytest.mark.parametrize(
    "text",
    [
        printed("cancel", result={**ENDED, "more": 1}),
        printed("cancel", result={"run": ENDED["run"], "state": "cancelled"}),
        printed("cancel", result={**ENDED, "state": "gone"}),
        printed("cancel", result=ENDED, more=1),
        printed("cancel"),
        printed("cancel", ok=False),
        printed("cancel", ok=False, error={"code": "storage", "message": "full"}),
        printed("status", result=ENDED),
        printed("logs", result={}),
        '{"type": "state"}\n' + json.dumps({"type": "result", **json.loads(printed("local", result={}))}) + "\n",
    ],
)
def test_output_that_does_not_match_its_schema_fails_any_test_that_runs_a_command(text: str) -> None:
    with pytest.raises(AssertionError, match="not as docs/schema says"):
        Result(0, text, "")


def test_output_that_matches_its_schema_is_accepted() -> None:
    error = {"code": "run_failed", "message": "it failed", "hint": None}
    texts = [
        printed("cancel", result=ENDED),
        printed("cancel", ok=False, error=error),
        printed("x", ok=False, error=error),
    ]
    assert [Result(0, text, "").stdout for text in texts] == texts


def test_what_ends_json_lines_matches_the_schema_of_its_command(distlaunch: Cli) -> None:
    for words in (("logs", "nope", "--output", "json"), ("local", "--output", "jsonl", "nope.py")):
        printed = distlaunch(*words).json
        assert (printed["type"], printed["command"], printed["ok"]) == ("result", words[0], False)


def test_the_printed_version_matches_its_schema(distlaunch: Cli) -> None:
    result = distlaunch("--version", env={"DISTLAUNCH_OUTPUT": "json"}).json["result"]
    with pytest.raises(AssertionError, match="not as docs/schema says"):
        Result(0, printed("", result={**result, "more": 1}), "")
