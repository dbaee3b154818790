"""Checks what `--output json` prints against docs/schema/, for every command that a test runs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

DIRECTORY = Path(__file__).resolve().parent.parent / "docs/schema"
_BEGINS = ('{"version": 1, "command": ', '{"type": "result", "version": 1, "command": ')


def check_text(stdout: str) -> None:
    """Check it if it is an envelope, and the last one of JSON lines; other output is not checked."""
    last = stdout[stdout.rfind("\n", 0, -1) + 1 :]
    if last.startswith(_BEGINS) and last.endswith("}\n"):
        check(json.loads(last))


def check(envelope: dict[str, Any]) -> None:
    """Raise `AssertionError` if it does not match the schema of its command."""
    name = str(envelope["command"]) or "version"  # that of `--version` is empty
    validator = _validator(name if name in _names() and (name != "version" or envelope["ok"]) else "error")
    if not validator.is_valid(envelope):
        from jsonschema.exceptions import best_match, relevance

        worst = best_match(validator.iter_errors(envelope), key=relevance)
        where = worst.json_path if worst else "$"
        raise AssertionError(
            f"not as docs/schema says, at {where}: {worst and worst.message}\n{json.dumps(envelope)[:4000]}"
        )


def check_result(command: str, result: Any) -> None:
    """What the Python API returns in place of a command's `result`."""
    check(json.loads(json.dumps({"version": 1, "command": command, "ok": True, "result": result})))


@cache
def _names() -> frozenset[str]:
    return frozenset(path.stem for path in DIRECTORY.glob("*.json"))


@cache
def _validator(name: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator  # imported here: most processes see no JSON

    schema = json.loads((DIRECTORY / f"{name}.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)
