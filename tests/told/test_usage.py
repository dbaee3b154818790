"""What a run has used, and the links that its script prints: in `status` and `ls --usage`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.command import Cli

BUSY = """
import os, sys, time
held = bytearray(64 << 20)
if os.environ["RANK"] == "0":
    link = "\\x1b[34mhttps://wandb.ai/me/p/runs/7\\x1b[0m"
    print(f"wandb: \\x1b[1mView run\\x1b[0m \\x1b[34mfine-sun-7\\x1b[0m at: {link}", file=sys.stderr)
    print("\\U0001f3c3 View run calm-owl at: http://127.0.0.1:5000/#/experiments/0/runs/1f", flush=True)
until = time.process_time() + 3
while time.process_time() < until:
    pass
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""


def test_status_and_ls_have_what_a_run_has_used(distlaunch: Cli) -> None:
    distlaunch.write("busy.py", BUSY)
    done = distlaunch("local", "--samples", "1", "--max-restarts", "1", "--nproc-per-node", "1", "busy.py")
    assert done.exit_code == 0, done.stderr

    status = distlaunch("status", "last", "--output", "json").json["result"]
    shown = distlaunch("status", "last").stdout
    listed = distlaunch("ls", "--usage", "--output", "json").json["result"]["runs"]
    table = distlaunch("ls", "--usage").stdout

    usage = status["usage"]
    assert usage["ran_s"] >= 6
    assert usage["restarts"] == 1
    assert 0 < usage["lost_s"] < usage["ran_s"]
    assert usage["gpus"] == usage["gpu_hours"] == 0
    assert 0 < usage["cpu_use"] <= 100
    assert 64 << 20 < usage["memory_peak_bytes"] < usage["memory_bytes"]
    assert usage["whole"]
    assert listed[0]["usage"] == usage
    assert "lost by 1 restart" in shown
    assert table.split()[:3] == ["RUN", "STATE", "WAITED"]
    assert f"{usage['cpu_use']:.0f} %" in table
    assert status["links"] == ["http://127.0.0.1:5000/#/experiments/0/runs/1f", "https://wandb.ai/me/p/runs/7"]
    assert "link     https://wandb.ai/me/p/runs/7" in shown


def test_without_samples_the_rest_is_known(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    assert distlaunch("local", "--samples", "0", "x.py").exit_code == 0

    usage = distlaunch("status", "last", "--output", "json").json["result"]["usage"]

    assert usage["ran_s"] > 0
    assert usage["cpu_use"] is None
    assert usage["memory_peak_bytes"] is None


@pytest.mark.parametrize("text", ["View run at nowhere", "see https://wandb.ai/me/p/runs/7", "View run at ftp://x/y"])
def test_other_lines_are_no_links(distlaunch: Cli, text: str) -> None:
    distlaunch.write("x.py", f"print({text!r})")
    distlaunch("local", "x.py")

    assert distlaunch("status", "last", "--output", "json").json["result"]["links"] == []


def test_usage_is_not_known_of_runs_that_a_cluster_lists(distlaunch: Cli) -> None:
    done = distlaunch("ls", "--usage", "--on", "local")

    assert done.exit_code == 2
    assert "--usage and --on exclude each other" in done.stderr


def test_the_users_own_ids_win_and_trackers_can_be_switched_off(distlaunch: Cli) -> None:
    names = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RUN_GROUP", "MLFLOW_RUN_CONTEXT")
    distlaunch.write("x.py", f"import os\nfor name in {names}: print(name, os.environ.get(name))")
    clean: dict[str, str | None] = dict.fromkeys(names)

    def lines(*options: str, **own: str) -> dict[str, str]:
        done = distlaunch("local", *options, "x.py", env={**clean, **own})
        assert done.exit_code == 0, done.stderr
        return dict(line.split(" ", 1) for line in done.stdout.splitlines())

    mine = lines("--env", "WANDB_RUN_GROUP=ours", WANDB_RUN_ID="mine")
    assert (mine["WANDB_RUN_ID"], mine["WANDB_RESUME"], mine["WANDB_RUN_GROUP"]) == ("mine", "None", "ours")
    assert lines(WANDB_SWEEP_ID="s")["WANDB_RUN_ID"] == "None"
    group = lines("--tracking", "group")
    assert group["WANDB_RUN_ID"] == "None"
    assert group["WANDB_RUN_GROUP"].startswith("x-")
    assert set(lines("--tracking", "off").values()) == {"None"}
    explained = distlaunch("local", "--explain", "x.py", env=clean).stderr
    assert "WANDB_RUN_ID=x-" in explained
    assert "different for each rank" in explained


def test_a_run_that_is_started_again_keeps_its_ids(distlaunch: Cli) -> None:
    distlaunch.write(
        "x.py", "import os, sys\nprint(os.environ['WANDB_RUN_ID'])\nsys.exit('DISTLAUNCH_ATTEMPT' not in os.environ)"
    )
    codes = [distlaunch(*words).exit_code for words in (("local", "x.py"), ("requeue", "last"), ("wait", "last"))]

    said = map(json.loads, distlaunch("logs", "last", "--output", "jsonl").stdout.splitlines())
    run = next(distlaunch.runs.iterdir()).name
    assert codes == [1, 0, 0]
    assert [each["text"] for each in said if each["type"] == "line"] == [run, run]
