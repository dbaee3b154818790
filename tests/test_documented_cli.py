"""The commands, options, codes and JSON fields that README and docs/cli.md list are those of the program."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

import launcher
from launcher import backends, errors
from launcher.agent.failures import ENDS
from launcher.backends._base import Backend
from launcher.cli.commands.doctor import DoctorOptions
from launcher.cli.group import command, command_names
from launcher.payload import scripts
from launcher.runs.outcome import EXIT_CODES, RunReport
from tests.pages import dashed, page, quoted, section, table, tree, with_a_page

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.command import Cli


def test_commands_are_in_the_tables() -> None:
    every = {*backends.names(), *command_names()}
    listed = {re.findall(r"distlaunch (\w+)", row[0])[0] for row in table(section("README.md", "Commands"))}
    assert listed <= every <= listed | with_a_page()
    usage = page("docs/cli.md").split("```")[1]
    assert [name for name in every - with_a_page() if not re.search(rf"\b{name}\b", usage)] == []


@pytest.mark.parametrize("name", [name for name in command_names() if name not in ("run", "torchrun")])
def test_every_option_of_a_command_is_in_its_row(name: str) -> None:
    """Options of a launch have a table of their own; `doctor`, which parses its arguments itself, accepts them too."""
    (row,) = (row for row in table(section("docs/cli.md", "Looking")) if re.match(rf"`{name}\b", row[0]))
    found = command(name)
    assert found is not None
    options = [item for item in found.parameters if not item.declared.is_argument]
    has = {part for item in options for flag in item.declared.flags for part in flag.split("/")}
    if name == "doctor":
        has |= {"--on", *(dashed(item.name) for item in fields(DoctorOptions))}

    shown = {word for text in quoted(" ".join(row)) for word in text.split() if word.startswith("-")}
    assert shown == has - {"--help", "-h", "--output"}


def modules() -> Iterable[str]:
    """The names of all modules of the launcher."""
    found = pkgutil.walk_packages(launcher.__path__, "launcher.")
    return [module.name for module in found if ".agent" not in module.name and not module.name.endswith("__main__")]


def test_exit_codes_and_error_codes_are_those_of_the_program() -> None:
    for name in modules():
        importlib.import_module(name)
    kinds = [kind for kind in tree(errors.LaunchError) if kind.__module__.startswith("launcher.")]
    codes = {*EXIT_CODES.values(), *(kind.exit_code for kind in kinds)}

    assert {int(row[0]) for row in table(section("docs/cli.md", "Exit codes"))} == codes
    (summary,) = re.findall(r"^Exit codes: (.*?)\.$", page("README.md"), re.MULTILINE | re.DOTALL)
    assert {int(code) for code in re.findall(r"\b\d+\b", summary)} == codes
    (listed,) = re.findall(r"^Error codes: (.*?)\.$", page("docs/cli.md"), re.MULTILINE | re.DOTALL)
    assert set(quoted(listed)) == {kind.code for kind in kinds} - {"error"} | {"bug", "interrupted"}


def test_states_are_those_of_the_program() -> None:
    line = section("docs/cli.md", "States")
    (final,) = re.findall(r"final: (.*?);", line, re.DOTALL)

    assert set(quoted(final)) == set(EXIT_CODES)
    assert set(ENDS) < set(EXIT_CODES)


def test_the_fields_of_a_result_are_those_of_the_program() -> None:
    rows = {row[0]: quoted(row[1]) for row in table(section("docs/cli.md", "JSON"))}
    outcome = RunReport(("a",)).outcome(("unknown",)).to_json()
    (node,) = outcome["nodes"]

    named = rows["a launch, `status`"]
    assert set(outcome) | set(node) <= set(named)
    assert {"run", "path", "backend", "cluster", "command", "cwd", "created"} <= set(named)
    listed = {word.split()[0] for row in rows for word in quoted(row)}
    assert set(command_names()) - listed == {"run", "logs", "shell", "torchrun"}, (
        "`run` is a launch, `logs` and `torchrun` print lines, `shell` too"
    )


@pytest.mark.parametrize("name", [name for name in command_names() if name not in ("run", "shell", "torchrun")])
def test_each_field_of_a_schema_is_in_the_table(name: str) -> None:
    """Those of a cause are listed elsewhere, and those of a report's own parts in its schema alone."""
    schema = json.loads(page(f"docs/schema/{name}.json"))
    parts = schema["$defs"]
    if name == "report":
        whole = parts["Report"], *json.loads(page("docs/schema/status.json"))["$defs"].values()
        parts = {str(number): part for number, part in enumerate(whole)}
    found = {field for part in parts.values() for field in part.get("properties", {})}

    rows = [*table(section("docs/cli.md", "JSON")), *table(section("docs/agent-stream.md", "Causes"))]
    listed = {*quoted(str(rows))}
    assert sorted(found - listed - {"code", "hint"}) == []  # of an error


def test_the_fields_that_ls_has_of_a_run_are_listed(distlaunch: Cli) -> None:
    (distlaunch.runs / "odd-20250101-120000-abcd").mkdir(parents=True)

    (run,) = distlaunch("ls", "--output", "json").json["result"]["runs"]

    listed = quoted({row[0]: row[1] for row in table(section("docs/cli.md", "JSON"))}["`ls`"].partition(";")[0])
    assert set(listed) - {"runs"} == set(run)


def test_every_command_takes_the_option_output() -> None:
    every = {name: command(name) for name in (*backends.names(), *command_names())}

    without = [
        name
        for name, found in every.items()
        if found and not any("--output" in item.flags for item in found.parameters)
    ]
    assert without == ["doctor", "torchrun"], "they parse their arguments themselves"


def test_a_file_in_the_working_directory_comes_before_a_bundled_one_of_its_name(tmp_path: Path) -> None:
    assert scripts.find_script("train.py", "script", str(tmp_path)).bundled
    (tmp_path / "train.py").write_text("print(1)\n")
    assert not scripts.find_script("train.py", "script", str(tmp_path)).bundled


def test_backends_that_can_start_a_run_again_are_named() -> None:
    able = {name for name in backends.names() if backends.load(name).requeue is not Backend.requeue}
    (says,) = (row[1] for row in table(section("docs/cli.md", "Looking")) if row[0] == "`requeue RUN`")

    assert able & {"local", "ansible", "slurm", "k8s"} == {"local", "ansible", "slurm", "k8s"}
    also = "on Slurm and [Kubernetes](kubernetes.md#started-again-on-request) also one that runs"
    assert says.split(": ")[1] == f"on this machine and over SSH when it has ended, {also}"
