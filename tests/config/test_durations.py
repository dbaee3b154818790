"""The longest durations that are accepted."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from launcher.errors import SpecError
from launcher.settings.options import JobOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.command import Cli


def accepted(check: Callable[[str], object], text: str) -> bool:
    """Whether an option's check has nothing against the text."""
    try:
        check(text)
    except SpecError:
        return False
    return True


def longest() -> list[str]:
    """The options of a job that are durations, each with the longest one that it accepts."""
    durations = [item for item in fields(JobOptions) if str(item.metadata["metavar"]).startswith("DURATION")]
    text = {item.name: "24855d" if accepted(item.metadata["check"], "24855d") else "1d" for item in durations}
    return [word for name in text for word in (f"--{name.replace('_', '-')}", text[name])]


@pytest.mark.parametrize("nodes", ["2", "1:2"])
def test_nodes_can_wait_as_long_as_any_option_accepts(distlaunch: Cli, nodes: str) -> None:
    """Also the workers of the second round."""
    words = ("--nodes", nodes, "--nproc-per-node", "1", "--max-restarts", "1", *longest(), "--no-python")

    done = distlaunch("local", *words, "sh", "-c", "test $TORCHELASTIC_RESTART_COUNT = 1")

    assert done.exit_code == 0, done.stderr
    assert {"--peer-timeout", "--rdzv-timeout", "--hang-after"} <= {*words}


def test_a_duration_that_no_clock_can_hold_is_refused(distlaunch: Cli) -> None:
    assert distlaunch("local", "--no-python", "true").exit_code == 0

    for words in (("wait", "last", "--timeout", "999999999d"), ("local", "--grace", "999999999d", "x.py")):
        done = distlaunch(*words)
        assert (done.exit_code, "is longer than a clock counts" in done.stderr) == (2, True), done.stderr
