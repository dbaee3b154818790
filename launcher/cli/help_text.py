"""The text of `--help`, made from what commands declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import launcher
from launcher import output
from launcher.cli import group
from launcher.cli.parameters import GROUPS, Declared, Parameter
from launcher.console import help_page
from launcher.console.help_page import HelpPage, Section

if TYPE_CHECKING:
    from launcher.results.command import Version

_ABOUT = """Start distributed PyTorch scripts anywhere: the same script, flags, log and result on every cluster.

Options before SCRIPT are distlaunch's, everything after it belongs to the script.

    $ distlaunch local --nproc-per-node 2 train.py --epochs 3
    $ distlaunch slurm --partition gpu --nodes 4 train.py
"""
_HELP_ROW = ("-h, --help", "Show this message and exit.", "")
_TITLES = {"resources": "Resource", "files": "File"}
_WORDS = {str: "TEXT", int: "NUMBER", float: "NUMBER"}


def show(command: group.Command) -> None:
    """Print the help of one command."""
    help_page.show(_of_command(command))


def show_all() -> None:
    """Print the help of `distlaunch` itself."""
    paragraphs, examples = _parts(_ABOUT)
    options = [
        ("--version", "Print the version.", ""),
        ("--install-completion", "Install completion for the current shell.", ""),
        ("--show-completion", "Show completion for the current shell, to copy it or customize the installation.", ""),
        _HELP_ROW,
    ]
    listed = [Section("Options", options)]
    listed += [Section(title, [(name, text, "") for name, text in rows]) for title, rows in group.listed()]
    help_page.show(HelpPage("distlaunch [OPTIONS] COMMAND [ARGS]...", paragraphs, examples, listed))


def _of_command(command: group.Command) -> HelpPage:
    paragraphs, examples = _parts(command.function.__doc__ or "")
    items = [item for item in command.parameters if not item.declared.hidden]
    words = [item for item in items if item.declared.is_argument]
    options = [item for item in items if not item.declared.is_argument]
    names = [group_of for group_of in GROUPS if any(item.declared.group == group_of for item in options)]
    single = len(names) < 2  # a few options need no groups
    sections = [Section("Arguments", [(_metavar(item), item.declared.help, "") for item in words])] if words else []
    for title in [""] if single else names:
        rows = [_row(item) for item in options if single or item.declared.group == title]
        sections.append(Section(f"{_TITLES.get(title, title.capitalize())} options" if title else "Options", rows))
    if not single:
        sections.append(Section("Options", []))
    sections[-1].rows.append(_HELP_ROW)
    usage = " ".join([command.prog, "[OPTIONS]", *(_metavar(item) + "..." * item.several for item in words)])
    return HelpPage(usage, paragraphs, examples, sections)


def _parts(doc: str) -> tuple[list[str], list[str]]:
    """A docstring's paragraphs, each as one line, and its examples, which begin with `$`."""
    lines = [line.strip() for line in doc.strip().splitlines()]
    examples = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    text = "\n".join(line for line in lines if not line.startswith("$ "))
    return [" ".join(part.split("\n")) for part in text.strip().split("\n\n") if part.strip()], examples


def _metavar(item: Parameter) -> str:
    shown = item.declared.metavar or item.name.upper()
    return shown if item.required or shown.startswith("[") else f"[{shown}]"


def _row(item: Parameter) -> tuple[str, str, str]:
    about: Declared = item.declared
    flags = ", ".join(sorted((flag.replace("/", " / ") for flag in about.flags), key=len))
    value = "" if item.kind is bool else f" {about.metavar or _WORDS[item.kind]}"
    default: Any = about.default_text or ("" if item.default in (None, False, "", ()) else item.default)
    if item.default is True:
        default = "on"
    elif item.default == 0 and item.kind is not bool and item.default is not None:
        default = item.default
    notes = [note for note in ("may be repeated" * item.several, f"default: {default}" if str(default) else "") if note]
    notes += ["required"] if item.required else []
    return flags + value, about.help, f"[{', '.join(notes)}]" if notes else ""


def print_version() -> None:
    """Print the version, for `--version`."""
    data: Version = {"version": launcher.__version__}
    output.result(data, f"distlaunch {launcher.__version__}")
