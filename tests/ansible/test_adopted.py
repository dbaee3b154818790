"""A run that another launcher has started is queued again as it was started, by what its hosts have kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.ansible.test_site import ENGINE

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


MARKS = """
import os
print("mark", os.environ.get("MARK"), os.environ.get("ENGINE"), flush=True)
"""


@pytest.mark.parametrize("runtime", [None, "podman", "apptainer"])
def test_a_run_has_its_setup_lines_and_its_container_again(rack: Rack, runtime: str | None) -> None:
    rack.write("marks.py", MARKS)
    log = rack.cli.directory / "log"
    setup = "export MARK=set"
    container: tuple[str, ...] = ()
    if runtime:
        rack.write(f"engines/{runtime}", ENGINE.replace("{log}", str(log))).chmod(0o755)
        setup += f"; PATH={rack.directory}/engines:$PATH"
        container = ("--container-image", "the/image", "--container-runtime", runtime)
    run = rack.detached("--nodes", "2", "--setup", setup, *container, "marks.py")
    assert rack.shell("wait", run).exit_code == 0
    shell = adopted(rack, run)

    again = shell("requeue", run)

    assert again.exit_code == 0, again.stderr
    assert shell("wait", run).exit_code == 0
    mark = "None" if runtime == "podman" else "set"  # which has the run's own variables alone
    said = [line.partition(" ")[2] for line in shell("logs", run).stdout.splitlines()]
    assert said == [f"mark {mark} {runtime}"] * 4


def test_a_run_that_an_earlier_version_has_started_has_its_secrets_and_the_setup_lines_of_here(rack: Rack) -> None:
    rack.write("marks.py", MARKS.replace("ENGINE", "TOKEN"))
    token: dict[str, str | None] = {"TOKEN": "s3cr3t"}
    run = rack("--detach", "--nodes", "1", "--secret", "TOKEN", "marks.py", env=token).stdout.strip()
    assert rack.shell("wait", run).exit_code == 0
    (note,) = rack.remote.glob("runs/*/nodes/0/request.json")
    note.with_name("secrets.json").write_text(json.dumps(["TOKEN"]))
    note.unlink()

    def again(name: str, setting: str, env: dict[str, str | None] = token) -> Result:
        where = f'inventory = ["{rack.ssh.inventory}"]\nremote_dir = "{rack.remote}"\n'
        rack.cli.write("system.toml", f'[clusters.lab]\nbackend = "ansible"\n{where}{setting}\n')
        there = {"DISTLAUNCH_RUNS_DIR": str(rack.cli.directory / name), **env}
        found = rack.shell("adopt", run, "--on", "lab", env=there)
        assert found.exit_code == 0, found.stderr
        done = rack.shell("requeue", run, env=there)
        return done if done.exit_code else rack.shell("logs", "--follow", run, env=there)

    in_containers = again("first", 'container_image = "the/image"')
    without = again("second", "", {})
    done = again("third", 'setup = ["export MARK=set"]')

    assert (without.exit_code, "secret TOKEN: not set" in without.stderr) == (2, True), without.stderr
    assert (in_containers.exit_code, "it runs in containers" in in_containers.stderr) == (2, True), in_containers.stderr
    assert done.stdout.endswith("mark set s3cr3t\n"), done.stderr


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


def test_an_elastic_run_is_one_elsewhere_too(rack: Rack) -> None:
    """Or the loss of a node whose part is done would end it."""
    rack.write("ends.py", "")
    run = rack.detached("--nodes", "1:2", "ends.py")
    assert rack.shell("wait", run).exit_code == 0

    adopted(rack, run)

    assert json.loads((rack.cli.directory / "elsewhere" / run / "run.json").read_text())["nodes"] == "1:2"
