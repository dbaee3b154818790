"""An agent collects garbage once it has started, and never looks at what it was started with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed import wait_until

if TYPE_CHECKING:
    from tests.command import Cli

HOOK = """
import atexit, gc, sys

early = 0

def look(phase, _about):
    global early
    early += phase == "start" and "distlaunch_agent.job" in sys.modules and not gc.get_freeze_count()

def note():
    if "--spec" in sys.argv:
        with open({path!r}, "w") as file:
            print(gc.isenabled(), gc.get_freeze_count() > 5000, early, file=file)

gc.callbacks.append(look)
atexit.register(note)
"""


def test_an_agent_collects_garbage_only_from_what_comes_after_its_start(distlaunch: Cli) -> None:
    told = distlaunch.directory / "told"
    distlaunch.write("hooks/sitecustomize.py", HOOK.format(path=str(told)))
    distlaunch.write("none.py", "")

    run = distlaunch("local", "--contract", "env", "none.py", env={"PYTHONPATH": str(distlaunch.directory / "hooks")})

    assert run.exit_code == 0, run
    wait_until("the agent to have left", lambda: told.exists() and told.read_text().endswith("\n"))
    assert told.read_text().split() == ["True", "True", "0"], "enabled, frozen, collections before"
