"""Ansible is imported once for the programs of a launch, and they do what each would do by itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from launcher.backends.ansible import ahead, playbook
from launcher.backends.ansible import ansible_config as config
from launcher.backends.ansible.inventory import program
from testbed import wait_until
from tests.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    ahead.end()  # that of another test, which was not over
    yield
    ahead.drop()
    ahead.end()


def _run(argv: Sequence[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def _own(directory: Path, name: str) -> dict[str, str]:
    """Variables by which a program of that name is one of ours, which only prints a word."""
    file = directory / name
    file.write_text("#!/bin/sh\necho its own process\n")
    file.chmod(0o755)
    return {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}


def _children() -> set[int]:
    return {each.pid for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE}


@pytest.mark.parametrize("early", [False, True])
def test_an_inventory_is_read_as_by_the_program_itself(early: bool, tmp_path: Path) -> None:
    (tmp_path / "good.ini").write_text("[all]\nh[1:3] distlaunch_rank=1\n[all:vars]\ncolour=ünl\n")
    (tmp_path / "bad.yml").write_text("all: [unclosed\n")
    env = {**os.environ, "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1", "ANSIBLE_LOCAL_TEMP": str(tmp_path / "temp")}
    if early:
        ahead.begin(["--inventory", "hosts", "train.py"])
    begun = _children()
    env = ahead.start(program("ansible-inventory"), env)
    assert (_children() == begun) == early, "the one that has begun"
    for file, code in (("good.ini", 0), ("bad.yml", 1)):
        argv = [program("ansible-inventory"), "--list", "-i", str(tmp_path / file)]
        forked, own = _run(ahead.words(argv), env), _run(argv, env)
        assert ahead.words(argv) != argv
        assert forked == own
        assert bool(forked[0]) == bool(code)
        assert list((tmp_path / "temp").iterdir()) == [], "exit hooks have run"


@pytest.mark.parametrize("early", [False, True])
def test_a_program_whose_settings_differ_is_started_by_itself(
    early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = _own(tmp_path, "ansible-inventory")
    if early:
        monkeypatch.setenv("PATH", env["PATH"])
        ahead.begin(["train.py"])
        env["ANSIBLE_TIMEOUT"] = "8"  # told later
    env = ahead.start(program("ansible-inventory"), env)
    argv = ahead.words(["ansible-inventory", "--list", "-i", "h1,"])
    assert json.loads(_run(argv, env)[1])["ungrouped"]["hosts"] == ["h1"], "in a fork, which looks for no program"
    assert _run(argv, {**env, "ANSIBLE_TIMEOUT": "7"})[1] == "its own process\n"
    ahead.end()
    assert _run(argv, env)[1] == "its own process\n"


def test_an_import_that_has_begun_is_used_only_with_the_same_variables_and_ends_if_it_is_not_needed() -> None:
    before = _children()
    for words in ([], ["--help"], ["train.py", "-h"]):
        ahead.begin(words)
        assert _children() <= before
    ahead.begin(["train.py"])
    [begun] = _children() - before
    ahead.start(program("ansible-inventory"), {**os.environ, "COLOUR": "another"})
    [other] = _children() - before
    assert other != begun
    ahead.end()
    assert _children() <= before
    ahead.begin(["train.py"])
    assert len(_children() - before) == 1
    ahead.drop()
    assert _children() <= before


def test_an_import_that_has_begun_and_died_is_begun_anew() -> None:
    before = _children()
    ahead.begin(["train.py"])
    [begun] = _children() - before
    os.kill(begun, signal.SIGKILL)
    wait_until("the import has ended", lambda: begun not in _children())
    env = ahead.start(program("ansible-inventory"), dict(os.environ))
    argv = ahead.words([program("ansible-inventory"), "--list", "-i", "h1,"])
    assert json.loads(_run(argv, env)[1])["ungrouped"]["hosts"] == ["h1"]


def test_an_inventory_plugin_finds_no_modules_of_ours(tmp_path: Path) -> None:
    plugin = tmp_path / "plain.py"
    plugin.write_text(
        "DOCUMENTATION = 'name: plain\\nshort_description: tells\\noptions: {}'\n"
        "import importlib.util\nfrom ansible.plugins.inventory import BaseInventoryPlugin\n"
        "class InventoryModule(BaseInventoryPlugin):\n    NAME = 'plain'\n"
        "    def verify_file(self, path):\n        return True\n"
        "    def parse(self, inventory, loader, path, cache=True):\n"
        "        inventory.add_host('found' if importlib.util.find_spec('handle') else 'none')\n"
    )
    (tmp_path / "hosts.yml").write_text("plugin: plain\n")
    more = {"ANSIBLE_INVENTORY_PLUGINS": str(tmp_path), "ANSIBLE_INVENTORY_ENABLED": "plain"}
    env = ahead.start(program("ansible-inventory"), {**os.environ, **more})
    code, said, _ = _run(ahead.words(["ansible-inventory", "--list", "-i", str(tmp_path / "hosts.yml")]), env)
    assert (code, json.loads(said)["ungrouped"]["hosts"]) == (0, ["none"])


def test_an_ansible_of_an_interpreter_that_cannot_be_seen_is_started_as_always(tmp_path: Path) -> None:
    _own(tmp_path, "ansible-inventory")
    assert ahead.start(str(tmp_path / "ansible-inventory"), {"A": "b"}) == {"A": "b"}
    assert ahead.words(["ansible-inventory", "x"]) == ["ansible-inventory", "x"]


def test_an_import_that_takes_long_is_given_up(tmp_path: Path) -> None:
    python, path = tmp_path / "python-slow", tmp_path / "ansible-inventory"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    path.write_text(f"#!{python}\n")
    python.chmod(0o755)
    ahead.start(str(path), os.environ)
    server = ahead._now
    assert server
    assert server._process.poll() is None

    ahead.end()

    assert server._process.returncode == -signal.SIGKILL


def test_a_program_that_is_killed_ends_in_its_fork_too(tmp_path: Path) -> None:
    slow = tmp_path / "slow.sh"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 300\n")
    slow.chmod(0o755)
    env = ahead.start(program("ansible-inventory"), os.environ)
    with subprocess.Popen(ahead.words(["ansible-inventory", "--list", "-i", str(slow)]), env=env) as client:
        wait_until("the inventory to be read", lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        client.kill()
    pid = int((tmp_path / "pid").read_text())
    wait_until("the fork's program to be ended", lambda: not Path(f"/proc/{pid}").exists())


def test_the_interpreter_does_not_outlive_a_launcher_that_is_killed() -> None:
    code = (
        "import os, time; from launcher.backends.ansible import ahead, inventory\n"
        "ahead.start(inventory.program('ansible-inventory'), os.environ)\n"
        "print(ahead._now._process.pid, flush=True); time.sleep(300)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        pid = int(launcher.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        launcher.send_signal(signal.SIGKILL)
    wait_until("the interpreter to exit", lambda: not Path(f"/proc/{pid}").exists())


def with_playbook(directory: Path) -> dict[str, str]:
    """A playbook that needs no host, in its directory; returns its settings."""
    path = str(directory / "run/c")
    settings = {**config.variables(["h1,"], str(directory), 1), "ANSIBLE_SSH_CONTROL_PATH_DIR": path}
    forks = {**settings, "ANSIBLE_FORKS": "3"}
    playbook.write_directory(directory, playbook.directory_texts(["h1,"], forks, {"word": "given"}), {})
    (directory / "project/who.yml").write_text(
        """
