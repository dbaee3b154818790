"""Hangs and the stacks that were taken, in reports of every format."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from testbed import wait_until
from tests.reports.conftest import content, page_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

SCRIPT = """\
import os, time
print("ready", flush=True)
if os.environ["RANK"] == "1":
    time.sleep(600)
while True:
    time.sleep(0.1)
"""


def test_a_hang_is_reported_with_its_stacks_and_the_odd_rank(distlaunch: Cli) -> None:
    distlaunch.write("hang.py", SCRIPT)
    words = ("--nodes", "2", "--nproc-per-node", "2", "--hang-after", "2s", "--on-hang", "end", "--grace", "2s")
    assert distlaunch("local", *words, "hang.py").exit_code == 1

    report = content(distlaunch, "last")
    page = page_of(distlaunch, "last").read_text()
    text = distlaunch("report", "last", "--format", "md").stdout

    (taken,) = report["stacks"]
    assert (taken["reason"], taken["odd"], taken["action"]) == ("hang", [1], "end")
    assert [(group["ranks"], group["nodes"]) for group in taken["groups"]] == [([0, 2, 3], [0, 1]), ([1], [0])]
    assert taken["groups"][1]["frames"][0]["text"] == "time.sleep(600)"
    (finding,) = [each for each in report["observations"] if each["title"] == "The run hung"]
    assert (finding["level"], finding["nodes"]) == ("problem", [0])
    does = r"rank 1 \(\S+\) is in time\.sleep\(\) \(hang\.py:4\)"
    assert re.search(does, finding["detail"])
    for shown in (page, text):
        assert re.search(does, shown)
        assert "time.sleep(600)" in shown
        assert re.search(r"A hang, \d+\.\d s without a line: the run was ended", shown)


def has_begun(stream: Path) -> bool:
    return b"] ready" in stream.read_bytes()


def test_stacks_that_somebody_asked_for_are_one_entry_of_all_nodes(distlaunch: Cli) -> None:
    distlaunch.write("hang.py", SCRIPT)
    assert distlaunch("local", "--nodes", "2", "--nproc-per-node", "1", "--detach", "hang.py").exit_code == 0
    try:
        for node in (0, 1):
            (stream,) = distlaunch.runs.glob(f"*/nodes/{node}/stream")
            wait_until("its worker", partial(has_begun, stream), limit_s=60)
        asked = distlaunch("stacks", "last", "--output", "json")
        report = content(distlaunch, "last")
        text = distlaunch("report", "last", "--format", "md").stdout
    finally:
        distlaunch("cancel", "last")

    assert asked.exit_code == 0, asked.stderr
    (taken,) = report["stacks"]
    assert (taken["reason"], taken["odd"]) == ("request", [])
    assert taken["groups"] == asked.json["result"]["groups"]
    assert "## When somebody asked" in text
    assert not [each for each in report["observations"] if each["title"] == "The run hung"]
