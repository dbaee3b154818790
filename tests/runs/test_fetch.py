"""`distlaunch fetch`: what it does with files that change, with a full disk, and with what an earlier one has left."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher import output
from launcher.agent.node import holding
from launcher.agent.outputs import signs
from launcher.agent.outputs.tree import Tree, TreeError
from launcher.agent.system import files
from launcher.backends._outputs import RemoteOutputs, SharedOutputs
from launcher.errors import CommandError, StorageError
from launcher.payload import agent_archive
from launcher.runs import directories
from launcher.runs.records import Run
from launcher.service import fetch, fetch_node, observe
from launcher.system.partial import Partial
from launcher.system.pipes import ProgramBridge

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

LIMIT_S = 120.0
CONTENT = bytes(range(256)) * 20_000
WRITES = "import os\nos.makedirs('out')\nopen('out/model.pt', 'wb').write(bytes(range(256)) * 20_000)\n"


@pytest.fixture
def run(distlaunch: Cli) -> str:
    """A run that has written out/model.pt."""
    distlaunch.write("writes.py", WRITES)
    done = distlaunch("local", "writes.py")
    assert done.exit_code == 0, done.stderr
    return "last"


def test_what_to_fetch_can_be_a_setting(distlaunch: Cli) -> None:
    """For runs that are followed: nothing waits for the end of one that is detached, and doctor has no files."""
    distlaunch.write("distlaunch.toml", '[defaults]\nfetch = ["out"]\nfetch_node = "all"\n')
    distlaunch.write("writes.py", WRITES)
    done = distlaunch("local", "--output", "json", "writes.py")
    detached = distlaunch("local", "--detach", "--no-python", "true")
    refused = distlaunch("local", "--detach", "--fetch", "out", "--no-python", "true")
    wrong = distlaunch("local", "--fetch-node", "1", "--no-python", "true")

    fetched = done.json["result"]["fetched"]
    assert [file["path"] for file in fetched["files"]] == ["out/model.pt"], done.stderr
    assert (distlaunch.directory / done.json["result"]["run"] / "out/model.pt").read_bytes() == CONTENT
    assert fetched["nodes"][0]["output_dir"] == done.json["result"]["nodes"][0]["output_dir"]
    assert detached.exit_code == 0, detached.stderr
    assert "nothing is fetched at the end" in detached.stderr
    assert (refused.exit_code, wrong.exit_code) == (2, 2)
    assert "--fetch and --detach exclude each other" in refused.stderr
    assert "--fetch-node 1: there is no such node" in wrong.stderr


def test_a_transfer_continues_where_it_stopped_and_verifies_what_was_there(run: str, distlaunch: Cli) -> None:
    for name, left in {"right": CONTENT[:2_000_000], "wrong": b"x" * 2_000_000, "longer": CONTENT + b"x"}.items():
        part = distlaunch.directory / name / "out" / ".model.pt.distlaunch-part"
        part.parent.mkdir(parents=True)
        part.write_bytes(left)

        done = distlaunch("fetch", run, "out", "--to", name)

        assert done.exit_code == 0, done.stderr
        assert (part.parent / "model.pt").read_bytes() == CONTENT
        assert os.listdir(part.parent) == ["model.pt"]


def test_the_other_end_sends_only_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(CONTENT)
    (tmp_path / "agent.pyz").write_bytes(agent_archive.packed())
    (tmp_path / "spec.json").write_text(json.dumps({"cwd": str(tmp_path)}))
    argv = (sys.executable, str(tmp_path / "agent.pyz"), "host", "outputs", str(tmp_path / "spec.json"))
    bridge = ProgramBridge(argv)
    outputs = RemoteOutputs("here", bridge)
    got: list[bytes] = []

    ending = outputs.read("model.pt", 2_000_000, got.append)
    bridge._process.kill()
    with pytest.raises(CommandError, match="connection broke"):
        outputs.listed("*")

    assert b"".join(got) == CONTENT[2_000_000:]
    assert ending.size == len(CONTENT)


WAITED_FOR = "import sys; from launcher.agent.outputs import serve; serve._ALIVE_S = 0.05; serve.main(sys.argv[1])"


@pytest.mark.slow
def test_an_agent_waits_as_long_as_a_launcher_is_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not up to its own limit if the launcher is gone; and only until the launcher has released it."""
    monkeypatch.setattr(signs, "ALONE_S", 3.0)
    job = {"cwd": str(tmp_path), "directory": str(tmp_path), "hold_s": 600.0, "hold_node": None}
    (tmp_path / "spec.json").write_text(json.dumps(job))
    place: Any = SimpleNamespace(job=SimpleNamespace(**job, heartbeat_s=10.0, grace_s=30.0), node_rank=1)
    told: list[tuple[str, dict[str, Any]]] = []
    out: Any = SimpleNamespace(event=lambda name, **fields: told.append((name, fields)))
    stops: Any = SimpleNamespace(kill_at=None, ends_node=False)

    def waiting() -> threading.Thread:
        waits = threading.Thread(target=holding.hold, args=(place, out, stops, lambda: False, "success"))
        waits.start()
        return waits

    argv = (sys.executable, "-c", WAITED_FOR, str(tmp_path / "spec.json"))
    bridge = ProgramBridge(argv)
    outputs, waits = RemoteOutputs("here", bridge), waiting()
    waits.join(2 * signs.ALONE_S)
    while_connected = waits.is_alive()
    bridge._process.kill()
    waits.join(LIMIT_S)
    left_alone = waits.is_alive()
    outputs.close()
    outputs, waits = RemoteOutputs("here", ProgramBridge(argv)), waiting()
    outputs.release()
    waits.join(LIMIT_S)
    outputs.close()

    assert (while_connected, left_alone, waits.is_alive()) == (True, False, False)
    assert told[0] == ("outputs_ready", {"limit_s": 600.0, "result": "success"})


