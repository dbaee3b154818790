"""What a report has, whatever the run is like."""

from __future__ import annotations

import errno
import json
import re
import signal
from typing import TYPE_CHECKING

import pytest

from benchmarks._recorded import Recorded
from launcher.pages import curves
from launcher.runs.tails import StreamSearch
from tests.reports.conftest import content, page_of

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.results.report import Point
    from tests.command import Cli


def test_a_failed_run_is_reported_with_its_cause_rounds_lines_settings_and_command(reporter: Cli) -> None:
    failed = reporter("local", "--nodes", "2", "--nproc-per-node", "2", "--max-restarts", "1", "work.py", "fail")
    assert failed.exit_code == 1

    report = content(reporter, "last")

    assert re.fullmatch(r"Failed after \d+\.\d s, 1 restart", report["verdict"])
    assert report["explanation"][0] == "the script failed: ValueError: this batch is bad"
    assert report["explanation"][-1] == "ValueError: this batch is bad"
    assert [(each["round"], each["world_size"]) for each in report["rounds"]] == [(0, 4), (1, 4)]
    assert {each["ended_by"] for each in report["rounds"]} == {"ValueError: this batch is bad"}
    assert [each["kind"] for each in report["moments"]] == ["start", "restart", "failure", "end"]
    assert report["logs"][0]["rank"] == 1
    assert report["logs"][0]["lines"][-1] == {"stderr": True, "text": "ValueError: this batch is bad"}
    assert {"stderr": False, "text": "step 29 of rank 1"} in report["logs"][0]["lines"]
    assert sorted(log["rank"] for log in report["logs"]) == [0, 1, 2, 3]
    assert report["settings"]["max_restarts"] == {"value": 1, "source": "flag"}
    assert report["settings"]["contract"] == {"value": "torchrun", "source": "default"}
    again = "distlaunch local --nodes 2 --nproc-per-node 2 --max-restarts 1 work.py fail"
    assert report["reproduce"] == f"cd {reporter.directory} && {again}"
    assert report["samples"] == []


def test_the_start_up_of_each_node_has_its_phases_and_names_the_slow_node(reporter: Cli) -> None:
    assert reporter("local", "--nodes", "3", "--nproc-per-node", "1", "work.py", "slow").exit_code == 0

    report = content(reporter, "last")

    for node in report["startup"]["nodes"]:
        names = [phase["name"] for phase in node["phases"]]
        assert names == ["queue", "agent", "import", "rendezvous", "workers", "first line"]
        edges = [edge for phase in node["phases"] for edge in (phase["start"], phase["end"])]
        assert edges == sorted(edges)
    slow = [(each["title"], each["nodes"]) for each in report["observations"]]
    assert slow == [("Slow start of one node", [2])]
    assert re.search(r"\(node 2\) took 3\.\d s in the script, before its first line", report["startup"]["slowest"])


def test_progress_and_samples_are_in_it(reporter: Cli) -> None:
    done = reporter("local", "--samples", "1", "--nproc-per-node", "2", "work.py", "tell")
    assert done.exit_code == 0, done.stderr

    report = content(reporter, "last")
    page = page_of(reporter, "last").read_text()

    assert report["progress_curves"][0]["points"][-1] == {
        "time": report["progress_curves"][0]["points"][-1]["time"], "step": 4, "loss": 1.0
    }  # fmt: skip
    assert {"cpu", "memory"} <= {each["name"] for each in report["samples"]}
    assert "Loss of rank 0: 1 at the end, step 4" in page
    assert "CPU use" in page


@pytest.mark.parametrize(
    ("losses", "text"), [((2.0, 0.5), "0.5 at the end, step 2"), ((0.5, None), "0.5, step 1; no number since")]
)
def test_a_loss_that_is_no_number_any_more_is_not_that_of_the_end(losses: tuple[float | None, ...], text: str) -> None:
    points: list[Point] = [{"time": step, "step": step, "loss": loss} for step, loss in enumerate(losses, 1)]

    assert curves.loss_text({"rank": 0, "points": points}) == f"Loss of rank 0: {text}"


def test_a_run_in_progress_is_reported_as_it_is_now(reporter: Cli) -> None:
    with reporter.start("local", "--nproc-per-node", "2", "work.py", "wait") as process:
        assert process.stdout is not None
        assert any(b"step 29" in line for line in process.stdout)

        report = content(reporter, "last")
        text = reporter("report", "last", "--format", "md").stdout

        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert report["state"] == "running"
    assert report["verdict"].startswith("Running for ")
    assert report["rounds"][0]["end"] == pytest.approx(report["made"], abs=1)
    assert text.startswith("# Running for ")


def test_a_damaged_stream_and_a_missing_one_leave_the_rest(reporter: Cli) -> None:
    assert reporter("local", "--nodes", "2", "--nproc-per-node", "1", "work.py").exit_code == 0
    (run,) = reporter.runs.iterdir()
    whole = (run / "nodes/0/stream").read_bytes()
    cut = whole.index(b"step 20")
    (run / "nodes/0/stream").write_bytes(b'\xff\x00{"event":"\n{"event":7}\n' + whole[:cut])
    (run / "nodes/1/stream").unlink()

    report = content(reporter, "last")
    page = page_of(reporter, "last").read_text()

    assert report["logs"][0]["lines"][-1]["text"] == ""  # the beginning of the line with the colour
    assert report["logs"][0]["lines"][-2]["text"] == "step 19 of rank 0"
    assert report["missing"] == ["node 1: nothing has been received"]
    assert "node 1: nothing has been received" in page


