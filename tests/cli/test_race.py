"""A run on two clusters, both of them this machine: what is left when its launcher or its tries are gone."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.command import Cli

CLUSTERS = "[clusters.a]\nbackend = 'local'\n[clusters.b]\nbackend = 'local'\n"


def test_a_run_whose_tries_were_never_created_has_ended_and_attach_does_not_wait(distlaunch: Cli) -> None:
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

    attached = distlaunch("attach", "last", timeout_s=60)

    assert attached.exit_code == 4, attached.stderr
    assert "no cluster is left" in attached.stderr
    assert distlaunch("status", "last", "--output", "json").json["result"]["state"] == "failed"


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
