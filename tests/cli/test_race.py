"""A run on two clusters, both of them this machine: what is left when its launcher or its tries are gone."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from launcher import output
from launcher.cli import racing
from launcher.runs import records
from launcher.service.interrupts import Interrupts
from launcher.system.manner import Manner
from tests import envelope
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.results.race import Race
    from launcher.service.race import Contest
    from tests.command import Cli

CLUSTERS = "[clusters.a]\nbackend = 'local'\n[clusters.b]\nbackend = 'local'\n"


@pytest.mark.parametrize("command", ["attach", "wait"])
def test_a_run_whose_tries_were_never_created_has_ended_and_is_not_waited_for(distlaunch: Cli, command: str) -> None:
    """Its launcher was killed between the note of a try and the try."""
    distlaunch.write("system.toml", CLUSTERS)
    distlaunch.write("hello.py", "print('hello')\n")
    done = distlaunch("run", "--on", "a,b", "--start", "first", "hello.py")
    assert (done.exit_code, done.stdout) == (0, "hello\n"), done.stderr
    (run,) = distlaunch.runs.glob("hello-2*")
    (run / "claim.json").unlink()
    shutil.rmtree(run / "tries")
    record = json.loads((run / "run.json").read_text())
    for each in record["race"]["tries"]:
        each.update(granted_at=None, cancelled_at=None, ended_at=None)
    (run / "run.json").write_text(json.dumps(record))

    done = distlaunch(command, "last", timeout_s=60)

    assert done.exit_code == 4, done.stderr
    assert command == "wait" or "no cluster is left" in done.stderr
    assert distlaunch("status", "last", "--output", "json").json["result"]["state"] == "failed"


def test_a_run_of_which_one_try_was_never_created_is_shown(distlaunch: Cli) -> None:
    """Its launcher was killed between the note of a try and the try, while another cluster had the run already."""
    distlaunch.write("system.toml", CLUSTERS)
    distlaunch.write("hello.py", "print('hello')\n")
    assert distlaunch("run", "--on", "a,b", "--start", "first", "hello.py").exit_code == 0
    (run,) = distlaunch.runs.glob("hello-2*")
    record = json.loads((run / "run.json").read_text())
    (lost,) = [each for each in record["race"]["tries"] if not each["granted_at"]]
    lost.update(cancelled_at=None, ended_at=None)
    shutil.rmtree(run / "tries" / lost["run"])
    (run / "run.json").write_text(json.dumps(record))

    shown = distlaunch("status", "last", "--output", "json")

    assert shown.exit_code == 0, shown.stderr
    assert shown.json["result"]["state"] == "success"


def test_a_script_that_ends_at_once_is_not_taken_for_one_that_never_ran(distlaunch: Cli) -> None:
    """Agents claim it themselves, so it may have run before the launcher looks."""
    distlaunch.write("system.toml", CLUSTERS)
    distlaunch.write("hello.py", "open('ran', 'a').write('x')\n")
    for _ in range(5):
        done = distlaunch(
            "run", "--on", "a,b", "--start", "first", "--claim", str(distlaunch.directory / "claims"), "hello.py"
        )
        assert done.exit_code == 0, done.stderr
    assert (distlaunch.directory / "ran").read_text() == "xxxxx"


def test_a_launch_that_is_interrupted_while_it_is_queued_prints_the_run_as_json(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    race: Race = {"start": "first", "limit": 1, "claim": None, "wait_s": 300.0, "asked": [], "tries": []}
    run = records.note_race(make(tmp_path, "hello-20250101-000000-abcd", result=None), race)

    def interrupted(_contest: Contest) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "_manner", Manner())
    output.setup(command="run", fmt="json")
    with pytest.raises(KeyboardInterrupt):
        racing._compete(run, interrupted, Interrupts())

    printed = json.loads(capfd.readouterr().out)
    envelope.check(printed)
    assert (printed["error"]["code"], printed["result"]["run"]) == ("run_cancelled", run.id)