- hosts: all
  gather_facts: false
  tasks:
    - debug:
        msg: "{{ word }}, {{ ansible_forks }} forks of {{ lookup('pipe', 'cat /proc/$PPID/cmdline') }}"
"""
    )
    return settings


def test_a_playbook_of_the_runner_runs_in_a_fork_with_its_own_settings(tmp_path: Path) -> None:
    settings = with_playbook(tmp_path)
    ahead.start(program("ansible-inventory"), {**os.environ, **settings})
    playbook.Playbook(tmp_path, "who.yml", shows=False).run({})
    log = (tmp_path / "ansible.log").read_text()
    assert "given, 3 forks of " in log
    assert "ahead_server.py" in log


HALF_IMPORTED = """
import importlib.metadata, sys, threading, time
from pathlib import Path
from launcher.backends.ansible import playbook

found, is_last_step = importlib.metadata.entry_points, threading.Event()

def slow(**of):
    if "ansible_runner.plugins" in of.values():
        is_last_step.set()
        time.sleep(1)
    return found(**of)

importlib.metadata.entry_points = slow
playbook.prepare()
assert is_last_step.wait(20)
playbook.Playbook(Path(sys.argv[1]), "who.yml", shows=False).run({})
"""


def test_a_playbook_waits_for_the_thread_that_imports_the_runner(tmp_path: Path) -> None:
    with_playbook(tmp_path)
    argv = [sys.executable, "-c", HALF_IMPORTED, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "given, 3 forks of " in (tmp_path / "ansible.log").read_text()


WITHOUT_PIDFDS = {
    "python": "import os, signal\ndel os.pidfd_open, signal.pidfd_send_signal\n",
    "kernel": "import os\ndef none(*_):\n    raise OSError(38, 'not implemented')\nos.pidfd_open = none\n",
}


@pytest.mark.parametrize("lacking", WITHOUT_PIDFDS)
def test_a_python_or_kernel_without_pidfds_runs_each_program_and_starts_a_run_once(lacking: str, rack: Rack) -> None:
    hooks = rack.write("hooks/sitecustomize.py", WITHOUT_PIDFDS[lacking]).parent
    rack.write("adds.py", "import os, sys\nopen(sys.argv[1], 'a').write(os.environ['RANK'] + '\\n')\n")
    how = {"ansible_user": "root", "ansible_ssh_common_args": f"-F {rack.ssh.config}"}
    hosts = {host.name: {"ansible_host": host.address, **how} for host in rack.ssh.hosts}
    listed = rack.cli.write("listed", json.dumps({"all": {"hosts": [*hosts]}, "_meta": {"hostvars": hosts}}))
    inventory = rack.cli.write("hosts.sh", f"#!/bin/sh\necho read >> {listed}.times\ncat {listed}\n")
    inventory.chmod(0o755)

    argv = rack.argv("--nodes", "2", "--name", "once", "adds.py", str(rack.remote / "lines"), inventory=inventory)
    done = rack.cli(*argv, env={"PYTHONPATH": f"{hooks}:{ROOT}"}, cwd=rack.directory, real=True)
    assert done.exit_code == 0, done.stderr
    assert sorted((rack.remote / "lines").read_text().split()) == ["0", "1"]
    streams = sorted((rack.cli.runs / rack.id_of("once")).glob("nodes/*/stream"))
    assert [stream.read_text().count('{"event":"agent_started",') for stream in streams] == [1, 1]
    times = listed.with_name("listed.times").read_text()
    assert times == "read\n" * 2, "by ansible-inventory and ansible-playbook"


@pytest.mark.parametrize("damaged", [False, True])
def test_what_is_kept_of_ansibles_own_files_is_what_they_have(damaged: bool, tmp_path: Path) -> None:
    server = tmp_path / "ahead_server.py"
    shutil.copy(ROOT / "launcher/backends/ansible/ahead_server.py", server)
    program = """
import sys, ahead_server
from ansible.config import manager
parse, parsed = manager.yaml_load, []
manager.yaml_load = theirs = lambda text: parsed.append(text) or parse(text)
if sys.argv[1:]:
    ahead_server.import_constants()
from ansible import constants
assert manager.yaml_load is theirs
print(len(parsed), constants.config._base_defs)
"""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = str(tmp_path)
    code, said, why = _run([sys.executable, "-c", program], env)
    assert code == 0, why
    often, _, settings = said.partition(" ")
    kept: list[Path] = []
    times = []
    for _ in range(3):
        code, said, why = _run([sys.executable, "-c", program, "kept"], env)
        assert (code, said.partition(" ")[2]) == (0, settings), why
        times.append(int(often) - int(said.partition(" ")[0]))
        kept = [*(tmp_path / "__pycache__").glob("*.json")]
        if damaged:
            kept[0].write_text('{"cut": ')
    assert times == ([0, 0, 0] if damaged else [0, 1, 1]), "how often its YAML was not parsed"
    assert len(kept) == 1
