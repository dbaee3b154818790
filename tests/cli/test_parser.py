"""The light parser reads a command line as typer does, or leaves it to typer."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher import backends
from launcher.cli import completion, group, parser
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.command import Cli

COMMANDS = ["ls", "logs", "cancel", "adopt", "config", "run", "local", "slurm", "k8s", "ansible"]


def values(command: group.Command, given: dict[str, Any]) -> dict[str, Any]:
    """Nothing, an empty list and an empty tuple mean the same to the commands: not given."""
    lists = {item.name for item in command.parameters if item.several}
    return {name: list(value or ()) if name in lists else value for name, value in given.items()}


def by_typer(command: group.Command, args: Sequence[str]) -> dict[str, Any] | None:
    """How typer reads these words; None for an error or the help."""
    seen: list[dict[str, Any]] = []

    def keep(**found: Any) -> None:
        seen.append(found)

    keep.parameters = command.parameters  # type: ignore[attr-defined]
    try:
        completion.call(command._replace(function=keep), list(args))
    except LaunchError:
        return None
    return values(command, seen[0]) if seen else None


def by_ours(command: group.Command, args: Sequence[str]) -> dict[str, Any] | None:
    """How the light parser reads them."""
    try:
        found = parser.parse(command.parameters, args, command.settings)
    except parser.HelpWantedError:
        return None
    return None if found is None else values(command, found)


def words_of(command: group.Command) -> list[str]:
    """Words that such a command line may hold, valid and invalid ones."""
    every = [word for item in command.parameters for word in (*item.flags, item.off) if word]
    every += [f"{word}=3" for word in every if word.startswith("--")] + [word.replace("-", "_") for word in every]
    every += [f"{word}3" for word in every if len(word) == 2] + ["-dv", "-qm", "-dn3", "-vn", "-q-"]
    return [*every, "x.py", "3", "last", "n1,n2", "", "-", "--", "-1", "--bogus", "a=b", "ünï", "--nodes=", "\ud800"]


def needed_by(command: group.Command) -> list[str]:
    """Words that every valid line of this command has."""
    required = [item for item in command.parameters if item.required]
    script = ["x.py"] if any(item.name == "script" for item in command.parameters) else []  # or roles
    return [word for item in reversed(required) for word in (*item.flags[:1], "x.py")] + script


@pytest.mark.parametrize("name", COMMANDS)
def test_the_light_parser_reads_what_typer_reads(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(os.sep)
    command = group.command(name)
    assert command is not None
    known, needed = words_of(command), needed_by(command)
    read = 0

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(st.sampled_from(known), max_size=6))
    def check(drawn: list[str]) -> None:
        nonlocal read
        args = [*needed[:-1], *drawn, *needed[-1:]]
        ours = by_ours(command, args)
        if ours is not None:
            read += 1
            assert ours == by_typer(command, args), args

    check()
    assert read > 3, "most are invalid, but not all"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_light_parser_reads_each_option_of_each_command(name: str) -> None:
    """What it leaves to typer is read correctly too, but slowly."""
    command = group.command(name)
    assert command is not None
    needed = needed_by(command)
    for item in command.parameters:
        for word in () if item.declared.is_argument else (*item.flags, *filter(None, [item.off])):
            given = [word] if item.kind is bool else [word, "3"]

            args = [*needed[:-1], *given, *needed[-1:]]
            ours = by_ours(command, args)

            assert ours is not None, word
            assert ours == by_typer(command, args)
            expected = {str: "3", int: 3, float: 3.0, bool: word != item.off}[item.kind]
            assert ours[item.name] == ([expected] if item.several else expected)


def test_on_names_a_cluster_everywhere_and_cluster_is_its_other_name(distlaunch: Cli) -> None:
    distlaunch.write("distlaunch.toml", '[clusters.juno]\nbackend = "local"\nnodes = 2\n')
    distlaunch.write("x.py", "")
    for flag in ("--on", "--cluster"):
        for words in (("local", flag, "juno"), ("run", flag, "juno")):
            done = distlaunch(*words, "--dry-run", "--output", "json", "x.py")
            assert (done.exit_code, len(done.json["result"]["nodes"])) == (0, 2), done.stderr
        assert (
            distlaunch("config", flag, "juno", "--output", "json").json["result"]["settings"]["nodes"]["value"] == "2"
        )
        done = distlaunch("doctor", flag, "juno", "--dry-run", "--output", "json")
        assert (done.exit_code, len(done.json["result"]["nodes"])) == (0, 2), done.stderr


def test_the_help_lists_options_in_groups_with_their_defaults_and_two_examples(distlaunch: Cli) -> None:
    titles = ("Job", "Resource", "Network", "Output", "File")
    for name in backends.names():
        text = distlaunch(name, "--help", env={"COLUMNS": "110"}).stdout

        assert [title for title in titles if f"\n{title} options:\n" not in text] == []
        assert text.count(f"\n  distlaunch {name} ") == 2
        assert all(len(line) <= 110 for line in text.splitlines())
        rest = text[text.index("--max-restarts K") :]
        assert "[default: 0]" in rest[: rest.index("\n  --", 5)]
        assert "-1]" not in text
        assert "\n  --on NAME " in text
        assert "--cluster " not in text
    slurm = distlaunch("slurm", "--help").stdout
    assert slurm.index("\nScheduler options:") < slurm.index("-p, --partition") < slurm.index("\nNetwork options:")
    assert slurm.index("\nNetwork options:") < slurm.index("  --rdzv-timeout") < slurm.index("\nOutput options:")
    for name in group.command_names():
        text = distlaunch(name, "--help").stdout
        assert name == "torchrun" or len(re.findall(rf"^  distlaunch {name}\b", text, re.MULTILINE)) == 2, text


def test_the_help_and_the_observing_commands_do_without_typer(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    code = """
import sys
from launcher.cli import main
for args in ("--help", "--version", "ls --limit 3", "status x", "local -qm --dry-run json.tool", "slurm --help"):
    main(args.split())
    print("::", args, *(name for name in ("typer", "click", "rich", "argparse") if name in sys.modules))
"""

    done = distlaunch(python=("-c", code))

    said = [line for line in done.stdout.splitlines() if line.startswith("::")]
    assert len(said) == 6
    assert [line for line in said if line.split()[-1] in ("typer", "click", "rich", "argparse")] == [], done.stderr


@pytest.mark.parametrize("missing", ["get_runtime_param", "type_descriptor"])
def test_a_typer_with_other_private_names_reads_values_itself(missing: str) -> None:
    names = {"get_runtime_param": None, "type_descriptor": SimpleNamespace(annotation=int)}
    params = [
        SimpleNamespace(**names),
        SimpleNamespace(**{name: value for name, value in names.items() if name != missing}),
    ]

    class Command(completion._Values, type("Typer", (), {"get_params": lambda *_: params})):  # type: ignore[misc]
        pass

    ours, theirs = Command().get_params(None)

    assert ours.get_runtime_param is completion._Value
    assert getattr(theirs, "get_runtime_param", None) is None
