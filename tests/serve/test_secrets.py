"""What reports and served pages never show, as they end up in issues and in summaries of CI jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.receivers import TOKEN, receiver
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
