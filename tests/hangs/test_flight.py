"""After a timeout, the flight recorders of all ranks name the collective that one of them never called.

There is no GPU here: `as_nccl.py` writes the dumps of gloo's recorder as NCCL does. NVML is one that counts GPUs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.command import Cli, Result

pytestmark = pytest.mark.torch
AS_NCCL = Path(__file__).with_name("as_nccl.py")
NVML = "int nvmlInit_v2(void){return 0;} int nvmlDeviceGetCount_v2(unsigned *count){*count = 2; return 0;}"
NAMES = {
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
}


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that counts two GPUs, and does nothing else."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    library = ["cc", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "-x", "c", "-"]
    subprocess.run(library, input=NVML, text=True, check=True, cwd=tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


def launch(distlaunch: Cli, how: str, *words: str, timeout_s: int = 4) -> Result:
    script = distlaunch.write("as_nccl.py", AS_NCCL.read_text())
    fixed = ("--samples", "0", "--grace", "2s", "--output", "json")
    return distlaunch(
        "local", *fixed, *(words or ("--nodes", "2", "--nproc-per-node", "2")), str(script), how, str(timeout_s)
    )


def events(distlaunch: Cli, name: str) -> list[dict[str, Any]]:
    """Those of the only run, of all nodes."""
    lines = [line for stream in distlaunch.runs.glob("*/nodes/*/stream") for line in stream.read_text().splitlines()]
    found = [json.loads(line) for line in lines if line.startswith('{"event"')]
    return [each for each in found if each["event"] == name]


def variables(distlaunch: Cli) -> dict[str, str]:
    (contract,) = events(distlaunch, "contract")
    return {each["name"]: each["value"] for each in contract["variables"] if each["name"].startswith("TORCH_")}


@pytest.mark.usefixtures("gpus")
def test_the_cause_names_the_rank_and_the_collective_that_it_never_called(distlaunch: Cli) -> None:
    run = launch(distlaunch, "late")

    cause = run.json["result"]["cause"]
    host = run.json["result"]["nodes"][1]["host"]
    assert (cause["class"], cause["rank"]) == ("collective", 3)
    assert f"rank 3 ({host}) never called all_reduce #17 (as_nccl.py:" in cause["message"], cause["message"]
    assert "it is in time.sleep() (as_nccl.py:" in cause["message"]
    (event,) = events(distlaunch, "flight_recorder")
    (finding,) = event["findings"]
    assert (finding["collective"], finding["number"], finding["missing"]) == ("all_reduce", 17, [3])
    (directory,) = distlaunch.runs.glob("*")
    report = json.loads(distlaunch("report", directory.name, "--format", "json").stdout)
    (told,) = [each["detail"] for each in report["observations"] if each["title"] == "The flight recorder"]
    assert "never called all_reduce #17" in told
    assert event["files"][0] in told
    dumps = sorted(str(path.relative_to(directory)) for path in directory.glob("nodes/*/flight/*/*"))
    assert dumps == [f"nodes/{rank // 2}/flight/0-0/rank_{rank}" for rank in range(4)]
    assert [name.partition(":")[2] for name in event["files"]] == [
        f"{directory}/nodes/{at}/flight/0-0/rank_*" for at in (0, 1)
    ]


@pytest.mark.usefixtures("gpus")
def test_a_rank_that_calls_another_collective_is_named_though_all_ranks_time_out(distlaunch: Cli) -> None:
    run = launch(distlaunch, "other")

    cause = run.json["result"]["cause"]
    assert (cause["class"], cause["rank"]) == ("collective", 3)
    assert "called broadcast (as_nccl.py:" in cause["message"]
    assert "where the others called all_reduce #17 (as_nccl.py:" in cause["message"]


@pytest.mark.usefixtures("gpus")
def test_the_cause_which_all_nodes_get_names_the_dumps_of_one_if_nothing_was_found(distlaunch: Cli) -> None:
    run = launch(distlaunch, "p2p", "--nodes", "3", "--nproc-per-node", "1")

    (event,) = events(distlaunch, "flight_recorder")
    assert len(event["files"]) == 3
    message = run.json["result"]["cause"]["message"]
    assert message.endswith(f"nothing was found; see {event['files'][0]} and 2 more"), message


@pytest.mark.usefixtures("gpus")
def test_a_hang_that_ends_the_run_has_the_dumps_for_which_the_watchdog_asks(distlaunch: Cli) -> None:
    run = launch(
        distlaunch,
        "late",
        "--nodes",
        "2",
        "--nproc-per-node",
        "2",
        "--hang-after",
        "3s",
        "--on-hang",
        "end",
        timeout_s=300,
    )

    cause = run.json["result"]["cause"]
    assert (cause["class"], cause["rank"]) == ("no_progress", 3), cause
    assert "flight recorder: rank 3 " in cause["message"]
    assert "never called all_reduce #17 (as_nccl.py:" in cause["message"]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("half", "it is no dump, or not all of one"),
        ("hostile", "it holds code: os.system"),
        ("huge", "it has more than 64 MiB"),
    ],
)
def test_a_dump_that_cannot_be_read_is_named_and_the_others_count(distlaunch: Cli, how: str, why: str) -> None:
    run = launch(distlaunch, how)

    cause = run.json["result"]["cause"]
    assert cause["rank"] == 3
    assert "never called all_reduce #17 (as_nccl.py:" in cause["message"], cause["message"]
    (event,) = events(distlaunch, "flight_recorder")
    (problem,) = event["problems"]
    assert "nodes/0/flight/0-0/rank_0: " in problem
    assert why in problem
    assert not list(distlaunch.runs.parent.rglob("hacked"))


@pytest.mark.usefixtures("gpus")
def test_a_rank_that_could_not_write_its_dump_is_named(distlaunch: Cli) -> None:
    run = launch(distlaunch, "killed")

    cause = run.json["result"]["cause"]
    assert cause["rank"] == 3
    assert "does not answer: T (stopped); flight recorder: ranks 0, 1, 2 wait in all_reduce #17" in cause["message"]
    assert "there is no dump of rank 3" in cause["message"]


@pytest.mark.usefixtures("gpus")
def test_each_round_has_a_directory_of_its_own(distlaunch: Cli) -> None:
    run = launch(distlaunch, "late", "--nproc-per-node", "2", "--max-restarts", "1")

    assert run.json["result"]["restarts"] == 1
    assert "rank 1" in run.json["result"]["cause"]["message"]
    found = sorted(path.parent.name for path in distlaunch.runs.glob("*/nodes/0/flight/*/rank_1"))
    assert found == ["0-0", "0-1"]


@pytest.mark.usefixtures("gpus")
def test_what_the_user_has_set_stands(distlaunch: Cli, tmp_path: Path) -> None:
    prefix = f"{tmp_path}/own-"
    run = launch(distlaunch, "late", "--nproc-per-node", "2", "--env", f"TORCH_FR_DUMP_TEMP_FILE={prefix}")

    assert "rank 1" in run.json["result"]["cause"]["message"]
    assert "never called all_reduce #17" in run.json["result"]["cause"]["message"]
    assert os.path.exists(f"{prefix}0")
    assert not list(distlaunch.runs.glob("*/nodes/0/flight"))
    assert "TORCH_FR_DUMP_TEMP_FILE" not in variables(distlaunch)


@pytest.mark.usefixtures("gpus")
def test_a_recorder_that_the_user_switches_off_stays_off(distlaunch: Cli) -> None:
    script = distlaunch.write("ends.py", "print('ends')\n")

    assert distlaunch("local", "--env", "TORCH_NCCL_TRACE_BUFFER_SIZE=0", str(script)).exit_code == 0
    assert set(variables(distlaunch)).isdisjoint(NAMES)


@pytest.mark.parametrize("has_gpus", [True, False])
def test_it_is_switched_on_where_workers_see_gpus(
    distlaunch: Cli, request: pytest.FixtureRequest, has_gpus: bool
) -> None:
    if has_gpus:
        request.getfixturevalue("gpus")
    script = distlaunch.write("ends.py", "print('ends')\n")

    assert distlaunch("local", "--nproc-per-node", "1", str(script)).exit_code == 0
    assert NAMES & set(variables(distlaunch)) == (NAMES if has_gpus else set())


WITHIN = """
import os, subprocess, sys
words = [sys.executable, "-m", "launcher", "local", "--nproc-per-node", "1", *sys.argv[1:]]
sys.exit(subprocess.call(words))
"""


@pytest.mark.usefixtures("gpus")
def test_a_run_that_a_worker_starts_has_a_recorder_of_its_own(distlaunch: Cli) -> None:
    distlaunch.write("outer.py", WITHIN)
    distlaunch.write("ends.py", "print('ends')\n")

    done = distlaunch("local", "--nproc-per-node", "1", "outer.py", "--env", "TORCH_FR_BUFFER_SIZE=77", "ends.py")

    assert done.exit_code == 0, done.stderr
    (directory,) = distlaunch.runs.glob("ends-*")
    lines = (directory / "nodes/0/stream").read_text().splitlines()
    (contract,) = (json.loads(line) for line in lines if line.startswith('{"event":"contract"'))
    given = {each["name"]: each["value"] for each in contract["variables"] if each["name"] in NAMES}
    assert set(given) == NAMES - {"TORCH_FR_BUFFER_SIZE"}, "what the user sets stands"
    assert given["TORCH_FR_DUMP_TEMP_FILE"].startswith(f"{directory}/nodes/0/flight/")
