"""The settings and launch options that docs/ lists are those of the program, with their defaults."""

from __future__ import annotations

import re
from dataclasses import fields

from launcher import backends
from launcher.service.launch_options import LaunchOptions
from launcher.settings import config
from launcher.settings.options import JobOptions
from tests.pages import dashed, every_option, named, page, quoted, section, table, with_a_page


def test_the_settings_of_every_launch_are_in_their_table_with_their_defaults() -> None:
    """A default that is no value is described in words."""
    words: dict[str, tuple[str, object]] = dict.fromkeys(("env", "secret", "preload", "trust", "fetch"), ("none", ()))
    words |= {
        "nodes": ("1, or all hosts of an inventory", ""),
        "name": ("the script's", ""),
        "python": ("the backend's", ""),
    }
    words |= {
        "on_hangup": ("`detach`, with `local` `cancel`", ""),
        "numa_binding": ("none", ""),
        "time": ("none", ""),
        "claim": ("none", ""),
        "notify": ("none", ()),
        "notify_secret": ("none", ""),
        "workers": ("none", 0),
        "env_ship": ("none", ""),
        "env_ship_dir": ("`distlaunch-USER` in `/var/tmp`", ""),
        "runs_dir": ("`~/.distlaunch/runs`", ""),
    }
    for heading, cls in (("`[defaults]`", JobOptions), ("Top level", config.GlobalOptions)):
        rows = {quoted(row[0])[0]: row[1] for row in table(section("docs/configuration.md", heading))}
        shown = {
            item.name: words[item.name][0]
            if item.name in words
            else f"`{str(item.default).lower() if isinstance(item.default, bool) else item.default}`"
            for item in fields(cls)
        }
        assert rows == shown
        assert [item.name for item in fields(cls) if item.name in words and item.default != words[item.name][1]] == []


def test_the_settings_that_are_named_for_a_backend_exist() -> None:
    rows = table(section("docs/configuration.md", "`[clusters.NAME]`"))

    for row in rows:
        name, keys = (
            quoted(row[0])[0],
            {key for cell in row[1:] for key in quoted(cell) if key.isidentifier() and key != "false"},
        )
        has = named(backends.load(name).options)
        assert keys - has == set()
        assert has - keys == set() or row[3].endswith("...")
    named_here = {quoted(row[0])[0] for row in rows}
    assert named_here <= set(backends.names()) <= named_here | with_a_page()


def test_the_settings_that_add_up_and_those_that_are_paths_are_listed() -> None:
    text = page("docs/configuration.md")
    adding = re.search(r"^The lists (.*?) add up", text, re.MULTILINE | re.DOTALL)
    paths = re.search(r"^Paths in a file \((.*?)\) are relative", text, re.MULTILINE | re.DOTALL)
    assert adding
    assert paths

    assert {word for word in quoted(adding[1]) if word.isidentifier()} == named(*every_option(), adds_up=True)
    listed = {re.sub(r" = .*", "", word) for word in quoted(paths[1])} - {"./", "../"}
    assert listed == named(*every_option(), path=True)


def test_the_table_of_launch_options_has_all_of_them_and_no_others() -> None:
    rows = [quoted(row[0]) for row in table(section("docs/cli.md", "Launching"))]
    shown = {word.split()[0] for words in rows for word in words}
    launching = {flag for item in fields(LaunchOptions) for flag in item.metadata["flags"] or (dashed(item.name),)}
    others = {dashed(name) for name in named(JobOptions, config.GlobalOptions)} | {"--on"}

    assert launching - shown == {"--quiet", "--verbose"}
    assert shown - launching - others == set()
