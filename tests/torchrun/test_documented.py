"""The table of docs/torchrun.md has all options of torchrun, and says of each what the program does."""

from __future__ import annotations

from dataclasses import fields

import pytest

from launcher.cli import spellings
from launcher.service.launch_options import LaunchOptions
from launcher.settings.options import JobOptions
from launcher.torchrun.options import OPTIONS
from tests.pages import quoted, section, table

COMPLETION = "print-completion"


def rows() -> dict[tuple[str, ...], list[str]]:
    """The other two cells, by the spellings of an option."""
    return {tuple(quoted(row[0])): row[1:] for row in table(section("docs/torchrun.md", "Option by option"))}


@pytest.mark.torch
def test_it_has_every_option_of_the_installed_torchrun_and_no_other() -> None:
    from torch.distributed.run import get_args_parser

    actions = [action for action in get_args_parser()._actions if action.option_strings and action.dest != "help"]

    assert set(rows()) == {tuple(name for name in action.option_strings if "_" not in name) for action in actions}


def test_what_distlaunch_torchrun_does_is_described_as_in_its_help() -> None:
    shown = {names[-1]: cells[0] for names, cells in rows().items()}

    assert shown.pop(f"--{COMPLETION}")
    assert shown == {f"--{option.name}": option.meaning for option in OPTIONS}


def test_what_the_backends_do_is_described_as_in_their_messages() -> None:
    ours = {item.name.replace("_", "-") for cls in (JobOptions, LaunchOptions) for item in fields(cls)}
    wanted = dict.fromkeys((option.name for option in OPTIONS if option.name in ours), "the same")
    wanted |= {name: f"`--{field.replace('_', '-')}" for name, (field, _) in spellings.BECOMES.items()}
    wanted |= {name: f"not needed: {why}" for name, why in spellings.NOTED.items()}
    wanted |= {name: f"refused: {why}" for name, (why, _) in spellings.REFUSED.items()}
    wanted[spellings.LOCAL_RANKS] = "`--log-ranks`"

    shown = {names[-1].removeprefix("--"): cells[1] for names, cells in rows().items()}
    assert set(shown) == set(wanted)
    assert {name: text for name, text in shown.items() if not text.startswith(wanted[name])} == {}
