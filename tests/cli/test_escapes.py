"""Foreign text reaches the terminal as text: no escape, and no line that looks like ours, in any kind of message."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher import output
from launcher.console import tables
from launcher.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.command import Cli

LAUNCHER = Path(output.__file__).parent
TITLE, CLEAR = "\x1b]0;owned\x07", "\x1b[2J\x1b[H"
C1_BIDI = "\x9b31m\x9d\x85\x90\u202ecba\u202c\u2066\u200b\u2028\u2029\r\x08\x0b\x0c\x0e\x7f"
HOSTILE = f"<{TITLE}{CLEAR}{C1_BIDI}\nerror[fake]: password:\n\udc9b>"
"""Escapes in seven bits, as C1 codes in UTF-8 and as an invalid byte; bidi overrides, and all kinds of line ends."""

FAKE = """
import json, os, sys, time
sys.stdin.buffer.readline()
hostile, directory = HOSTILE, os.path.dirname(sys.argv[4])
node = int(sys.argv[6])
out = sys.stdout.buffer
def event(name, **fields):
    out.write(json.dumps({"event": name, "time": time.time(), "node": node, **fields}).encode() + b"\\n")
    out.flush()
if MODE == "silent":
    event("agent_started", version=1, host=hostile, pid=1)
    sys.stderr.buffer.write(b"Fatal Python error: " + hostile.encode(errors="surrogateescape") + b"\\n")
    sys.exit(1)
with open(directory + "/job.out", "ab") as job:
    job.write(hostile.encode(errors="surrogateescape") + b"\\n\\0\\0\\0\\n")
raw = hostile.encode(errors="surrogateescape")
places = {"run": hostile, "host": hostile, "python": hostile, "cwd": hostile}
event("agent_started", version=1, pid=1, attempt=1, after=hostile, **places)
more = {"attempt": 1}
variable = {"name": hostile, "value": hostile, "source": hostile, "reason": hostile}
event("fabric", notes=[hostile], variables=[variable], interfaces=[hostile], **more)
event("waiting", what=hostile, limit_s=1, **more)
where = {"master_addr": hostile, "master_port": hostile, "nodes": hostile, "world_size": hostile}
event("rendezvous", round=0, restarts=0, ranks=[0], **where, **more)
event("warning", message=hostile, **more)
event("lines_lost", lines=3, bytes=4, reason=hostile, ranks=[0], **more)
cause = {"class": hostile, "message": hostile, "host": hostile, "node": node, "rank": 0, "signal": hostile,
         "traceback": hostile, "time": time.time(), "secondary": False}
