"""The files of a run behind a login node, as its shell lists and reads them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends import _login_outputs, _outputs
from launcher.backends._login_outputs import LoginOutputs
from launcher.errors import CommandError, RequestError
from launcher.service import fetch_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from launcher.backends._outputs import Ending

CONTENT = bytes(range(256)) * 20_000
NODE = fetch_node.Node(0, "")


class Node:
    """A login node that is this host."""

    def __init__(self, top: Path) -> None:
        self.work, self.programs = top / "work", top / "bin"
        self.words = ["env", f"PATH={self.programs}:{os.environ['PATH']}", "sh", "-c"]
        self.work.mkdir()
        self.programs.mkdir()
        self._open: list[LoginOutputs] = []

    def write(self, name: str, content: bytes = b"") -> Path:
        """Write a file of a run."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def outputs(self, kind: type[LoginOutputs] = LoginOutputs) -> LoginOutputs:
        """A connection to it."""
        login: Any = SimpleNamespace(name="juno", words=lambda: self.words)
        self._open.append(kind(login, str(self.work), str(self.work / "granted")))
        return self._open[-1]

    def program(self, name: str, text: str) -> None:
        """Put a program in the place of one that it has."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def close(self) -> None:
        """End all connections."""
        for outputs in self._open:
            outputs.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def test_times_are_understood_where_the_decimal_point_is_a_comma(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "de_DE.UTF-8")]
    if not shutil.which(make[0]) or subprocess.run(make, capture_output=True, check=False).returncode:
        pytest.skip("no locale can be made here")
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    path = node.write("results/läuft.pt", CONTENT)
    outputs, got = node.outputs(), list[bytes]()

    (file,) = outputs.listed("results/*").files
    ending = outputs.read(file.name, 0, got.append)

    assert file == ("results/läuft.pt", len(CONTENT), path.stat().st_mtime_ns)
    assert b"".join(got) == CONTENT
    assert ending.mtime_ns == path.stat().st_mtime_ns


def during(write: Callable[[], object]) -> type[LoginOutputs]:
    """Files that are written to whenever something of them arrives."""

    class Written(LoginOutputs):
        def read(self, name: str, offset: int, sink: Callable[[bytes], None]) -> Ending:
            def take(block: bytes) -> None:
                write()
                sink(block)

            return super().read(name, offset, take)

    return Written


def test_what_is_appended_meanwhile_is_left_out(node: Node, tmp_path: Path) -> None:
    """By a run that writes its log while it is fetched."""
    log = node.write("train.log", CONTENT)
    with log.open("ab", buffering=0) as file:
        outputs = node.outputs(during(lambda: file.write(b"more")))
        found = fetch_node.fetch(outputs, NODE, ["*.log"], tmp_path / "here", fetch_node.Progress())

    assert (found.changed, [file["bytes"] for file in found.files]) == ([], [len(CONTENT)])
    assert (tmp_path / "here/train.log").read_bytes() == CONTENT


def test_what_is_written_over_meanwhile_is_named(node: Node, tmp_path: Path) -> None:
    log = node.write("train.log", CONTENT)
    times = itertools.count()
    with log.open("r+b", buffering=0) as file:
        outputs = node.outputs(during(lambda: os.pwrite(file.fileno(), b"%09d" % next(times), 0)))
        found = fetch_node.fetch(outputs, NODE, ["*.log"], tmp_path / "here", fetch_node.Progress())

    assert (found.changed, found.files) == (["train.log"], [])


def test_a_file_whose_sum_takes_long_is_fetched(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum is there only once the connection has been silent for longer than it may be."""
    node.write("model.pt", CONTENT)
    os.mkfifo(gate := tmp_path / "gate")
    node.program("sha256sum", f"read -r _ <{gate}; exec {shutil.which('sha256sum')}")
    monkeypatch.setattr(_login_outputs, "_SERVE", _login_outputs._SERVE.replace("sleep 5", "sleep 0.1"))
    monkeypatch.setattr(_outputs, "_SILENT_S", 5.0)

    class Awaited(LoginOutputs):
        def _line(self) -> bytes:
            if (line := super()._line()) == b"k":
                with contextlib.suppress(OSError), open(os.open(gate, os.O_WRONLY | os.O_NONBLOCK), "w") as file:
                    file.write("go\n")
            return line

    got: list[bytes] = []

    ending = node.outputs(Awaited).read("model.pt", 0, got.append)

    assert (b"".join(got), ending.sha256) == (CONTENT, hashlib.sha256(CONTENT).hexdigest())


def test_a_stall_in_the_middle_of_a_file_is_one_clear_error(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a file system that does not answer for a while."""
    node.write("model.pt", CONTENT)
    os.mkfifo(gate := tmp_path / "gate")
    node.program("tail", f"head -c 1000000 /dev/zero; exec cat {gate}")
    monkeypatch.setattr(_outputs, "_SILENT_S", 1.0)
    got: list[bytes] = []

    try:
        with pytest.raises(CommandError, match="juno has sent nothing for 1 s"):
            node.outputs().read("model.pt", 0, got.append)
    finally:
        gate.write_text("")

    assert got


def test_directories_that_may_not_be_read_are_listed_as_left_out(node: Node) -> None:
    for name in ("cache/a.pt", "results/b.pt"):
        node.write(name)
    if os.getuid() == 0:
        node.words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *node.words]
    outputs = node.outputs()
    (node.work / "cache").chmod(0)
    some, none = outputs.listed("**/*.pt"), outputs.listed("cache")
    node.work.chmod(0o100)
    try:
        with pytest.raises(RequestError, match="Permission denied"):
            outputs.listed("")
    finally:
        node.work.chmod(0o700)
        (node.work / "cache").chmod(0o700)

    assert [file.name for file in some.files] == ["results/b.pt"]
    assert some.left_out == none.left_out == (("cache/", "Permission denied"),)


def test_what_is_there_may_have_any_name(node: Node) -> None:
    for name in ("a", "end", "k", "z"):
        node.write(name)
    node.write("new\nline/f a")
    outputs = node.outputs()

    assert outputs.listed("no*").there == ("a", "end", "k", "new", "line/", "z")
    assert [file.name for file in outputs.listed("z").files] == ["z"]
    found = outputs.listed("")
    assert [file.name for file in found.files] == ["a", "end", "k", "z"]
    assert found.left_out == (("?", "a line break in its name"),)


def test_a_file_of_before_1970_is_fetched_like_any_other(node: Node, tmp_path: Path) -> None:
    """As archives have them that a host with a wrong clock has packed."""
    for name, ns in (("a.pt", -1_000_000_000), ("b.pt", -500_000_000), ("c.pt", 1_500_000_000)):
        os.utime(node.write(name, CONTENT), ns=(0, ns))
    here = tmp_path / "here"

    fetch_node.fetch(node.outputs(), NODE, ["*.pt"], here, fetch_node.Progress())

    times = {path.name: path.stat().st_mtime_ns for path in here.glob("*.pt")}
    assert times == {"a.pt": -1_000_000_000, "b.pt": -500_000_000, "c.pt": 1_500_000_000}


def test_a_link_whose_file_goes_while_it_is_listed_is_passed_over(node: Node) -> None:
    """As that of a trainer to its last checkpoint."""
    node.write("step-400.pt")
    node.write("step-500.pt")
    (node.work / "latest.pt").symlink_to("step-400.pt")
    stat = shutil.which("stat")
    node.program("stat", f'[ "$1" != -L ] || rm -f step-400.pt\nexec {stat} "$@"')

    assert "step-500.pt" in [file.name for file in node.outputs().listed("*.pt").files]
