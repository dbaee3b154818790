"""The files of a run behind a login node, as its shell lists and reads them."""

from __future__ import annotations

import shutil
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends._login_outputs import LoginOutputs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = bytes(range(256)) * 20_000


class Node:
    """A login node that is this host."""

    def __init__(self, top: Path) -> None:
        self.work, self.words = top / "work", ["sh", "-c"]
        self.work.mkdir()
        self._open: list[LoginOutputs] = []

    def write(self, name: str, content: bytes = b"") -> Path:
        """Write a file of a run."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def outputs(self) -> LoginOutputs:
        """A connection to it."""
        login: Any = SimpleNamespace(name="juno", words=lambda: self.words)
        self._open.append(LoginOutputs(login, str(self.work), str(self.work / "granted")))
        return self._open[-1]

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
