"""A run is found by its scheduler's id, too, which texts and JSON show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.errors import RunNotFoundError
from launcher.runs import directories, lock, records

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.runs.handle import Handle
    from tests.command import Cli


def make(directory: Path, run_id: str, backend: str, job: str, tasks: tuple[int, ...] = ()) -> None:
    """A submitted run with that job id."""
    path = directory / run_id
    handle: Handle = {"run_dir": str(path), "job_id": job}
    plan = {"nodes": [{"node_rank": 0, "host": "n1", "workers": 1}], "tasks": list(tasks)}
    run = records.Run(id=run_id, path=path, created=1.0, backend=backend, command=("t.py",), plan=plan, handle=handle)
    records.create(run)
    for each in (run, *map(run.task, run.tasks)):
        each.path.mkdir(parents=True, exist_ok=True)
        records.finish(each, {"state": "success", "exit_code": 0, "nodes": []})


def test_a_run_is_found_by_the_id_of_its_job_the_newest_first(distlaunch: Cli) -> None:
    for stamp, job in (("20250101-101010", "4711"), ("20250103-101010", "4711"), ("20250104-474711", "17")):
        make(distlaunch.runs, f"train-{stamp}-abcd", "slurm", job)

    for text in ("4711", "slurm:4711"):
        found = distlaunch("status", text, "--output", "json").json["result"]
        assert (found["run"], found["job_id"]) == ("train-20250103-101010-abcd", "4711"), (
            "no part of an id, not the old"
        )
    assert "job      4711" in distlaunch("status", "4711").stdout
    assert [run["job_id"] for run in distlaunch("ls", "--output", "json").json["result"]["runs"]] == ["4711"] * 2 + [
        "17"
    ]


def test_the_last_run_is_the_one_that_was_started_last_in_whatever_time_zone(distlaunch: Cli) -> None:
    """The directory of runs may be seen from a container, or from login nodes of two sites."""
    for zone in ("EAST-14", "WEST12"):
        run = distlaunch("local", "-d", "--no-python", "true", env={"TZ": zone}).stdout.strip()

        for here in ("EAST-14", "WEST12"):
            shown = distlaunch("status", "last", "--output", "json", env={"TZ": here}).json["result"]
            (listed,) = distlaunch("ls", "-n", "1", "--output", "json", env={"TZ": here}).json["result"]["runs"]
            assert (shown["run"], listed["run"]) == (run, run)


def test_a_task_is_found_by_the_id_that_its_scheduler_shows(distlaunch: Cli) -> None:
    make(distlaunch.runs, "sweep-20250101-101010-abcd", "slurm", "80", tasks=(0, 3))

    found = distlaunch("status", "80_3", "--output", "json").json["result"]
    assert (found["run"], found["job_id"]) == ("sweep-20250101-101010-abcd/3", "80_3")
    assert distlaunch("status", "80", "--output", "json").json["result"]["run"] == "sweep-20250101-101010-abcd"


@pytest.mark.parametrize("text", ["k8s:4711", "slurm:4712", "4712"])
def test_an_unknown_job_is_an_unknown_run(distlaunch: Cli, text: str) -> None:
    make(distlaunch.runs, "train-20250101-101010-abcd", "slurm", "4711")

    found = distlaunch("status", text)
    assert found.exit_code == 2
    assert f"no run '{text}'" in found.stderr


def test_ls_says_how_many_nodes_a_run_really_has(distlaunch: Cli) -> None:
    """Over SSH without --nodes, all hosts of the inventory take part."""
    path = distlaunch.runs / "train-20250101-101010-abcd"
    nodes = [{"node_rank": rank, "host": f"n{rank}", "workers": 1} for rank in range(3)]
    run = records.Run(id=path.name, path=path, created=1.0, backend="ansible", nodes="1", plan={"nodes": nodes})
    records.create(run)
    records.finish(run, {"state": "success", "exit_code": 0, "nodes": []})

    (found,) = distlaunch("ls", "--output", "json").json["result"]["runs"]
    assert found["nodes"] == "3"
    assert directories.is_id(found["run"])


@pytest.mark.parametrize("index", ["²", "٣", "9" * 5000, "", "-1"])
def test_what_is_no_number_of_a_task_is_an_error_that_says_so(tmp_path: Path, index: str) -> None:
    name = "train-20250101-000000-abcd"
    make(tmp_path, name, "slurm", "7", (0, 3))

    with pytest.raises(RunNotFoundError, match=f"{name} has no task"):
        directories.find(tmp_path, f"{name}/{index}")


def test_a_foreign_file_with_an_odd_number_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock-²").touch()
    with lock.hold(tmp_path, "requeue"):
        assert (tmp_path / "lock-1").exists()


def test_a_run_is_read_again_without_a_look_at_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for letter in "abc":
        make(tmp_path, f"train-20250101-000000-abc{letter}", "slurm", letter)
    runs = [directories.read(tmp_path, name) for name in directories.ids(tmp_path)]
    looks: list[Path] = []

    def ids(directory: Path) -> list[str]:
        looks.append(directory)
        return [run.id for run in runs]

    monkeypatch.setattr(directories, "ids", ids)
    assert [directories.again(run).id for run in runs] == [run.id for run in runs]
    assert looks == []
