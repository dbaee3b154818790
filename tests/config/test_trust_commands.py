"""What commands refuse to read or run when other users have left files in their way."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import distlaunch
from launcher.backends.kubernetes import kubeconfig, patch
from launcher.errors import UntrustedError
from launcher.settings import config, quarantine, toml_file, verdicts
from tests.config.owners import (
    ME,
    STRANGER,
    _trust_is_reset,  # noqa: F401 - a fixture
    as_root,
    as_user,
    file,
    owned,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli


@as_root
class TestCommands:
    """Commands of root, among other users who leave files."""

    @staticmethod
    def trap(directory: Path, uid: int = STRANGER) -> tuple[Path, Path]:
        """A settings file that runs another user's program, and the file that this program leaves."""
        evil = directory / "evil"
        file(evil, uid, 0o755, f'#!/bin/sh\ntouch {directory}/was-run\nexec {sys.executable} "$@"\n')
        return file(directory / "distlaunch.toml", uid, text=f'[defaults]\npython = "{evil}"\n'), directory / "was-run"

    @pytest.mark.parametrize("mode", [0o1777, 0o777, 0o755])
    def test_another_users_project_file_in_a_parent_directory_runs_nothing(
        self, distlaunch: Cli, place: Path, mode: int
    ) -> None:
        shared = owned(place / "shared", STRANGER if mode == 0o755 else 0, mode)
        work = owned(shared / "work", 0, 0o755)
        toml, ran = self.trap(shared)
        (work / "x.py").write_text("print('hello')\n")

        done = distlaunch("local", "x.py", cwd=work)

        assert not ran.exists(), "another user's program ran"
        assert done.exit_code == 2, done
        assert f"error[untrusted]: settings file '{toml}': " in done.stderr
        assert "hint:" in done.stderr
        for command in (("ls",), ("config",), ("status", "last"), ("local", "--dry-run", "x.py")):
            assert distlaunch(*command, cwd=work).exit_code == 2, command
        if mode != 0o1777:
            return
        (work / "distlaunch.toml").touch()
        assert distlaunch("local", "x.py", cwd=work).stdout == "hello\n", "one of our own, nearer, comes before it"
        (work / "distlaunch.toml").unlink()
        assert distlaunch("ls", cwd=work, env={"DISTLAUNCH_TRUST": str(shared)}).exit_code == 0

    def test_every_settings_file_is_held_to_the_rule(self, tmp_path: Path, place: Path) -> None:
        bad = file(place / "config.toml", STRANGER, text="[defaults]\nnodes = 2\n")
        env = {"DISTLAUNCH_SYSTEM_CONFIG": str(bad)}
        with pytest.raises(UntrustedError, match="belongs to"):
            config.load(env, str(tmp_path))
        home = owned(place / "home", STRANGER, 0o755)
        (home / "distlaunch").mkdir()
        (home / "distlaunch/config.toml").touch()
        with pytest.raises(UntrustedError, match="belongs to"):
            config.load({"DISTLAUNCH_SYSTEM_CONFIG": "/none", "XDG_CONFIG_HOME": str(home)}, str(tmp_path))
        (home / "distlaunch/config.toml").unlink()
        (home / "distlaunch/quarantine.json").write_text("{}")
        with pytest.raises(UntrustedError, match="list of bad hosts"):
            quarantine.hosts("lab", {"XDG_CONFIG_HOME": str(home)})
        (home / "distlaunch/doctor.json").write_text("{}")
        with pytest.raises(UntrustedError, match="doctor's last verdicts"):
            verdicts.of("lab", {"XDG_CONFIG_HOME": str(home)})
        assert config.load({**env, "DISTLAUNCH_TRUST": str(place)}, str(tmp_path)).files

    def test_a_home_that_cannot_be_searched_has_no_settings(self, place: Path) -> None:
        path = file(owned(place / "home", 0, 0o700) / "config.toml", 0, text="nodes = [")

        assert as_user(ME, lambda: toml_file.read_file(str(path)) is None) is True

    def test_another_users_fifo_is_not_waited_for(self, place: Path) -> None:
        os.mkfifo(place / "distlaunch.toml")
        os.chown(place / "distlaunch.toml", STRANGER, STRANGER)
        with pytest.raises(UntrustedError):
            config.load({"DISTLAUNCH_SYSTEM_CONFIG": "/none"}, str(place))

    def test_another_users_kubeconfig_is_refused_as_it_names_programs_to_run(self, place: Path) -> None:
        with pytest.raises(UntrustedError, match="kubeconfig"):
            kubeconfig.find(str(file(place / "kube", STRANGER)))

    def test_another_users_patch_is_refused_as_it_decides_what_a_pod_runs(self, place: Path) -> None:
        with pytest.raises(UntrustedError, match="patch"):
            patch.read([str(file(place / "patch.yaml", STRANGER))], ship_secrets=False)

    def test_another_users_runs_are_listed_and_not_contacted(self, distlaunch: Cli, place: Path) -> None:
        """A run's directory names the program that reaches its hosts."""
        shared = owned(place / "runs", 0, 0o1777)
        env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(shared)}
        evil = shared / "train-20250101-000000-aaaa"
        evil.mkdir()
        ssh = ["sh", "-c", f"touch {place}/was-run"]
        node = {"host": "n", "rank": 0, "python": "p", "directory": "/x", "agent_path": "/x/a", "ssh": ssh}
        handle = {"run_dir": str(evil), "hosts": ["n"], "nodes": [node]}
        text = json.dumps({"backend": "ansible", "command": ["x.py"], "plan": {"nodes": []}, "handle": handle})
        file(evil / "run.json", STRANGER, text=text)
        owned(evil, STRANGER, 0o755)

        for command in ("status", "cancel", "logs"):
            done = distlaunch(command, "last", env=env)
            assert done.exit_code == 2, (command, done)
            assert f"{evil} belongs to {STRANGER}" in done.stderr
        listed = distlaunch("ls", "--output", "json", env=env)

        assert not (place / "was-run").exists()
        assert [run["state"] for run in listed.json["result"]["runs"]] == ["unknown"]
        owned(shared, STRANGER, 0o755)
        assert distlaunch("ls", env=env).exit_code == 2
        distlaunch.write("x.py", "print(1)\n")
        assert "runs_dir" in distlaunch("local", "x.py", env=env).stderr
        assert sorted(path.name for path in shared.iterdir()) == [evil.name], "nothing was written there"


def test_what_is_trusted_stays_so_while_another_thread_reads_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = tmp_path / "team"
    team.mkdir()
    team.chmod(0o777)
    settings = tmp_path / "config.toml"
    settings.write_text(f'trust = ["{team}"]\nruns_dir = "{team}"\n')
    monkeypatch.setenv("DISTLAUNCH_SYSTEM_CONFIG", str(settings))
    monkeypatch.delenv("DISTLAUNCH_RUNS_DIR", raising=False)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within a call
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: distlaunch.runs(), range(400)))
    finally:
        sys.setswitchinterval(interval)

    assert found == [[]] * 400