event("restart", restarts=hostile, max_restarts=hostile, cause=cause, **more)
out.write(raw + b"\\n" + b"\\0" * 100 + raw + b"\\n" + b'{"event": ' + raw + b"\\n")
out.write(b"%d.0! a line of a worker: \\x1b[1m its own\\n" % node)
event("stopping", reason=hostile, **more)
event("failure", cause=cause, **more)
event("done", result="failed", exit_code=1, cause=cause, restarts=1, duration_s=1.0, **more)
"""


def terminal(cli: Cli, *args: str, **env: str) -> str:
    """What a command writes to a terminal that is all of its streams."""
    ours, theirs = pty.openpty()
    process = cli.start(
        *args, env={"TERM": "xterm", "NO_COLOR": None, **env}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    data = b""
    with suppress(OSError):  # EIO: all processes that had it open have ended
        while part := os.read(ours, 65536):
            data += part
    os.close(ours)
    process.wait(60)
    return data.decode()  # strictly: an invalid byte is one that got through


def assert_plain(text: str, *, but: str = "") -> None:
    """Nothing in it affects a terminal, except our colours; no line of it is forged."""
    text = text.replace(but, "") if but else text
    text = re.sub(r"\r(?=[\x1b\u2800-\u28ff])|\x1b\[K", "", text.replace("\r\n", "\n"))  # a live line, and its end
    text = re.sub(r"\x1b\[(0|1|2|31|32|33|36)m", "", text)
    odd = {char for char in text if not char.isprintable() and char != "\n"}
    assert not odd, (odd, text)
    assert not re.search(r"^error\[fake\]", text, re.MULTILINE), text


@pytest.fixture
def fake(distlaunch: Cli) -> Callable[[str], str]:
    """An interpreter that sends hostile messages in place of the agent."""

    def made(mode: str) -> str:
        text = f"#!{sys.executable}\nHOSTILE = {HOSTILE!r}\nMODE = {mode!r}\n{FAKE}"
        path = distlaunch.write(f"{mode}-python", text)
        path.chmod(0o755)
        return str(path)

    return made


def test_no_message_of_a_run_lets_an_escape_through(distlaunch: Cli, fake: Callable[[str], str]) -> None:
    distlaunch.write("work.py", "print(1)\n")
    own = "a line of a worker: \x1b[1m its own"

    followed = terminal(
        distlaunch, "local", "-v", "--explain", "--log-ranks", "all", "--python", fake("talks"), "work.py"
    )

    assert_plain(followed, but=own)
    assert own in followed
    words = (
        "started again by the scheduler",
        "fabric: ",
        "started: ",
        "warning",
        "restart ",
        "[0] <",
        "stopping: ",
        "first",
    )
    for told in words:
        assert told in followed, told
    assert followed.count("owned") >= 15, "every message was shown"
    (run,) = (path.name for path in distlaunch.runs.iterdir())
    for command in (
        ["status", run],
        ["ls"],
        ["cancel", run],
        ["logs", run],
        ["logs", "--rank", "0", run],
        ["logs", "-f", run],
    ):
        said = terminal(distlaunch, *command)
        assert_plain(said, but=own)
        assert "Traceback" not in said
    assert "[job] <\\x1b]0;owned" in terminal(distlaunch, "logs", run)
    exact = distlaunch("status", run, "--output", "json").json["result"]["cause"]
    assert exact["message"] == exact["host"] == exact["traceback"] == HOSTILE


@pytest.mark.slow
def test_the_last_output_of_an_agent_lets_no_escape_through(distlaunch: Cli, fake: Callable[[str], str]) -> None:
    distlaunch.write("work.py", "print(1)\n")

    followed = terminal(distlaunch, "local", "--python", fake("silent"), "work.py")

    assert_plain(followed)
    assert "Fatal Python error: <\\x1b]0;owned" in followed


def test_names_of_files_directories_runs_variables_and_settings_let_no_escape_through(distlaunch: Cli) -> None:
    one_line = HOSTILE.replace("\n", "")  # a document has lines of its own
    script = HOSTILE + ".py"
    (distlaunch.directory / script).write_text(f"raise ValueError({HOSTILE.encode(errors='replace').decode()!r})\n")
    distlaunch.write(
        "settings.toml", f"[clusters.x]\nbackend = {json.dumps(HOSTILE.encode(errors='replace').decode())}\n"
    )
    directory = distlaunch.directory / HOSTILE
    directory.mkdir()
    (distlaunch.runs / f"bad-{HOSTILE}").mkdir(parents=True)
    (distlaunch.runs / f"bad-{HOSTILE}/run.json").write_text(HOSTILE, errors="surrogateescape")

    said = [
        terminal(distlaunch, "local", script, DISTLAUNCH_LOG_RANKS="7"),
        terminal(distlaunch, "local", "--dry-run", "--name", HOSTILE, "-e", f"A={HOSTILE}", script),
        terminal(distlaunch, "local", "--dry-run", "--python", HOSTILE, script),
        terminal(distlaunch, "local", "--render-to", str(directory), script),
        terminal(distlaunch, "local", HOSTILE),
        terminal(distlaunch, "status", HOSTILE),
        terminal(distlaunch, "status", f"bad-{HOSTILE}"),
        terminal(distlaunch, "ls"),
        terminal(distlaunch, "logs", "--rank", HOSTILE, "last"),
        terminal(distlaunch, "config", DISTLAUNCH_CONFIG=str(distlaunch.directory / "settings.toml")),
        terminal(distlaunch, "config", DISTLAUNCH_CONFIG=str(directory / "none.toml")),
        terminal(distlaunch, "config", DISTLAUNCH_NAME=HOSTILE),
        terminal(distlaunch, "ls", DISTLAUNCH_RUNS_DIR=str(directory / "none")),
        terminal(distlaunch, "slurm", "--dry-run", "--partition", one_line, script),
        terminal(distlaunch, "ansible", "--dry-run", "-i", f"h{one_line},", script),
        terminal(distlaunch, "kubernetes", "--dry-run", "--namespace", HOSTILE, script),
    ]

    for text in said:
        assert_plain(text)
    assert sum("owned" in text for text in said) >= 10


MESSAGES: dict[str, Callable[[str], object]] = {
    "note": output.note,
    "warn": output.warn,
    "detail": output.detail,
    "report": output.report,
    "error": lambda text: output.error(CommandError(text, hint=text)),
    "bug": output.bug,
    "result": lambda text: output.result({}, text),
    "foreign": lambda text: output.foreign(text, text.encode(errors="surrogateescape")),
    "table": lambda text: output.result({}, *tables.table((text,), [(text,), (None,)]).splitlines()),
    "paint": lambda text: output.note(output.paint(text, "red")),
}


@pytest.mark.parametrize("kind", sorted(MESSAGES))
def test_every_kind_of_message_is_plain(
    kind: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output._manner, "verbosity", 1)

    MESSAGES[kind](HOSTILE)

    stdout, stderr = capfdbinary.readouterr()
    assert_plain((stdout + stderr).decode())
    assert b"owned" in stdout + stderr


def test_no_text_can_contain_our_colours(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output.note("".join(map(chr, range(0xFDD0, 0xFDF0))) + "31m")

    assert b"\x1b" not in capfdbinary.readouterr().err


def test_further_lines_of_a_text_are_kept_where_they_are_indented_and_a_long_foreign_line_is_cut(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    output.error(CommandError("two:\n  one\n  other\nfake", hint="a\n        b"))
    output.foreign("job", b"x" * 5000 + b"\r")

    said = capfdbinary.readouterr().err.decode()
    assert said.startswith("error[command_failed]: two:\n  one\n  other\\nfake\n  hint: a\n        b\n[job] xxx")
    assert said.endswith("x [... 1000 characters more]\n")


def test_rendered_text_is_exact_except_on_a_terminal(distlaunch: Cli) -> None:
    distlaunch.write("work.py", "")

    piped = distlaunch("local", "--dry-run", "-e", "A=\x1b[2J\u202e", "work.py").stdout

    assert '"A": "\\u001b[2J\\u202e"' in piped
    assert_plain(terminal(distlaunch, "local", "--dry-run", "-e", "A=\x1b[2J\u202e", "work.py"))


def test_only_the_output_module_writes_to_the_terminal() -> None:
    """Only workers' own lines are written without it, in one module, and for `distlaunch torchrun` in another."""
    for path in LAUNCHER.rglob("*.py"):
        if path.is_relative_to(LAUNCHER / "agent") or path.name in ("output.py", "worker_output.py", "show.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert name not in ("print", "output.write", "sys.stdout.write", "sys.stderr.write", "typer.echo"), (
                path,
                node,
            )
