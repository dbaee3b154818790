"""A cluster's files, as other users of this machine find them, and what a failed addition to it leaves."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from testbed import kube_programs, kube_simulated
from testbed.errors import WaitError
from testbed.kube import Kube
from testbed.kube_conf import KubeFiles, KubeOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """One that all may enter, as a testbed's own."""
    before = os.umask(0o022)
    made = subprocess.run(["mktemp", "--directory"], capture_output=True, text=True, check=True).stdout.strip()
    Path(made).chmod(0o755)
    yield Path(made)
    subprocess.run(["rm", "-r", made], check=True)
    os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_the_administrators_token_is_not_readable_for_others(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller: Any = SimpleNamespace(address="10.77.0.254")
    kube = Kube(KubeFiles(open_directory / "kubernetes"), KubeOptions(), controller, _tokens={"admin": "its-token"})
    monkeypatch.setattr(Kube, "_start", lambda *_: None)
    monkeypatch.setattr(Kube, "start_api", lambda self: self.files.ca.write_text("a certificate"))
    monkeypatch.setattr(Kube, "_wait_account", lambda *_: None)

    kube._start_control_plane()

    reads = ["grep", "--recursive", "--files-with-matches", "its-token", str(open_directory)]
    found = subprocess.run(reads, capture_output=True, text=True).stdout.split()
    assert {Path(path).name for path in found} >= {"tokens.csv", "admin.kubeconfig"}
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    for path in found:
        assert "Permission denied" in subprocess.run([*as_nobody, "cat", path], capture_output=True, text=True).stderr


def test_simulated_nodes_that_do_not_get_ready_are_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def not_ready(*_args: Any, **_more: Any) -> NoReturn:
        done.append("added")
        raise WaitError("the nodes are not Ready")

    controller: Any = SimpleNamespace(address="10.77.0.254")
    api: Any = SimpleNamespace(delete=lambda path: done.append(path.partition("?")[0]))
    kube = Kube(KubeFiles(tmp_path), KubeOptions(), controller, _api=api)
    monkeypatch.setattr(kube_programs, "require", lambda *_: None)
    monkeypatch.setattr(kube_simulated, "kwok", lambda *_: {})
    monkeypatch.setattr(kube_simulated, "add", not_ready)
    monkeypatch.setattr(Kube, "_start", lambda _self, name, *_: done.append(f"{name} started"))
    monkeypatch.setattr(Kube, "_stop", lambda _self, name, _number: done.append(f"{name} stopped"))

    with pytest.raises(WaitError), kube.simulated(5):
        pass

    assert done == ["kwok started", "added", "/api/v1/nodes", "kwok stopped"]
