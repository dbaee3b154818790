"""The user's own settings of Ansible stay in force, and hosts are ranked as documented."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from launcher.backends.ansible import ansible_config, inventory
from launcher.backends.ansible.backend import AnsibleBackend
from launcher.backends.ansible.options import AnsibleOptions
from launcher.errors import SpecError, UntrustedError
from launcher.spec import JobSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

CONFIG = """[defaults]
inventory = hosts.ini
timeout = 7
host_key_checking = no
[ssh_connection]
ssh_args = -o Compression=yes
"""
PLUGIN = """
from ansible.plugins.vars import BaseVarsPlugin
class VarsModule(BaseVarsPlugin):
    def get_vars(self, loader, path, entities):
        return {}
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
    """A working directory, for a user without settings elsewhere."""
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_config_in_the_working_directory_names_hosts_and_keeps_its_say(place: Path) -> None:
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
    settings = ansible_config.variables(("a.ini",), str(place), 3)

    assert (settings["ANSIBLE_HOST_KEY_CHECKING"], settings["ANSIBLE_TIMEOUT"]) == ("True", "15")
    assert "ControlPersist" in settings["ANSIBLE_SSH_ARGS"]
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


def test_an_inventory_of_the_environment_is_one_of_the_working_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    (place / "ansible.cfg").write_text("[defaults]\nhost_key_checking = no\n[ssh_connection]\nhost_key_checking = yes\n")
    assert ansible_config.variables(("a,",), str(place), 1)["ANSIBLE_HOST_KEY_CHECKING"] == "yes", "the connection's own wins"
    (place / "ansible.cfg").write_text("[defaults]\nhost_key_checking = True # keep\n")
    with pytest.raises(SpecError, match=r"ansible.cfg: host_key_checking 'True # keep' is neither true nor false"):
        ansible_config.variables(("a,",), str(place), 1)
    monkeypatch.setenv("ANSIBLE_HOST_KEY_CHECKING", "ture")
    with pytest.raises(SpecError, match=r"^ANSIBLE_HOST_KEY_CHECKING: "):
        ansible_config.variables(("a,",), str(place), 1)


