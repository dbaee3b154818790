"""Ansible's settings and inventories may hold code, so other users' files are refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from launcher.backends.ansible import ansible_config, inventory
from launcher.errors import UntrustedError
from tests.ansible.settings import CONFIG, HOSTS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

PLUGIN = """
from ansible.plugins.vars import BaseVarsPlugin
class VarsModule(BaseVarsPlugin):
    def get_vars(self, loader, path, entities):
        return {}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
class TestOthers:
    """Settings, inventories and code of other users are refused."""

    STRANGER = 54321

    def give(self, path: Path, *, mode: int = 0o644) -> Path:
        """Give the path to another user."""
        os.chown(path, self.STRANGER, self.STRANGER)
        path.chmod(mode)
        return path

    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o755])
    def test_settings_of_a_directory_that_others_write_to_run_nothing(self, distlaunch: Cli, mode: int) -> None:
        """Ansible itself refuses a file there, except one that ANSIBLE_CONFIG names, as distlaunch would."""
        work = distlaunch.directory / "shared"
        plugin = distlaunch.write(
            "shared/plugins/evil.py", f"open({str(distlaunch.directory / 'was-run')!r}, 'w')\n{PLUGIN}"
        )
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

    def test_a_file_that_the_environment_names_and_a_directory_that_a_file_names_have_to_be_ours(
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
    def test_an_inventory_and_the_variables_beside_it_have_to_be_ours(self, place: Path, theirs: str) -> None:
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
    def test_code_that_a_variable_or_a_file_names_has_to_be_ours(
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
        (place / "ansible.cfg").write_text(
            f"[defaults]\n{key} = {value.format(place / 'theirs')} ; as the lab has it\n"
        )
        with pytest.raises(UntrustedError, match=rf"{key} of {place}/ansible.cfg, .*theirs.*belongs to"):
            ansible_config.variables(("a,",), str(place), 1)

    @pytest.mark.parametrize("how", ["password_file", "identity_list", "plugins"])
    def test_nothing_of_other_users_runs(self, distlaunch: Cli, tmp_path: Path, how: str) -> None:
        ran = tmp_path / "was-run"
        for name, text in (
            ("pass", f"#!/bin/sh\ntouch {ran}\necho x\n"),
            ("evil.py", f"open({str(ran)!r}, 'w')\n{PLUGIN}"),
        ):
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

    def test_an_inventory_that_settings_name_has_to_be_ours(self, place: Path) -> None:
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