def test_a_run_of_an_earlier_version_has_no_settings_and_the_rest(reporter: Cli) -> None:
    assert reporter("local", "work.py").exit_code == 0
    (run,) = reporter.runs.iterdir()
    record = json.loads((run / "run.json").read_text())
    del record["settings"]
    (run / "run.json").write_text(json.dumps(record))

    report, page = content(reporter, "last"), page_of(reporter, "last").read_text()

    assert report["settings"] == {}
    assert report["verdict"].startswith("Success after ")
    assert "This run did not record its settings" in page
    assert "This run has no samples" in page


@pytest.mark.slow
def test_a_day_of_64_ranks_fits_into_half_a_megabyte_and_has_what_stands_out(reporter: Cli) -> None:
    run = Recorded(hours=24, lines_per_rank=300)
    run.write(reporter.runs)

    report, page = content(reporter, run.name), page_of(reporter, run.name)

    assert page.stat().st_size <= 500_000
    titles = {each["title"]: each["nodes"] for each in report["observations"]}
    assert titles == {
        "Idle GPUs": [5],
        "Network, received: one node stands out": [3],
        "Network, sent: one node stands out": [3],
        "Slow start of one node": [7],
    }
    assert len(report["logs"]) == 64
    assert "5 min 12 s of 5 min 51 s passed before the first agent started" in report["startup"]["slowest"]


def test_the_format_is_that_of_the_option_or_of_the_files_name(reporter: Cli) -> None:
    assert reporter("local", "--name", "named", "work.py").exit_code == 0
    (run,) = reporter.runs.iterdir()

    default = reporter("report", "last")
    by_name = reporter("report", "last", "-o", "issue.md", "--output", "json")
    on_stdout = reporter("report", "last", "-o", "-", "--format", "html")
    in_directory = reporter("report", "last", "-o", "runs", "--format", "json")

    path = reporter.directory / f"{run.name}.html"
    assert default.stdout == f"{path}: {round(path.stat().st_size / 1000)} KB\n"
    assert path.read_text().startswith("<!doctype html>")
    assert by_name.json["result"]["format"] == "md"
    assert (reporter.directory / "issue.md").read_text().startswith("# Success after ")
    assert on_stdout.stdout.startswith("<!doctype html>")
    assert in_directory.exit_code == 0
    assert json.loads((reporter.runs / f"{run.name}.json").read_text())["run"] == run.name


def test_bad_input_is_one_clear_error(reporter: Cli, tmp_path: Path) -> None:
    assert reporter("local", "work.py").exit_code == 0
    (tmp_path / "without").mkdir()
    (tmp_path / "without/drawsvg.py").write_text("raise ModuleNotFoundError(name='drawsvg')\n")
    lacks: dict[str, str | None] = {"PYTHONPATH": f"{tmp_path / 'without'}:{reporter.env()['PYTHONPATH']}"}

    for words, told in {
        ("last", "--format", "pdf"): "error[bad_request]: format 'pdf' is not known\n  hint: known: html, md, json\n",
        ("last", "-o", "/dev/null"): "error[bad_request]: '/dev/null' is not a file\n  hint: -o - writes to stdout\n",
        ("last", "-o", "none/x.html"): "error[storage]: cannot write 'none/x.html': No such file or directory\n",
        ("other",): "error[run_not_found]: no run 'other'",
    }.items():
        done = reporter("report", *words)
        assert done.exit_code in (2, 4)
        assert done.stderr.startswith(told)
    missing = reporter("report", "last", env=lacks, real=True)
    assert missing.exit_code == 4
    assert "a report as HTML needs drawsvg, which is not installed" in missing.stderr
    assert "[html]" in missing.stderr
    assert reporter("report", "last", "--format", "md", env=lacks, real=True).exit_code == 0


def test_a_full_disk_leaves_no_half_file(small_disk: Path, reporter: Cli) -> None:
    run = Recorded(lines_per_rank=300)
    run.write(reporter.runs)
    with (small_disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 65536):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - it is what ends the loop

    done = reporter("report", run.name, "-o", str(small_disk / "run.html"))

    assert done.exit_code == 4
    assert done.stderr == f"error[storage]: cannot write '{small_disk}/run.html': No space left on device\n"
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_last_lines_are_found_however_a_stream_is_split() -> None:
    events = b'{"event":"rendezvous","time":1,"node":0,"ranks":[0,1,10]}\n{"event":"heartbeat","time":2,"node":0}\n'
    lines = b"0.1| one\n0.10! ten\n0.1|+par\n0.0| zero\n0.1| t\n1.1| of another node\nforeign 0.1| no\n" * 50
    data = events + lines + b"0.0| cut off"
    for size in (1, 7, 4096, len(data)):
        search = StreamSearch(0, 3)
        found = [event for at in range(0, len(data), size) for event in search.feed(data[at : at + size])]
        found += search.close()

        assert [event.name for event in found] == ["rendezvous"]
        assert {rank: [line.text for line in kept] for rank, kept in search.lines().items()} == {
            0: [b"zero", b"zero", b"cut off"],
            1: [b"one", b"part"],
            10: [b"ten"] * 3,
        }
        assert all(line.stderr for line in search.lines()[10])
