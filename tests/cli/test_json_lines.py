"""JSON lines: each line of a worker and each event, as it comes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

from tests import envelope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.command import Cli

ODD = """
import os, sys
os.write(1, b"\\xff caf\\xc3\\xa9\\n")
os.write(2, b"to stderr\\n")
os.write(1, b"no line end")
"""
HELD = """
import os, time
print("first", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
raise SystemExit(3)
"""


def objects(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The objects, each checked against its schema."""
    validator = Draft202012Validator(json.loads((envelope.DIRECTORY / "lines.json").read_text("utf-8")))
    found = [json.loads(line) for line in lines]
    for each in found:
        if each["type"] == "result":
            envelope.check(each)
        else:
            validator.validate(each)
    return found


def test_bytes_are_exact_streams_are_told_apart_and_the_result_is_last(distlaunch: Cli) -> None:
    distlaunch.write("odd.py", ODD)

    done = distlaunch("local", "--output", "jsonl", "odd.py")

    found = objects(done.stdout.encode().splitlines())
    assert [each["type"] for each in (found[0], found[-1])] == ["run", "result"]
    assert found[-1]["result"]["run"] == found[0]["run"]
    lines = [each for each in found if each["type"] == "line"]
    assert {(each["stream"], each["text"]) for each in lines} == {
        ("stdout", "\ufffd caf\u00e9"),
        ("stderr", "to stderr"),
        ("stdout", "no line end"),
    }
    assert [each.get("base64") for each in lines if each["stream"] == "stdout"] == ["/yBjYWbDqQ==", None]
    assert {"agent_started", "worker_started", "done"} <= {each.get("event") for each in found}
    assert [each["state"] for each in found if each["type"] == "state"][-1] == "success"
    logged = objects(distlaunch("logs", "last", "--output", "jsonl").stdout.encode().splitlines())
    assert logged == objects(distlaunch("logs", "last", "--output", "json").stdout.encode().splitlines())
    assert [each for each in logged if each["type"] == "line"] == lines
    assert logged[0] == found[0]
    attached = objects(distlaunch("attach", "last", "--output", "jsonl").stdout.encode().splitlines())
    assert [each["type"] for each in attached] == ["run", "result"]
    assert attached[0] == found[0]


def test_each_object_comes_at_once_and_a_failure_is_the_last(distlaunch: Cli) -> None:
    distlaunch.write("held.py", HELD)
    with distlaunch.start("local", "--output", "jsonl", "held.py") as process:
        assert process.stdout
        before = []
        for line in process.stdout:
            before.append(line)
            if b'"first"' in line:
                break
        distlaunch.write("go", "")
        rest = process.stdout.readlines()
    assert process.wait(60) == 1
    found = objects([*before, *rest])
    assert {key: found[-1][key] for key in ("type", "command", "ok")} == {
        "type": "result",
        "command": "local",
        "ok": False,
    }
    assert found[-1]["error"]["code"] == "run_failed"


def test_other_commands_print_one_object_and_errors_are_json_too(distlaunch: Cli) -> None:
    distlaunch.write("odd.py", ODD)
    assert distlaunch("ls", "--output", "jsonl").json["result"] == {"runs": []}
    (error,) = objects(distlaunch("attach", "nope", "--output", "jsonl").stdout.encode().splitlines())
    assert (error["type"], error["error"]["code"]) == ("result", "run_not_found")


def test_the_id_of_a_detached_run_is_all_that_is_printed(distlaunch: Cli) -> None:
    distlaunch.write("odd.py", ODD)
    run = distlaunch("local", "--detach", "--output", "id", "odd.py").stdout
    assert distlaunch("wait", run.strip()).exit_code == 0
    refused = distlaunch("local", "--output", "id", "odd.py")
    assert (refused.exit_code, "add --detach" in refused.stderr, len(list(distlaunch.runs.iterdir()))) == (2, True, 1)