def test_every_setting_of_ansible_that_names_files_is_known() -> None:
    """Those that name code are held to the rule; the others are written, or read as what they are."""
    asks = "import json; from ansible.constants import config; print(json.dumps(config.get_configuration_definitions()))"
    told = subprocess.run([sys.executable, "-c", asks], check=True, stdout=subprocess.PIPE)  # not here: it changes `sys.intern`

    data = {"private_key_file", "log_path", "retry_files_save_path", "local_tmp", "plugin_filters_cfg", "inventory"}
    data |= {"role_skeleton", "collection_skeleton", "token_path", "cache_dir", "gpg_keyring", "control_path_dir", "valid3"}
    definitions = json.loads(told.stdout).values()
    kinds = ("path", "pathspec", "pathlist", "tmppath")
    named = {ini["key"] for one in definitions if one.get("type") in kinds for ini in one.get("ini", ())}
    variables = {env["name"] for one in definitions if one.get("type") in kinds for env in one.get("env", ())}

    assert {key for key in named if not ansible_config.is_code(key)} <= data
    keys = {name.lstrip("_").removeprefix("ANSIBLE_").lower() for name in variables}
    data |= {"galaxy_" + key for key in data} | {"local_temp", "persistent_control_path_dir", "test_entry3"}
    assert {key for key in keys if not ansible_config.is_code(key)} <= data


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
class TestOthers:
    """Ansible's settings and inventories may hold code: nobody else has a hand in them."""

    STRANGER = 54321

    def give(self, path: Path, *, mode: int = 0o644) -> Path:
        """The path as somebody else's."""
        os.chown(path, self.STRANGER, self.STRANGER)
        path.chmod(mode)
        return path

    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o755])
    def test_settings_of_a_directory_that_others_write_to_run_nothing(self, distlaunch: Cli, mode: int) -> None:
        """Ansible itself refuses a file there, but for one that ANSIBLE_CONFIG names; so it was named by us."""
        work = distlaunch.directory / "shared"
        plugin = distlaunch.write("shared/plugins/evil.py", f"open({str(distlaunch.directory / 'was-run')!r}, 'w')\n{PLUGIN}")
        settings = f"vars_plugins = {plugin.parent}\nvars_plugins_enabled = evil\n"
        distlaunch.write("shared/ansible.cfg", f"[defaults]\n{settings}")
        distlaunch.write("shared/x.py", "")
        if mode == 0o755:
            self.give(work / "ansible.cfg")
        work.chmod(mode)

        done = distlaunch("ansible", "-i", "n1,", "--dry-run", "x.py", cwd=work)

        assert not (distlaunch.directory / "was-run").exists()
        assert done.exit_code == 2, done
        assert "error[untrusted]: Ansible's settings" in done.stderr
        assert "ANSIBLE_CONFIG=FILE" in done.stderr

    def test_so_does_a_file_that_the_environment_names_and_a_directory_that_a_file_names(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (place / "code").mkdir()
        (place / "own.cfg").write_text("[defaults]\nfilter_plugins = code:elsewhere\n")
        monkeypatch.setenv("ANSIBLE_CONFIG", "own.cfg")
        assert ansible_config.variables(("a,",), str(place), 1)["ANSIBLE_CONFIG"] == str(place / "own.cfg")
        self.give(place / "code", mode=0o755)
        with pytest.raises(UntrustedError, match=r"filter_plugins of .*own.cfg, .*code belongs to"):
            ansible_config.variables(("a,",), str(place), 1)
        (place / "own.cfg").write_text("")
        self.give(place / "own.cfg")
        with pytest.raises(UntrustedError, match=r"own.cfg belongs to"):
            ansible_config.variables(("a,",), str(place), 1)

    @pytest.mark.parametrize("theirs", ["hosts/a.ini", "hosts", "group_vars/all.yml", "host_vars/n1/more.yml", "."])
    def test_an_inventory_and_the_variables_beside_it_are_ours(self, place: Path, theirs: str) -> None:
        for name in ("hosts/a.ini", "group_vars/all.yml", "host_vars/n1/more.yml"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("")
        (place / "hosts/round").symlink_to(".")
        assert inventory.sources(["hosts"], str(place)) == (str(place / "hosts"),)
        self.give(place / theirs, mode=0o755)

        with pytest.raises(UntrustedError, match="inventory"):
            inventory.sources(["hosts"], str(place))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("ANSIBLE_LIBRARY", "mine:{}"),
            ("ANSIBLE_FILTER_PLUGINS", "{}"),
            ("ANSIBLE_STRATEGY_PLUGINS", "mine:theirs"),
            ("ANSIBLE_ROLES_PATH", "{}:mine"),
            ("ANSIBLE_COLLECTIONS_PATH", "~/theirs"),
            ("ANSIBLE_COLLECTIONS_PATHS", "$HOME/theirs"),
            ("ANSIBLE_MODULE_UTILS", "{}"),
            ("ANSIBLE_HOME", "{}"),
            ("ANSIBLE_VAULT_PASSWORD_FILE", "theirs/program"),
            ("ANSIBLE_VAULT_IDENTITY_LIST", "a@mine, lab@theirs/program"),
            ("ANSIBLE_BECOME_PASSWORD_FILE", "{}/program"),
            ("ANSIBLE_SSH_EXECUTABLE", "theirs/program"),
            ("ANSIBLE_PKCS11_PROVIDER", "{}/program"),
        ],
    )
    def test_code_that_a_variable_or_a_file_names_is_ours(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        for directory in ("mine", "theirs"):
            (place / directory).mkdir()
            (place / directory / "program").write_text("")
        monkeypatch.chdir(place)
        monkeypatch.setenv(name, value.format(place / "theirs"))
        ansible_config.variables(("a,",), str(place), 1)
        self.give(place / "theirs", mode=0o755)

        with pytest.raises(UntrustedError, match=rf"{name} .*theirs.*belongs to"):
            ansible_config.variables(("a,",), str(place), 1)
        monkeypatch.delenv(name)
        key = name.removeprefix("ANSIBLE_").lower()
        (place / "ansible.cfg").write_text(f"[defaults]\n{key} = {value.format(place / 'theirs')} ; as the lab has it\n")
        with pytest.raises(UntrustedError, match=rf"{key} of {place}/ansible.cfg, .*theirs.*belongs to"):
            ansible_config.variables(("a,",), str(place), 1)

    @pytest.mark.parametrize("how", ["password_file", "identity_list", "plugins"])
    def test_nothing_of_theirs_runs(self, distlaunch: Cli, tmp_path: Path, how: str) -> None:
        ran = tmp_path / "was-run"
        for name, text in (("pass", f"#!/bin/sh\ntouch {ran}\necho x\n"), ("evil.py", f"open({str(ran)!r}, 'w')\n{PLUGIN}")):
            path = distlaunch.write(f"lab/{name}", text)
            path.chmod(0o755)
        distlaunch.write("x.py", "")
        lab = distlaunch.directory / "lab"
        env: dict[str, str | None] = {"ANSIBLE_VAULT_PASSWORD_FILE": "lab/pass"}
        if how == "identity_list":
            env = {"ANSIBLE_VAULT_IDENTITY_LIST": "me@lab/pass"}
        elif how == "plugins":
            env = {"ANSIBLE_VARS_PLUGINS": str(lab), "ANSIBLE_VARS_ENABLED": "evil"}

        assert distlaunch("ansible", "-i", "n1,", "--dry-run", "x.py", env=env).exit_code == 0
        assert ran.exists(), "Ansible runs it"
        ran.unlink()
        self.give(lab, mode=0o755)
        done = distlaunch("ansible", "-i", "n1,", "--dry-run", "x.py", env=env)

        assert not ran.exists()
        assert done.exit_code == 2, done
        assert f"error[untrusted]: {next(iter(env))} '{lab}" in done.stderr

    def test_an_inventory_that_settings_name_is_ours(self, place: Path) -> None:
        (place / "ansible.cfg").write_text(CONFIG)
        (place / "hosts.ini").write_text(HOSTS)
        self.give(place / "hosts.ini")

        with pytest.raises(UntrustedError, match=r"hosts.ini belongs to"):
            ansible_config.variables((), str(place), 1)

    def test_sockets_are_not_put_where_others_can_write(
        self, distlaunch: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        distlaunch.write("x.py", "")
        (place / "runtime/distlaunch").mkdir(parents=True)
        self.give(place / "runtime/distlaunch", mode=0o755)

        done = distlaunch("ansible", "-i", "n1,", "x.py", env={"XDG_RUNTIME_DIR": str(place / "runtime")})

        assert done.exit_code == 2, done
        assert "the directory of SSH's connections" in done.stderr
