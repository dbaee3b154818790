"""`fetch` while the disk of a node fails: what could not be read is named, and may be fetched again."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.outputs import signs
from launcher.backends._outputs import RemoteOutputs
from launcher.errors import CommandError
from launcher.runs.records import Run
from launcher.service import fetch, observe
from launcher.system.pipes import ProgramBridge

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = bytes(range(256)) * 20_000
DISK_FAILS = """
import io, sys
from launcher.agent.outputs import serve, tree
class Fails(io.FileIO):
    def read(self, size=-1):
        if self.tell():
            raise OSError(5, "Input/output error")
        return super().read(size)
tree.open = lambda fd, *_, **__: Fails(fd)
serve.main(sys.argv[1])
"""


def test_a_file_that_cannot_be_read_to_its_end_is_an_error_and_its_node_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other files are fetched: they are shorter than what is read at once."""
    (tmp_path / "ckpt").mkdir()
    for name, content in {"a.pt": b"a", "b.pt": CONTENT, "c.pt": b"c"}.items():
        (tmp_path / "ckpt" / name).write_bytes(content)
    (tmp_path / "spec.json").write_text(json.dumps({"cwd": str(tmp_path), "directory": str(tmp_path)}))
    argv = (sys.executable, "-c", DISK_FAILS, str(tmp_path / "spec.json"))
    backend = SimpleNamespace(has_outputs=True, shares_outputs=False, name="k8s", sees_outputs=lambda: False)
    backend.open_outputs = lambda *_: RemoteOutputs("n0", ProgramBridge(argv))
    monkeypatch.setattr(observe, "backend_of", lambda _: backend)
    handle: Any = {"hosts": ["n0"]}
    found = Run(id="a-20250101-120000-abcd", path=tmp_path, backend="k8s", handle=handle)
    transfer = fetch.Transfer(found, ["ckpt/*"], tmp_path / "here", "0")
    transfer.begin(0, lambda: None)

    with pytest.raises(CommandError, match=r"not read to the end, and not fetched: n0: ckpt/b\.pt: Input/output error"):
        transfer.fetched()

    assert sorted(os.listdir(tmp_path / "here/ckpt")) == [".b.pt.distlaunch-part", "a.pt", "c.pt"]
    assert not (tmp_path / signs.RELEASED).exists()