def test_an_agent_that_cannot_say_that_it_waits_for_a_fetch_ends_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(files, "write_whole", full)
    (tmp_path / signs.HELD).touch()
    told: list[str] = []
    job = {"directory": str(tmp_path), "hold_s": 600.0, "hold_node": None, "heartbeat_s": 10.0, "grace_s": 0.0}
    place: Any = SimpleNamespace(job=SimpleNamespace(**job), node_rank=1)
    out: Any = SimpleNamespace(event=lambda name, **_: told.append(name))

    stops: Any = SimpleNamespace(kill_at=None, ends_node=False)

    holding.hold(place, out, stops, lambda: True, "success")

    assert told == ["outputs_ready"]


def test_a_full_disk_is_one_error_and_leaves_nothing_half_written(run: str, distlaunch: Cli, small_disk: Path) -> None:
    done = distlaunch("fetch", run, "out", "--to", str(small_disk / "here"))

    assert done.exit_code == 4
    assert done.stderr.count("error[storage]: cannot write") == 1
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []


def test_a_node_that_waits_is_released_only_once_its_files_are_here(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As they are lost with it. It waits on for another try, up to its own limit."""
    (tmp_path / "model.pt").write_bytes(CONTENT)
    (tmp_path / "spec.json").write_text(json.dumps({"cwd": str(tmp_path)}))
    done: list[str] = []
    outputs: Any = SharedOutputs(tmp_path)
    outputs.release, outputs.close = (partial(done.append, name) for name in ("release", "close"))
    backend = SimpleNamespace(has_outputs=True, shares_outputs=False, open_outputs=lambda *_: outputs, name="k8s")
    backend.sees_outputs = lambda: False
    monkeypatch.setattr(observe, "backend_of", lambda _: backend)
    handle: Any = {"hosts": ["n0"]}
    found = Run(id="a-20250101-120000-abcd", path=tmp_path, backend="k8s", handle=handle)

    def fetched(to: Path) -> None:
        transfer = fetch.Transfer(found, ["model.pt"], to, "0")
        transfer.begin(0, lambda: done.append("until"))
        transfer.fetched()

    with pytest.raises(StorageError):
        fetched(small_disk / "here")
    failed, said = done.copy(), capfd.readouterr().err
    fetched(tmp_path / "here")

    assert failed == ["until", "close"]
    assert f"distlaunch fetch {found.id} --node 0 can try again for 60 s, or 10 s after a request to end" in said
    assert done[len(failed) :] == ["until", "release", "close"]
    assert (tmp_path / "here/model.pt").read_bytes() == CONTENT


def test_a_file_that_changes_meanwhile_is_read_once_more_and_then_named(run: str, distlaunch: Cli) -> None:
    path = distlaunch.directory / "out" / "model.pt"
    (path.parent / "other.txt").write_text("other")
    found = directories.find(distlaunch.runs, run)
    changes: list[int] = []

    def change(_text: str, part: tuple[int, int] | None) -> None:
        if part is not None and part[0] and len(changes) < limit:
            changes.append(part[0])
            with open(path, "r+b") as file:
                file.write(b"%09d" % len(changes))

    output.progress_by(change)
    try:
        limit = 1
        once = fetch.fetch(found, ["out"], distlaunch.directory / "once", "0")
        limit = 10_000
        with pytest.raises(CommandError, match=r"changed while they were read.*: out/model\.pt"):
            fetch.fetch(found, ["out"], distlaunch.directory / "always", "0")
    finally:
        output.progress_by(None)

    assert {file["path"] for file in once["files"]} == {"out/model.pt", "out/other.txt"}
    assert (distlaunch.directory / "once/out/model.pt").read_bytes() == b"000000001" + CONTENT[9:]
    assert os.listdir(distlaunch.directory / "always/out") == ["other.txt"]


def test_a_file_that_another_program_takes_as_soon_as_it_is_here_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.pt").write_bytes(CONTENT)
    (tmp_path / "spec.json").write_text(json.dumps({"cwd": str(tmp_path)}))
    finish = Partial.finish

    def taken(part: Partial, mtime_ns: int) -> None:
        finish(part, mtime_ns)
        part.path.unlink()

    monkeypatch.setattr(Partial, "finish", taken)
    node = fetch_node.Node(0, "")
    found = fetch_node.fetch(SharedOutputs(tmp_path), node, ["*.pt"], tmp_path / "here", fetch_node.Progress())

    assert found.files == [{"path": "model.pt", "bytes": len(CONTENT), "node": 0, "transferred": True}]


def test_a_directory_that_the_user_may_not_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cache/model.pt", "results/model.pt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    scandir, forbidden = os.scandir, ["cache"]

    def scan(path: bytes) -> Any:
        if os.path.basename(os.path.normpath(os.fsdecode(path))) in forbidden:
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    found = Tree(str(tmp_path)).listed("**/*.pt")

    assert [name for name, *_ in found["files"]] == ["results/model.pt"]
    assert found["left_out"] == [("cache/", "Permission denied")]
    forbidden.append(tmp_path.name)
    with pytest.raises(TreeError, match="Permission denied"):
        Tree(str(tmp_path)).listed("")


def test_what_is_appended_meanwhile_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(CONTENT)
    got: list[bytes] = []

    def append(block: bytes) -> None:
        got.append(block)
        with open(tmp_path / "log", "ab") as file:
            file.write(b"more")

    ending = Tree(str(tmp_path)).read("log", 0, append)

    assert b"".join(got) == CONTENT
    assert ending["changed"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none-such", "*"), "no run 'none-such'"),
        (("last", "nothing/**"), "there: "),
        (("last", "../*"), "leads out of the directory"),
        (("last", "[z-a]"), "is invalid"),
        (("last", "out", "--to", "writes.py"), "is a file, not a directory"),
        (("last", "out", "--node", "1"), "has no node '1'"),
        (("last",), "name what to copy"),
    ],
)
def test_wrong_requests_are_one_clear_error(run: str, distlaunch: Cli, words: tuple[str, ...], said: str) -> None:
    done = distlaunch("fetch", *words)

    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("error[") == 1
