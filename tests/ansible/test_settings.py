"""The user's own settings of Ansible stay in force, and hosts are ranked as documented."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from launcher.backends import _ansible_inventory as inventory
from launcher.backends import _ansible_playbook as playbook
from launcher.backends.ansible import AnsibleBackend, AnsibleOptions
from launcher.errors import StorageError
from launcher.spec import JobSpec

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """[defaults]
inventory = hosts.ini
timeout = 7
host_key_checking = no
[ssh_connection]
ssh_args = -o Compression=yes
"""
HOSTS = """
n10
n9 distlaunch_workers=3
n2
last distlaunch_rank=1.5
first distlaunch_rank=-1
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, for a user without settings elsewhere."""
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_config_in_the_working_folder_names_hosts_and_keeps_its_say(place: Path) -> None:
    (place / "ansible.cfg").write_text(CONFIG)
    (place / "hosts.ini").write_text(HOSTS)
    (place / "x.py").write_text("print()")
    spec = JobSpec(name="x", command=("x.py",), all_nodes=True, cwd=str(place), env={})

    plan = AnsibleBackend(AnsibleOptions(spares=1, exclude="n2")).plan(spec, place / "runs/x-1")

    assert [(node.host, node.workers) for node in plan.nodes] == [("first", None), ("last", None), ("n9", 3)]
    assert plan.spares == ("n10",)
    assert plan.inventory == ()
    settings = plan.settings
    assert settings["ANSIBLE_CONFIG"] == str(place / "ansible.cfg")
    assert (settings["ANSIBLE_TIMEOUT"], settings["ANSIBLE_HOST_KEY_CHECKING"]) == ("7", "no")
    assert "ANSIBLE_SSH_ARGS" not in settings
    assert settings["ANSIBLE_FORKS"] == "4"


def test_without_settings_host_keys_are_checked_and_connections_are_shared(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = playbook.configuration(("a.ini",), str(place), 3)

    assert (settings["ANSIBLE_HOST_KEY_CHECKING"], settings["ANSIBLE_TIMEOUT"]) == ("True", "15")
    assert "ControlPersist" in settings["ANSIBLE_SSH_ARGS"]
    assert "ANSIBLE_CONFIG" not in settings
    other = playbook.configuration(("b.ini",), str(place), 3)
    assert other["ANSIBLE_SSH_CONTROL_PATH_DIR"] != settings["ANSIBLE_SSH_CONTROL_PATH_DIR"]
    assert len(settings["ANSIBLE_SSH_CONTROL_PATH_DIR"]) < 60, "a socket's path has room for 107 bytes"
    monkeypatch.setenv("ANSIBLE_TIMEOUT", "3")
    monkeypatch.setenv("ANSIBLE_SSH_ARGS", "-4")
    (place / ".ansible.cfg").write_text(CONFIG)
    mine = playbook.configuration(("a.ini",), "/", 3)
    assert (mine["ANSIBLE_TIMEOUT"], mine["ANSIBLE_CONFIG"]) == ("3", str(place / ".ansible.cfg"))
    assert "ANSIBLE_SSH_ARGS" not in mine


@pytest.mark.parametrize(
    ("text", "absolute"), [("n1,n2", "n1,n2"), ("here.ini", "{}/here.ini"), ("./sub/../here.ini", "{}/here.ini")]
)
def test_a_path_is_made_absolute_and_a_list_stays(place: Path, text: str, absolute: str) -> None:
    (place / "here.ini").touch()
    (place / "sub").mkdir()

    assert inventory.sources([text], str(place)) == (absolute.format(place),)


def test_sockets_are_not_put_where_others_can_write(tmp_path: Path) -> None:
    playbook._own_folder(str(tmp_path / "new"))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "new").chmod(0o770)

    with pytest.raises(StorageError, match="others can write to it"):
        playbook._own_folder(str(tmp_path / "new"))

    if os.geteuid() == 0:
        (tmp_path / "new").chmod(0o700)
        os.chown(tmp_path / "new", 65534, 65534)
        with pytest.raises(StorageError, match="belongs to somebody else"):
            playbook._own_folder(str(tmp_path / "new"))
