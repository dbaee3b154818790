"""What `--render-to` writes is complete: it starts the run by hand, from anywhere, with ansible-playbook alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from testbed.processes import Process
from tests.ansible.conftest import WAITS
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.conftest import Rack
    from tests.command import Cli

pytestmark = pytest.mark.ssh

INSTALLED = json.loads(metadata.distribution("distlaunch").read_text("direct_url.json") or "")["url"].removeprefix(
    "file://"
)
REMOVED = f"""
for name in launcher playbooks train; do
    mount -t tmpfs tmpfs "{ROOT}/$name" && mount -t tmpfs tmpfs "{INSTALLED}/$name" || exit
done
exec "$@"
"""
"""A shell command, with mounts of its own in which the host has no launcher."""


class Admin:
    """An administrator who was given the directory, and has Ansible."""

    def __init__(self, rack: Rack, directory: Path) -> None:
        self.directory = directory
        self.inventory = rack.ssh.inventory
        # The test's HOME is deep, and a socket below it would have too long a path.
        sockets = json.loads((directory / "env/envvars").read_text())["ANSIBLE_SSH_CONTROL_PATH_DIR"]
        path = f"{os.path.dirname(sys.executable)}:/usr/sbin:/usr/bin:/sbin:/bin"
        self.env = {
            "HOME": str(rack.cli.directory),
            "PATH": path,
            "LANG": "C.UTF-8",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": sockets,
        }

    def run(self, *argv: str, fails: bool = False, **env: str) -> str:
        """The output of a command."""
        alone = ("unshare", "--mount", "sh", "-c", REMOVED, "sh", *argv)
        more = {"capture_output": True, "text": True, "timeout": 240, "check": False}
        done = subprocess.run(alone, cwd=self.directory, env={**self.env, **env}, **more)  # type: ignore[call-overload]
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return str(done.stdout + done.stderr)

    def fails_without_inventory(self, *names: str) -> None:
        """Run scripts without the run's hosts: none is asked, which is no success."""
        away = self.inventory.rename(f"{self.inventory}.away")
        for name in names:
            assert "Could not match" in self.run("sh", f"{name}.sh", fails=True, TOKEN="s3cr3t")
        away.rename(self.inventory)

    def preflight(self) -> str:
        """Run a playbook that has no script."""
        inventory = ("-i", str(self.inventory))
        return self.run("ansible-playbook", *inventory, "-e", "@env/extravars", "project/preflight.yml")


def alike(text: str) -> str:
    """A file without what each submission has of its own: the run's id."""
    return re.sub(r"waits-\d{8}-\d{6}-\w{4}", "RUN", text)


def runs(run: Path, rank: int) -> bool:
    """Whether a node's agent runs."""
    about = json.loads((run / f"nodes/{rank}/started.json").read_text())
    return Process(about["pid"], about["start_ticks"]).alive()


