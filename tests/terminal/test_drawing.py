"""What is drawn on a terminal: tables that fit it, and a live line for waits; elsewhere there are plain lines."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len

from tests.terminal.screen import Screen

if TYPE_CHECKING:
    from tests.command import Cli

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
WAIT = re.compile(r"\r([^\r\n]*importing[^\r\n]*)\x1b\[K")
HOST, SCRIPT = "节点-七", "訓練 🚀.py"

SLOW = "import pathlib, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.05)\n"
"""A module whose import ends when the test wants it to."""

BAR = """
import sys, time
for step in range(8):
    sys.stderr.write(f"\\r{step}/8 " + "#" * step)
    sys.stderr.flush()
    time.sleep(0.3)
sys.stderr.write("\\n")
"""
WHOLE_BAR = "".join(f"\r{step}/8 " + "#" * step for step in range(8)) + "\r\n"


def screen(cli: Cli, *words: str, columns: int = 80, env: dict[str, str] | None = None) -> Screen:
    more = cli.env({"TERM": "xterm", "NO_COLOR": None, **(env or {})})
    return Screen([sys.executable, "-m", "launcher", *words], env=more, cwd=cli.directory, size=(40, columns))


def shown(cli: Cli, *words: str, columns: int = 80, env: dict[str, str] | None = None) -> str:
    """All that a command writes to a terminal of that width."""
    with screen(cli, *words, columns=columns, env=env) as terminal:
        terminal.end()
        return terminal.said.replace("\r\n", "\n")


@pytest.fixture
def ran(distlaunch: Cli) -> Cli:
    """A run on two nodes whose script has a wide name."""
    distlaunch.write(SCRIPT, "")
    done = distlaunch("local", "--nodes", "2", "--nproc-per-node", "1", "--no-python", "/bin/true", SCRIPT)
    assert done.exit_code == 0, done.stderr
    return distlaunch


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_tables_fit_the_terminal(ran: Cli, columns: int) -> None:
    (run,) = (path.name for path in ran.runs.iterdir())

    listed = COLOUR.sub("", shown(ran, "ls", columns=columns))

    assert all(cell_len(line) <= columns for line in listed.splitlines()), listed
    assert run in re.sub(r"\s+", "", listed), "whole, to be copied"
    assert "🚀" in listed
    if columns >= 80:
        header, row = listed.splitlines()[:2]
        assert header.split() == ["RUN", "STATE", "ON", "NODES", "AGE", "COMMAND"]
        assert cell_len(header[: header.index("STATE")]) == cell_len(row[: row.index("success")])
    else:
        assert re.search(r"^STATE +success *$", listed, re.MULTILINE)


@pytest.mark.parametrize("columns", [40, 80])
def test_a_long_command_in_a_list_is_cut_and_nothing_wraps(distlaunch: Cli, columns: int) -> None:
    words = [f"--long-option-{number}" for number in range(30)]
    assert distlaunch("local", "--no-python", "/bin/true", *words).exit_code == 0

    lines = COLOUR.sub("", shown(distlaunch, "ls", columns=columns)).splitlines()

    assert sum("…" in line for line in lines) == 1
    assert all(cell_len(line) <= columns for line in lines)
    (row,) = (line for line in lines if "/bin/true" in line)
    assert row.endswith("…")
    assert len(lines) == (2 if columns == 80 else 7), "a row and its header, or a line for each column and a gap"
    assert " ".join(words) in distlaunch("ls").stdout, "whole on a pipe"


def test_wide_characters_stay_in_their_columns(distlaunch: Cli) -> None:
    distlaunch.write(
        "distlaunch.toml", f'[clusters."{HOST}"]\nbackend = "local"\n[clusters.ascii]\nbackend = "local"\n'
    )

    rows = [
        line
        for line in COLOUR.sub("", shown(distlaunch, "config", columns=200)).splitlines()
        if line.endswith(" local")
    ]

    assert len(rows) == 2
    assert len({cell_len(row[: row.rindex("local")]) for row in rows}) == 1, rows


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"DISTLAUNCH_OUTPUT": "json"}])
def test_where_nothing_can_be_drawn_lines_are_those_of_a_pipe(ran: Cli, env: dict[str, str]) -> None:
    (run,) = (path.name for path in ran.runs.iterdir())
    for words in (["ls"], ["status", run], ["ls", "--help"]):
        with_terminal = shown(ran, *words, columns=60, env=env)
        piped = ran(*words, env={"COLUMNS": "60", **env}).stdout

        if "DISTLAUNCH_OUTPUT" in env and "--help" not in words:
            # On a terminal it is indented.
            with_terminal, piped = re.sub(r"\s+", "", with_terminal), re.sub(r"\s+", "", piped)
        ages = re.compile(r"\d+ s\b|\d+ min\b")
        assert ages.sub("", with_terminal) == ages.sub("", piped)


def test_states_have_their_colours_and_hosts_have_none(ran: Cli) -> None:
    assert "\x1b[32msuccess" in shown(ran, "ls")
    assert "\x1b[32msuccess" in shown(ran, "status", "last")
    ran.write("failed", "#!/bin/sh\nexit 3\n").chmod(0o755)
    assert ran("local", "--no-python", "./failed").exit_code != 0
    listed = shown(ran, "ls", columns=200)
    assert re.search(r"\x1b\[31mfailed *\x1b\[0m", listed)
    assert listed.count("\x1b[31m") == 1, "a script that is named like a state has no colour"


def test_no_text_from_elsewhere_is_markup(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    assert distlaunch("local", "--no-python", "/bin/true", "[red]a[/red]", ":boom:", "[/]").exit_code == 0

    listed = shown(distlaunch, "ls", columns=200)

    assert "'[red]a[/red]' :boom: '[/]'" in listed


@pytest.mark.torch
def test_a_wait_has_a_live_line_which_leaves_a_workers_bar_whole(distlaunch: Cli) -> None:
    distlaunch.write("slow.py", SLOW)
    distlaunch.write("bar.py", BAR)
    words = ("local", "--nodes", "2", "--nproc-per-node", "1", "--tty", "never", "--preload", "slow", "bar.py")

    with screen(distlaunch, *words) as terminal:
        terminal.until("importing torch on 2 of 2 nodes")
        terminal.until("2 s")
        (distlaunch.directory / "go").write_text("")
        assert terminal.end() == 0

    drawn = terminal.said
    assert WHOLE_BAR in drawn, "nothing of ours is in between"
    assert not WAIT.search(drawn[drawn.index(WHOLE_BAR) :])
    for line in WAIT.findall(COLOUR.sub("", drawn)):
        assert cell_len(line) < 80
    assert "\r\x1b[K" in drawn[: drawn.index(WHOLE_BAR)], "it was removed"


@pytest.mark.torch
def test_ctrl_z_leaves_no_line_where_the_shell_continues(distlaunch: Cli) -> None:
    distlaunch.write("slow.py", SLOW)
    distlaunch.write("x.py", "")
    command = f"{sys.executable} -m launcher local --tty never --preload slow x.py"
    script = f"set -m; {command}; echo left $?; touch go; fg >/dev/null; echo ended $?"

    with Screen(
        ["bash", "-c", script], env=distlaunch.env({"TERM": "xterm"}), cwd=distlaunch.directory, size=(40, 80)
    ) as terminal:
        terminal.until("importing torch")
        terminal.type("\x1a")
        terminal.until("left 148")
        terminal.until("ended 0")

    stopped = terminal.said[: terminal.said.index("left 148")]
    assert stopped[stopped.rindex("importing") :].count("\r\x1b[K") == 1, "removed before the shell writes"


@pytest.mark.torch
@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_there_is_no_live_line_where_it_cannot_be_drawn_or_no_colour_is_wanted(
    distlaunch: Cli, env: dict[str, str]
) -> None:
    distlaunch.write("slow.py", SLOW)
    distlaunch.write("x.py", "print('it runs')\n")

    with screen(distlaunch, "local", "--preload", "slow", "--tty", "never", "x.py", env=env) as terminal:
        terminal.until("MASTER")
        time.sleep(2.5)
        (distlaunch.directory / "go").write_text("")
        assert terminal.end() == 0

    assert "it runs" in terminal.said
    assert "importing" not in terminal.said
    assert "\x1b" not in terminal.said


@pytest.mark.torch
def test_a_narrow_terminal_has_a_live_line_in_one_row(distlaunch: Cli) -> None:
    distlaunch.write("slow.py", SLOW)
    distlaunch.write("x.py", "")

    with screen(
        distlaunch, "local", "--nodes", "2", "--preload", "slow", "--tty", "never", "x.py", columns=20
    ) as terminal:
        terminal.until("importing")
        terminal.until("2 s")
        (distlaunch.directory / "go").write_text("")
        assert terminal.end() == 0

    lines = WAIT.findall(COLOUR.sub("", terminal.said))
    assert lines
    assert all(cell_len(line) < 20 for line in lines)


def test_the_help_on_a_terminal_fits_it(distlaunch: Cli) -> None:
    for columns in (60, 200):
        text = COLOUR.sub("", shown(distlaunch, "slurm", "--help", columns=columns))

        assert text.startswith("Usage: distlaunch slurm")
        assert all(
            cell_len(line) <= min(columns, 110) for line in text.splitlines() if not line.startswith("  distlaunch")
        )
    words = re.sub(r"\s+", " ", text)
    assert "Scheduler options: -p, --partition TEXT Partition." in words
    assert "[default: 0]" in words


@pytest.mark.torch
def test_doctors_marks_and_links_have_colours(distlaunch: Cli) -> None:
    drawn = shown(
        distlaunch, "doctor", "local", "--nodes", "2", "--nproc-per-node", "1", "--seconds", "0.1", columns=200
    )

    assert re.search(r"(^|\x1b\[K)\x1b\[1mHOST", drawn, re.MULTILINE), "where the live line was, if it took long"
    assert "\x1b[32mOK" in drawn
    assert "bandwidth of each pair, GB/s: " in drawn
    cells = re.findall(r"\x1b\[30;4[1236]m *[0-9.]+", drawn[drawn.index("bandwidth of each") :])
    assert len(cells) == 4, "two of bandwidth, two of latency"
    plain = distlaunch("doctor", "local", "--nodes", "2", "--nproc-per-node", "1", "--seconds", "0.1").stdout
    assert "\x1b" not in plain
    assert "bandwidth of each pair, GB/s: " in plain
