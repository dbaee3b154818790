"""The user's own settings of Ansible stay in force, and hosts are ranked as documented."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from launcher.backends.ansible import ansible_config, inventory
from launcher.backends.ansible.backend import AnsibleBackend
from launcher.backends.ansible.options import AnsibleOptions
from launcher.errors import SpecError
from launcher.spec import JobSpec
from tests.ansible.settings import CONFIG, HOSTS

if TYPE_CHECKING:
    from pathlib import Path


def test_a_config_in_the_working_directory_names_hosts_and_stays_in_force(place: Path) -> None:
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


def test_without_settings_host_keys_are_checked_and_connections_are_shared(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ansible_config.variables(("a.ini",), str(place), 3)

    assert (settings["ANSIBLE_HOST_KEY_CHECKING"], settings["ANSIBLE_TIMEOUT"]) == ("True", "15")
    assert "ControlPersist" in settings["ANSIBLE_SSH_ARGS"]
    assert "-C" not in settings["ANSIBLE_SSH_ARGS"].split(), "what is sent is compressed"
    assert "ANSIBLE_CONFIG" not in settings
    other = ansible_config.variables(("b.ini",), str(place), 3)
    assert other["ANSIBLE_SSH_CONTROL_PATH_DIR"] != settings["ANSIBLE_SSH_CONTROL_PATH_DIR"]
    assert len(settings["ANSIBLE_SSH_CONTROL_PATH_DIR"]) < 60, "a socket's path has room for 107 bytes"
    monkeypatch.setenv("ANSIBLE_TIMEOUT", "3")
    monkeypatch.setenv("ANSIBLE_SSH_ARGS", "-4")
    (place / ".ansible.cfg").write_text(CONFIG)
    mine = ansible_config.variables(("a.ini",), "/", 3)
    assert (mine["ANSIBLE_TIMEOUT"], mine["ANSIBLE_CONFIG"]) == ("3", str(place / ".ansible.cfg"))
    assert "ANSIBLE_SSH_ARGS" not in mine


@pytest.mark.parametrize(
    ("text", "absolute"), [("n1,n2", "n1,n2"), ("here.ini", "{}/here.ini"), ("./sub/../here.ini", "{}/here.ini")]
)
def test_a_path_is_made_absolute_and_a_list_stays(place: Path, text: str, absolute: str) -> None:
    (place / "here.ini").touch()
    (place / "sub").mkdir()

    assert inventory.sources([text], str(place)) == (absolute.format(place),)


def test_an_inventory_of_the_environment_is_relative_to_the_working_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "here.ini").touch()
    (place / "sub").mkdir()
    monkeypatch.setenv("ANSIBLE_INVENTORY", "here.ini, ./sub")

    assert inventory.sources((), str(place)) == (f"{place}/here.ini", f"{place}/sub")
    assert inventory.sources(("n1,",), str(place)) == ("n1,",), "what is named comes before it"
    monkeypatch.setenv("ANSIBLE_INVENTORY", "there.ini")
    with pytest.raises(SpecError, match=re.escape("inventory 'there.ini' does not exist")):
        inventory.sources((), str(place))


def test_settings_are_read_as_ansible_reads_them(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[defaults]\nhost_key_checking = True ; keep\ntimeout = 7 ; seconds\nroles_path = here#there\n"
    (place / "ansible.cfg").write_text(text)
    settings = ansible_config.variables(("a,",), str(place), 1)
    assert (settings["ANSIBLE_HOST_KEY_CHECKING"], settings["ANSIBLE_TIMEOUT"]) == ("True", "7")

    (place / "ansible.cfg").write_text(
        "[defaults]\nhost_key_checking = no\n[ssh_connection]\nhost_key_checking = yes\n"
    )
    assert ansible_config.variables(("a,",), str(place), 1)["ANSIBLE_HOST_KEY_CHECKING"] == "yes", (
        "the connection's own wins"
    )
    (place / "ansible.cfg").write_text("[defaults]\nhost_key_checking = True # keep\n")
    with pytest.raises(SpecError, match=r"ansible.cfg: host_key_checking 'True # keep' is neither true nor false"):
        ansible_config.variables(("a,",), str(place), 1)
    monkeypatch.setenv("ANSIBLE_HOST_KEY_CHECKING", "ture")
    with pytest.raises(SpecError, match=r"^ANSIBLE_HOST_KEY_CHECKING: "):
        ansible_config.variables(("a,",), str(place), 1)


def test_every_setting_of_ansible_that_names_files_is_known() -> None:
    """Those that name code are held to the rule of trust; the others are written, or read as data."""
    asks = (
        "import json; from ansible.constants import config; print(json.dumps(config.get_configuration_definitions()))"
    )
    told = subprocess.run(
        [sys.executable, "-c", asks], check=True, stdout=subprocess.PIPE
    )  # elsewhere, as it changes `sys.intern`

    data = {"private_key_file", "log_path", "retry_files_save_path", "local_tmp", "plugin_filters_cfg", "inventory"}
    data |= {
        "role_skeleton",
        "collection_skeleton",
        "token_path",
        "cache_dir",
        "gpg_keyring",
        "control_path_dir",
        "valid3",
    }
    definitions = json.loads(told.stdout).values()
    kinds = ("path", "pathspec", "pathlist", "tmppath")
    named = {ini["key"] for one in definitions if one.get("type") in kinds for ini in one.get("ini", ())}
    variables = {env["name"] for one in definitions if one.get("type") in kinds for env in one.get("env", ())}

    assert {key for key in named if not ansible_config.is_code(key)} <= data
    keys = {name.lstrip("_").removeprefix("ANSIBLE_").lower() for name in variables}
    data |= {"galaxy_" + key for key in data} | {"local_temp", "persistent_control_path_dir", "test_entry3"}
    assert {key for key in keys if not ansible_config.is_code(key)} <= data
