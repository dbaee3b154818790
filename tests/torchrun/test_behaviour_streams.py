"""Side by side with torchrun: where workers' output goes, and what their stdin is."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.command import ROOT
from tests.torchrun.behaviour import WORKER, of, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.torchrun.behaviour import Both, Play
    from tests.torchrun.node import Node

    Played = Callable[[Callable[[Play], None]], Both]

pytestmark = pytest.mark.torch


def redirected(play: Play) -> None:
    options = [
        "--nproc-per-node=3",
        "--log_dir",
        "logs",
        "-r",
        "0:1,1:2",
        "-t",
        "2:3",
        "--rdzv-backend=c10d",
        "--rdzv_id",
        "me",
    ]
    more = [
        "--rdzv-endpoint=localhost:0",
        "--log-line-prefix-template",
        "<${role_name} ${rank} ${local_rank} ${hostname} ${x}>",
    ]
    play.start(*options, *more, WORKER, "say")


def test_streams_go_to_files_or_are_teed_as_asked_for(played: Played) -> None:
    both = played(redirected)

    assert both.same(lambda play: play.files("logs")) == {
        "me_*/attempt_0/0/stdout.log": "out of 0\n",
        "me_*/attempt_0/1/stderr.log": "err of 1\n",
        "me_*/attempt_0/2/stdout.log": "out of 2\n",
        "me_*/attempt_0/2/stderr.log": "err of 2\n",
    }
    prefix = f"<default 2 2 {socket.gethostname()} ${{x}}>"
    assert both.same(shown) == (sorted(["out of 1", f"{prefix}out of 2"]), sorted(["err of 0", f"{prefix}err of 2"]))


def filtered(play: Play) -> None:
    options = ["--nproc-per-node=3", "--log-dir", "logs", "--tee", "3", "--local_ranks_filter", "1,2", "--role", "r"]
    more = ["--duplicate-stdout-filters", "apple,a,,b", "--duplicate_stderr_filters", "of 2"]
    play.start(*options, *more, WORKER, "say", "1:say=an apple line", "2:say=line a,b", "0:say=line c")


def test_output_of_ranks_that_are_not_shown_is_in_their_files(played: Played) -> None:
    both = played(filtered)

    found = both.same(
        lambda play: {path.partition("/")[2]: sorted(text.splitlines()) for path, text in play.files("logs").items()}
    )
    assert found["attempt_0/0/stdout.log"] == ["line c", "out of 0"]
    out, err = both.same(shown)
    assert out == ["[r1]:an apple line", "[r1]:out of 1", "[r2]:line a,b", "[r2]:out of 2"]
    assert err == ["[r1]:err of 1", "[r2]:err of 2"]


def test_lines_with_certain_words_are_also_in_a_separate_file(played: Played) -> None:
    def duplicates(play: Play) -> dict[str, list[str]]:
        found = {path.rpartition("/")[2]: sorted(text.splitlines()) for path, text in play.files("logs").items()}
        return {name: text for name, text in found.items() if name.startswith("filtered")}

    assert played(filtered).same(duplicates) == {
        "filtered_stdout.log": ["[r1]:an apple line", "[r2]:line a,b"],
        "filtered_stderr.log": ["[r2]:err of 2"],
    }


def silent(play: Play) -> None:
    play.start("--nproc-per-node=2", "--log-dir", os.devnull, "--local-ranks-filter=0", WORKER, "say")


def test_without_a_directory_for_logs_all_is_shown(played: Played) -> None:
    """torchrun has no error files then; here the cause is reported all the same."""
    both = played(silent)

    assert both.same(lambda play: play.codes) == [0]
    assert both.same(shown) == (["out of 0", "out of 1"], ["err of 0", "err of 1"])
    assert of(both.theirs, "TORCHELASTIC_ERROR_FILE") == [[""]] * 2
    assert all(path and path[0] for path in of(both.ours, "TORCHELASTIC_ERROR_FILE"))


def piped(play: Play) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"first\nsecond\n")
    os.close(writer)
    play.start("--nproc-per-node=1", WORKER, "read=all", stdin=reader)
    os.close(reader)


def asked(play: Play) -> None:
    reader, writer = os.pipe()
    play.start("--nproc-per-node=2", WORKER, "0:read=line", "0:hold=x", "1:hold=x", stdin=reader)
    os.close(reader)
    play.until(1, RANK="1")
    os.write(writer, b"an answer\n")
    play.until(1, RANK="0")
    (play.seen / "x").touch()
    os.close(writer)


@pytest.mark.parametrize(("scene", "text"), [(piped, "first\nsecond\n"), (asked, "an answer\n")])
def test_workers_have_the_launchers_stdin(played: Played, scene: Any, text: str) -> None:
    both = played(scene)

    assert both.same(lambda play: play.codes) == [0]
    assert both.same(lambda play: play.workers[0].get("stdin")) == text


WITHOUT_NUMPY = """
import os
os.write(2, b"numpy: a line of a library\\n")
raise ModuleNotFoundError("No module named 'numpy'")
"""
SHARED_LINES = ("numpy: a line of a library", "Failed to initialize NumPy", "SyntaxWarning", "the script")


def imports(play: Play) -> None:
    scripts = play.directory / "scripts"
    scripts.mkdir()
    (scripts / "numpy.py").write_text(WITHOUT_NUMPY)
    (scripts / "x.py").write_text("import sys\nimport torch\nassert 1 is 1\nsys.stderr.write('the script')\n")
    play.start("--standalone", "scripts/x.py")


def test_what_the_imports_and_the_compiler_say_is_shown(played: Played) -> None:
    def said(play: Play) -> list[bool]:
        return [words in play.ended[0].stderr for words in SHARED_LINES]

    both = played(imports)

    assert both.same(said) == [True] * len(SHARED_LINES)
    assert both.same(lambda play: play.codes) == [0]
    assert both.ours.ended[0].stderr.endswith("\nthe script")


def test_what_an_import_has_said_is_shown_if_it_fails(start: Callable[..., Node], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('a hint')\nraise ImportError('no library')")
    node = start("import torch", "--standalone", "x.py", env={"PYTHONPATH": f"{ROOT}:{tmp_path}"})

    assert node.wait() == 1
    assert node.err.startswith("a hint\n")
    assert "cannot import torch: ImportError: no library" in node.err
