"""A run that another launcher has started is queued again as it was started, by what its hosts have kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ansible.conftest import Rack
    from tests.command import Result

pytestmark = pytest.mark.ssh


def adopted(rack: Rack, run: str) -> Callable[..., Result]:
    """Adopt the run elsewhere, where the shell is that is returned."""
    elsewhere: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(rack.cli.directory / "elsewhere")}
    hosts = ("--inventory", str(rack.ssh.inventory), "--remote-dir", str(rack.remote))
    done = rack.shell("adopt", run, *hosts, env=elsewhere)
    assert done.exit_code == 0, done.stderr
    return lambda *args: rack.shell(*args, env=elsewhere)


def test_a_template_in_a_hosts_answer_is_not_evaluated_here(rack: Rack) -> None:
    rack.write("ends.py", "")
    run = rack.detached("--nodes", "1", "ends.py")
    assert rack.shell("wait", run).exit_code == 0
    shell = adopted(rack, run)
    mark = rack.cli.directory / "mark"
    (spec,) = rack.remote.glob("runs/*/nodes/0/spec.json")
    job = json.loads(spec.read_text())
    spec.write_text(json.dumps({**job, "workers": f"{{{{ lookup('pipe', 'touch {mark}') }}}}"}))

    again = shell("requeue", run)

    assert not mark.exists()
    assert (again.exit_code, "its answer has a template" in again.stderr) == (3, True), again.stderr
