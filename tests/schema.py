"""`scripts/schema`: JSON Schemas for `--output json`, from the types in launcher/results/; `--check` compares them."""

from __future__ import annotations

import importlib
import json
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typing_extensions

if sys.version_info < (3, 12):  # pydantic accepts no other there, so this is a process of its own
    typing.TypedDict = typing_extensions.TypedDict

from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from launcher import backends
from launcher.agent.failures import ENDS
from launcher.results import cluster, command, files, lines, report, run, stacks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

DIRECTORY = Path(__file__).resolve().parent.parent / "docs/schema"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Plain(GenerateJsonSchema):
    """Without a title for each field, which would repeat its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _strict(module: ModuleType) -> None:
    """Make the module's types allow no other fields, and take descriptions from docstrings."""
    for kind in vars(module).values():
        if typing_extensions.is_typeddict(kind):
            kind.__pydantic_config__ = ConfigDict(extra="forbid", use_attribute_docstrings=True)


def _schema(kind: Any) -> dict[str, Any]:
    """The schema of a type; pydantic reads the docstrings of its own fields only, so those of its bases are added."""
    found: dict[str, Any] = TypeAdapter(kind).json_schema(schema_generator=_Plain)
    for base in filter(typing_extensions.is_typeddict, typing_extensions.get_original_bases(kind)):
        for name, about in _schema(base).get("properties", {}).items():
            found["properties"][name].update({"description": about["description"]} if "description" in about else {})
    return found


def _envelope(names: Iterable[str], about: str, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema of what a command prints that may have these results, by type names; without any: an error only."""
    whole, error = _schema(command.Envelope), _schema(command.Error)
    defs = {"Error": error}
    for name, result in results.items():
        defs |= result.get("$defs", {})
        defs[name] = {key: value for key, value in result.items() if key != "$defs"}
    if "Failure" in defs:
        defs["Failure"] = {
            "type": "string",
            "enum": list(map(str, ENDS)),
            "description": "How a run ended that was stopped.",
        }
    properties = {**whole["properties"], "error": {"$ref": "#/$defs/Error"}}
    if names := list(names):
        properties["command"] = {**properties["command"], "enum": names}
    well: dict[str, Any] = {"properties": {"ok": {"const": True}, "error": False}, "required": ["result"]}
    badly: dict[str, Any] = {"properties": {"ok": {"const": False}}, "required": ["error"]}
    if results:
        properties["result"] = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in results]}
    return {
        "$schema": DIALECT,
        "title": about,
        "type": "object",
        "properties": properties,
        "required": whole["required"],
        "additionalProperties": False,
        "oneOf": [well, badly] if results else [badly],
        "$defs": dict(sorted(defs.items())),
    }


def _planned(backend: str) -> dict[str, Any]:
    """The schema of `Planned`, with the plan of that backend."""
    module = importlib.import_module(backends.load(backend).__module__.rpartition(".")[0] + ".plan")
    _strict(module)
    plan, found = _schema(module.Planned), _schema(cluster.Planned)
    found["properties"]["backend"] = {"const": backend}
    found["$defs"] |= plan.pop("$defs", {}) | {"Plan": plan}
    found["properties"]["plan"] = {"$ref": "#/$defs/Plan"}
    return found


def _lines() -> dict[str, Any]:
    """The schema of one of the JSON lines before the last."""
    defs = {kind.__name__: _schema(kind) for kind in lines.LINES}
    about = "distlaunch --output jsonl: each object but the last, which is an envelope with the type result"
    return {"$schema": DIALECT, "title": about, "oneOf": [{"$ref": f"#/$defs/{name}"} for name in defs], "$defs": defs}


def schemas() -> dict[str, dict[str, Any]]:
    """All schemas, by file name."""
    for module in (run, files, cluster, report, command, lines, stacks):
        _strict(module)
    found = {}
    for name, kinds in command.COMMANDS.items():
        found[name] = _envelope(
            [name], f"distlaunch {name} --output json", {kind.__name__: _schema(kind) for kind in kinds}
        )
    for name in backends.names():
        results = {kind.__name__: _schema(kind) for kind in command.LAUNCH} | {"Planned": _planned(name)}
        printed = [flag.removeprefix("print_") for flag in backends.load(name).prints]
        for flag in printed:
            about = {
                "type": "object",
                "properties": {flag: {"type": "string"}},
                "required": [flag],
                "additionalProperties": False,
            }
            results[flag.capitalize()] = about
        found[name] = _envelope([name], f"distlaunch {name} --output json", results)
    found["version"] = _envelope([""], "distlaunch --version", {"Version": _schema(command.Version)})
    found["error"] = _envelope([], "A command line that names no command", {})
    found["lines"] = _lines()
    return {f"{name}.json": schema for name, schema in found.items()}


def main(args: list[str]) -> int:
    """Write the files, or print which are not up to date."""
    texts = {name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas().items()}
    DIRECTORY.mkdir(exist_ok=True)
    written = {path.name: path.read_text("utf-8") for path in DIRECTORY.glob("*.json")}
    stale = sorted(name for name in {*texts, *written} if texts.get(name) != written.get(name))
    if args == ["--check"]:
        for name in stale:
            print(f"docs/schema/{name} is not up to date: scripts/schema")
        return int(bool(stale))
    for name in stale:
        if name in texts:
            (DIRECTORY / name).write_text(texts[name], "utf-8")
        else:
            (DIRECTORY / name).unlink()
        print(f"docs/schema/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
