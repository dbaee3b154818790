"""What reports and served pages never show, as they end up in issues and in summaries of CI jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.receivers import TOKEN, receiver
from tests.reports.conftest import content
from tests.serve.conftest import serving

if TYPE_CHECKING:
    from tests.command import Cli


def everywhere(cli: Cli) -> list[str]:
    """All that reports and pages of the only run say."""
    (run,) = cli.runs.iterdir()
    found = [cli("report", "last", "--format", kind, "-o", "-").stdout for kind in ("html", "md", "json")]
    with serving(cli) as server:
        paths = ("/", "/runs.json", f"/runs/{run.name}", f"/runs/{run.name}.json")
        return [*found, *(server.ask(path).text for path in paths)]


@pytest.mark.parametrize("where", ["flag", "variable", "file"])
def test_of_urls_to_notify_only_the_host_is_shown(reporter: Cli, where: str) -> None:
    with receiver() as told:
        env: dict[str, str | None] = {"DISTLAUNCH_NOTIFY": told.url} if where == "variable" else {}
        if where == "file":
            reporter.write(".config/distlaunch/config.toml", f'[defaults]\nnotify = ["{told.url}"]\n')
        words = ("--notify", told.url) if where == "flag" else ()
        assert reporter("local", *words, "work.py", env=env).exit_code == 0
        assert told.got

        texts = everywhere(reporter)

    assert not [text for text in texts if TOKEN in text]
    assert f"{told.address}/..." in texts[1]


@pytest.mark.parametrize("words", [("--hf-token={}",), ("--hf-token", "{}"), ("{}",), ("auth.api-key={}",)])
def test_values_of_the_command_that_look_like_credentials_are_masked(reporter: Cli, words: tuple[str, ...]) -> None:
    key = f"hf_{'a1' * 15}"
    assert reporter("local", "work.py", "--epochs=3", *(word.format(key) for word in words)).exit_code == 0

    texts = everywhere(reporter)

    assert not [text for text in texts if key in text]
    assert not [text for text in texts if "--epochs=3" not in text]


@pytest.mark.parametrize("word", ["--api-key=word", "--api-key"])
def test_the_name_of_an_option_says_that_its_value_is_a_credential(reporter: Cli, word: str) -> None:
    kept = ("--tokens", "secret-santa", "--password")
    words = (word,) if "=" in word else (word, "d29yZA==")
    assert reporter("local", "work.py", *words, *kept, "--pad-token=padded").exit_code == 0

    report = content(reporter, "last")

    shown = ("--api-key=...",) if "=" in word else ("--api-key", "...")
    assert report["command"][1:] == [*shown, *kept, "--pad-token=padded"]
    assert report["reproduce"].endswith(" ".join(report["command"][1:]))
