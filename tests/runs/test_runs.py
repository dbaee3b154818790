"""Run directories: made, found, and read whatever their state."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from launcher.errors import RunNotFoundError, StorageError
from launcher.runs import directories, records, status
from launcher.service import listing
from launcher.system import storage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli


def make(directory: Path, name: str, *, created: float | None = None, result: str | None = "success") -> records.Run:
    """A run that was recorded, and with `result` ended."""
    run = records.Run(
        id=name,
        path=directory / name,
        created=time.time() if created is None else created,
        backend="local",
        command=("a b.py", "--x"),
        plan={"nodes": [{"node_rank": 0, "host": "h", "workers": 1}], "min_nodes": 1, "grace_s": 1.0},
    )
    records.create(run)
    if result:
        records.finish(run, {"state": result, "exit_code": 0, "cause": None, "nodes": []})
    return run


def test_an_id_is_a_dns_label() -> None:
    ids = {directories.new_id("a" * 32) for _ in range(50)}

    assert len(ids) > 45, "of one second, in which two of 50 may be equal by chance"
    assert all(len(name) <= 63 and re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) for name in ids)


def test_a_run_is_read_as_it_was_written_and_is_private(tmp_path: Path) -> None:
    made = make(tmp_path, "train-20250101-000000-abcd", result=None)
    submitted = records.record_handle(made, {"run_dir": str(made.path), "task": 5})

    assert directories.read(tmp_path, made.id) == submitted
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    assert sorted(path.name for path in made.path.iterdir()) == ["run.json"]


@pytest.mark.parametrize("number", ["9" * 400, "9" * 18, "-1", "1e999", "NaN", '"x"'])
def test_times_that_no_clock_has_count_as_missing(tmp_path: Path, number: str) -> None:
    made = make(tmp_path, "train-20250101-000000-abcd", created=77.5, result=None)
    path = made.path / "run.json"
    path.write_text(path.read_text().replace("77.5", number).replace('"grace_s": 1.0', f'"grace_s": {number}'))

    read = directories.read(tmp_path, made.id)

    assert (read.created, read.grace_s, read.damaged) == (0.0, 30.0, "")


def test_the_first_result_stays(tmp_path: Path) -> None:
    run = make(tmp_path, "train-20250101-000000-abcd")

    assert not records.finish(run, {"state": "failed"})
    assert run.result is not None
    assert run.result["state"] == "success"


def test_a_run_is_found_by_id_prefix_part_and_as_the_last(tmp_path: Path) -> None:
    names = ["train-20250101-000000-abcd", "train-20250102-000000-abce", "eval-20250101-120000-qqqq"]
    for name in names:
        make(tmp_path, name)

    assert directories.find(tmp_path, names[0]).id == names[0]
    assert directories.find(tmp_path, "train-20250101").id == names[0]
    assert directories.find(tmp_path, "qqqq").id == names[2]
    assert directories.find(tmp_path, "last").id == names[1]


def test_runs_of_one_second_are_in_the_order_in_which_they_were_launched(tmp_path: Path) -> None:
    names = [f"b-20250101-12000{end}" for end in ("0-zzzz", "0-aaaa", "1-cccc", "1-bbbb")]
    for number, name in enumerate(names):
        make(tmp_path, name, created=100.0 + number)

    assert directories.find(tmp_path, "last").id == names[-1]
    assert [run.id for run, _ in listing.states(tmp_path)] == names
    assert [run.id for run, _ in listing.states(tmp_path, limit=1)] == names[-1:]


@pytest.mark.parametrize("command", [("status", "last"), ("logs", "last"), ("ls",)], ids=lambda words: words[0])
def test_commands_that_look_at_a_failed_run_succeed(distlaunch: Cli, command: tuple[str, ...]) -> None:
    run = make(distlaunch.runs, "train-20250101-000000-abcd", result=None)
    records.finish(run, {"state": "failed", "exit_code": 1, "cause": None, "nodes": []})

    assert distlaunch(*command).exit_code == 0


def test_an_ambiguous_or_unknown_id_lists_candidates(tmp_path: Path) -> None:
    for name in ("train-20250101-000000-abcd", "train-20250102-000000-abce"):
        make(tmp_path, name)

    with pytest.raises(RunNotFoundError, match="matches 2 runs") as ambiguous:
        directories.find(tmp_path, "train")
    with pytest.raises(RunNotFoundError, match="no run 'trian-2025'") as unknown:
        directories.find(tmp_path, "trian-2025")

    assert str(ambiguous.value.hint).startswith("train-20250102-000000-abce, train-20250101")
    assert "train-20250102-000000-abce" in str(unknown.value.hint)


@pytest.mark.parametrize("text", ["", "../x", "/", ".", "x\n"])
def test_odd_texts_are_not_a_run(tmp_path: Path, text: str) -> None:
    make(tmp_path, "train-20250101-000000-abcd")

    with pytest.raises(RunNotFoundError):
        directories.find(tmp_path, text)


@pytest.mark.parametrize(
    "content",
    [None, "", "{", "[]", "{}", '{"backend": 3, "command": "x", "plan": [], "created": "now"}', "[" * 100_000],
)
def test_a_damaged_directory_is_listed_as_unknown(distlaunch: Cli, content: str | None) -> None:
    make(distlaunch.runs, "train-20250101-000000-abcd")
    (distlaunch.runs / "Foreign directory").mkdir()
    (distlaunch.runs / "a file").write_text("x")
    if content is not None:
        (distlaunch.runs / "Foreign directory" / "run.json").write_text(content)

    listed = distlaunch("ls", "--output", "json").json["result"]["runs"]

    assert {run["run"]: run["state"] for run in listed} == {
        "train-20250101-000000-abcd": "success",
        "Foreign directory": "unknown",
    }
    assert distlaunch("status", "Foreign").exit_code == 0
    assert distlaunch("logs", "Foreign").exit_code == 0
    assert distlaunch("cancel", "Foreign").exit_code == 2


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"backend": "local", "handle": 5}', '{"backend": "local", "handle": "x"}']
)
@pytest.mark.parametrize("name", ["Foreign directory", "train-20250101-000000-abcd"])
def test_a_run_that_cannot_be_read_is_not_taken_for_one_that_never_existed(
    distlaunch: Cli, content: str, name: str
) -> None:
    """Launched anew, as `requeue` might suggest, it would run twice."""
    path = distlaunch.write(f"runs/{name}/run.json", content)

    for command in ("requeue", "cancel"):
        done = distlaunch(command, name)
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"{name} cannot be read as a run: run.json " in done.stderr
        assert str(path.parent) in done.stderr
        assert "launch" not in done.stderr.replace("distlaunch", "")
    missing = distlaunch("status", "nope")
    assert "there are no runs" not in missing.stderr
    assert name in missing.stderr, "which ls lists"
    told = distlaunch("status", name).stdout
    assert "1970" not in told
    assert ("created  -\n" in told) == (name == "Foreign directory")
    assert (distlaunch("status", name, "--output", "json").json["result"]["created"] is None) == (
        name == "Foreign directory"
    )
    assert [item.name for item in path.parent.iterdir()] == ["run.json"], "nothing is written about it"


def test_a_run_whose_plan_is_damaged_inside_does_not_break_the_listing(distlaunch: Cli) -> None:
    run = make(distlaunch.runs, "train-20250101-000000-abcd", result=None)
    values = json.loads((run.path / "run.json").read_text())
    values |= {"plan": {"nodes": [3, None], "min_nodes": "x"}, "handle": {"nonsense": 1}}
    (run.path / "run.json").write_text(json.dumps(values))

    assert distlaunch("ls").exit_code == 0


def test_a_run_that_was_never_submitted_becomes_unknown(tmp_path: Path) -> None:
    young = make(tmp_path, "a-20250101-000000-abcd", result=None)
    old = make(tmp_path, "b-20250101-000000-abcd", created=time.time() - 3600, result=None)

    assert [found and found["state"] for found in map(status.current, (young, old))] == ["pending", "unknown"]


def test_a_file_is_never_seen_half_written(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    storage.write_whole(path, b"old")
    with pytest.raises(StorageError, match="cannot write"):
        storage.write_whole(tmp_path / "none" / "x.json", b"new")
    with path.open("rb") as reader:
        storage.write_whole(path, b"new")
        assert reader.read() == b"old", "a reader that opened it before reads all that was there"

    assert path.read_bytes() == b"new"
    assert [item.name for item in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    "env", [{"DISTLAUNCH_RUNS_DIR": None, "HOME": "/proc"}, {"DISTLAUNCH_RUNS_DIR": None, "HOME": None}]
)
def test_without_a_directory_for_runs_the_error_names_what_to_set(distlaunch: Cli, env: dict[str, str | None]) -> None:
    distlaunch.write("x.py", "")

    done = distlaunch("local", "x.py", env=env)

    assert done.exit_code == 4
    assert "error[storage]" in done.stderr
    assert "DISTLAUNCH_RUNS_DIR" in done.stderr


def test_a_full_disk_is_reported_and_leaves_nothing(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")

    done = distlaunch("local", "x.py", env={"DISTLAUNCH_RUNS_DIR": "/dev/full/runs"})

    assert done.exit_code == 4
    assert "error[storage]: cannot write '/dev/full/runs" in done.stderr


def no_such_thing(*_: object, **__: object) -> None:
    """How an object store's mount answers a hard link."""
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("lacking", [("link",), ("link", "replace", "rename")])
def test_without_hard_links_the_first_result_stays_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, ...]
) -> None:
    for name in lacking:
        monkeypatch.setattr(os, name, no_such_thing)
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: records.finish(run, {"state": "success", "writer": number}), range(8)))

    assert won.count(True) == 1
    assert (run.result or {})["writer"] == won.index(True)
    assert not records.finish(run, {"state": "failed"})
    assert sorted(path.name for path in run.path.iterdir()) == ["result.json", "run.json"]
    with pytest.raises(StorageError):
        records.create(run)
    assert [path.name for path in tmp_path.iterdir()] == [run.id]


NO_LINKS = """
import errno, os
def none(*_, **__):
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
os.link = none
"""


def test_a_run_on_a_file_system_without_hard_links_ends_with_its_result(distlaunch: Cli) -> None:
    """In the launcher, and in its agents, of which one exits before the other has found it."""
    distlaunch.write("site/sitecustomize.py", NO_LINKS)
    distlaunch.write("x.py", "raise SystemExit(3)\n")
    found = os.pathsep.join([str(distlaunch.directory / "site"), distlaunch.env()["PYTHONPATH"]])

    done = distlaunch("local", "--nodes", "2", "x.py", env={"PYTHONPATH": found}, real=True)

    assert done.exit_code == 1, done.stderr
    assert "warning" not in done.stderr, done.stderr
    state = distlaunch("status", "last", "--output", "json").json["result"]
    assert state["state"] == "failed"
    (directory,) = distlaunch.runs.iterdir()
    assert (directory / "result.json").exists()