def test_what_is_rendered_runs_by_hand_without_us_and_is_what_a_submission_sends(rack: Rack) -> None:
    rack.write("waits.py", WAITS)
    asked = ("--nodes", "2", "--share", "--secret", "TOKEN", "waits.py")  # two of them run at once
    token: dict[str, str | None] = {"TOKEN": "s3cr3t"}
    first = rack.cli.directory / "rendered"
    shown = rack("--dry-run", "--output", "json", *asked, env=token)
    written = rack("--render-to", str(first), *asked, env=token)
    assert shown.exit_code == written.exit_code == 0, shown.stderr + written.stderr
    assert not list(rack.remote.iterdir()), "nothing was sent"
    texts = {name: alike(text) for name, text in shown.json["result"]["files"].items()}
    assert {"start.sh", "job.json", "project/start.yml"} <= set(texts)
    binary = {"agent.pyz", "files.tar.gz"}
    found = {str(path.relative_to(first)) for path in first.rglob("*") if path.is_file()}
    assert found == set(texts) | binary
    assert {name: alike((first / name).read_text()) for name in texts} == texts, (
        "--dry-run prints what --render-to writes"
    )
    assert not [path for path in first.rglob("*") if path.is_file() and b"s3cr3t" in path.read_bytes()]

    # By hand, from elsewhere, with the launcher removed.
    directory = first.rename(rack.cli.directory / "moved by an admin")
    admin = Admin(rack, directory)
    run = rack.remote / "runs" / json.loads((directory / "env/extravars").read_text())["distlaunch_run"]
    assert "No module named 'launcher.cli'" in admin.run(sys.executable, "-c", "import launcher.cli", fails=True)
    assert "TOKEN: export it first" in admin.run("sh", "start.sh", fails=True)
    assert re.search(r"n1 .*changed=1 ", admin.run("sh", "start.sh", TOKEN="s3cr3t"))
    streams = [run / f"nodes/{rank}/stream" for rank in (0, 1)]
    wait_until("the workers", lambda: all("ready TOKEN" in path.read_text() for path in streams), limit_s=90)
    keys = [directory / "key", *(run / f"nodes/{rank}/key" for rank in (0, 1))]
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    (key,) = {path.read_text().strip() for path in keys}
    others = [path for place in (directory, run) for path in place.rglob("*") if path.is_file() and path not in keys]
    assert not [path for path in others if key.encode() in path.read_bytes()], "the run's key is nowhere else"
    again = re.findall(r"changed=(\d+)", admin.run("sh", "start.sh", TOKEN="s3cr3t"))
    assert again == ["0"], "a second start changes nothing"
    assert len(re.findall(r'"?running"?: true', admin.run("sh", "status.sh"))) == 2
    admin.run("sh", "collect.sh", "-e", json.dumps({"distlaunch_collect_to": f"{directory}/back"}))
    for rank in (0, 1):
        assert "ready TOKEN" in (directory / "back" / run.name / f"nodes/{rank}/stream").read_text()

    admin.fails_without_inventory("start", "status", "collect", "stop")

    # A submission sends the same.
    other = rack("--detach", *asked, env=token)
    assert other.exit_code == 0, other.stderr
    assert "files:" not in other.stderr, "the hosts have the very same files from the first run"
    sent = rack.cli.runs / other.stdout.strip() / "ansible"
    assert {name: alike((sent / name).read_text()) for name in texts} == texts
    assert not (sent / "files.tar.gz").exists(), "they are not needed any more"
    assert (sent / "agent.pyz").read_bytes() == (directory / "agent.pyz").read_bytes()

    # By hand again: the end of the one, and not of the other.
    assert re.search(r"changed=1 ", admin.run("sh", "stop.sh"))
    wait_until("the end", lambda: all('"done"' in path.read_text() for path in streams), limit_s=90)
    for path in streams:
        assert "saving with time left" in path.read_text()
    wait_until(
        "the agents, which have sent their last message, to exit", lambda: not any(runs(run, rank) for rank in (0, 1))
    )
    assert set(re.findall(r"changed=(\d+)", admin.run("sh", "stop.sh"))) == {"0"}
    assert '"master": "n1"' in admin.preflight()
    assert rack.state(other.stdout.strip())["state"] == "running"
    assert rack.shell("cancel", "--force", other.stdout.strip()).exit_code == 0


def test_a_directory_that_is_rendered_again_keeps_nothing_of_the_run_before(rack: Rack) -> None:
    rack.write("left.py", "import os\nprint('left over:', os.environ.get('LEFT'), flush=True)\n")
    container = rack.cli.directory / "image.sqsh"
    container.touch()
    out = rack.cli.directory / "out"
    limits = ("--limit", "n1", "--render-to")
    before = ("--setup", "export LEFT=this", "--notify", "http://127.0.0.1:9/hook", "--container-image", str(container))
    for more in (before, ("--in-place",)):
        done = rack(*limits, str(out), *more, "left.py")
        assert done.exit_code == 0, done.stderr
        names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
        assert names == {os.path.relpath(line, out) for line in done.stdout.splitlines()}
        assert ({"setup.sh", "container.json", "notify", "files.tar.gz"} <= names) is (more == before)

    Admin(rack, out).run("sh", "start.sh")

    stream = rack.remote / "runs" / json.loads((out / "env/extravars").read_text())["distlaunch_run"] / "nodes/0/stream"
    wait_until("the end", lambda: stream.exists() and b'"done"' in stream.read_bytes(), limit_s=90)
    assert "left over: None" in stream.read_text()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sh", "start.sh"], "Could not match supplied host pattern, ignoring: n2"),
        (["ansible-playbook", "-i", "n1,", "-e", "@env/extravars", "project/start.yml"], "n2 is not in the inventory"),
    ],
)
def test_a_host_that_the_inventory_of_a_run_by_hand_lacks_is_named(
    distlaunch: Cli, command: list[str], said: str
) -> None:
    distlaunch.write("x.py", "print('never')\n")
    assert distlaunch("ansible", "--inventory", "n1,", "--render-to", "rendered", "x.py").exit_code == 0
    programs = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"

    done = subprocess.run(
        [*command, "-e", json.dumps({"distlaunch_hosts": ["n2", "n1"]})],
        cwd=distlaunch.directory / "rendered", env={**os.environ, "PATH": programs}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip

    assert done.returncode != 0
    assert said in done.stdout + done.stderr
