"""What a project's settings file may decide, and which of its settings are reported."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from launcher import backends
from launcher.errors import ConfigError
from launcher.settings import config
from launcher.settings.options import JobOptions
from tests.config.owners import _trust_is_reset  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli


def test_a_project_file_cannot_decide_whom_to_trust(distlaunch: Cli) -> None:
    path = distlaunch.write("distlaunch.toml", 'trust = ["/"]\n')

    done = distlaunch("ls")

    assert done.exit_code == 2
    assert f"{path}:1: a project file cannot decide whom to trust" in done.stderr
    assert "DISTLAUNCH_TRUST" in done.stderr


@pytest.mark.parametrize("key", ["runs_dir", '"runs\\u005fdir"'])
def test_a_project_file_cannot_decide_where_runs_are(distlaunch: Cli, key: str) -> None:
    """A run's directory names the program that reaches its hosts, and looking at runs asks for no consent."""
    name = "x-20250101-000000-aaaa"
    evil = distlaunch.write("cloned/ev.sh", f"#!/bin/sh\ntouch {distlaunch.directory}/was-run\n")
    evil.chmod(0o755)
    node = {"host": "h", "rank": 0, "python": "p", "directory": "/x", "agent_path": "/x/a", "ssh": ["./ev.sh", "h"]}
    handle = {"run_dir": f"runs/{name}", "hosts": ["h"], "nodes": [node]}
    run = {"backend": "ansible", "command": ["x.py"], "plan": {"nodes": []}, "handle": handle}
    distlaunch.write(f"cloned/runs/{name}/run.json", json.dumps(run))
    toml = distlaunch.write("cloned/distlaunch.toml", f'{key} = "runs"\n')

    for command in (("ls",), ("status", "last"), ("logs", "last"), ("cancel", "last"), ("config",), ("local", "x.py")):
        done = distlaunch(*command, cwd=toml.parent, env={"DISTLAUNCH_RUNS_DIR": None})
        assert not (distlaunch.directory / "was-run").exists(), command
        assert done.exit_code == 2, (command, done)
        assert f"error[bad_config]: {toml}" in done.stderr
        assert "a project file cannot decide where runs are" in done.stderr
        assert "~/.config/distlaunch/config.toml, or set DISTLAUNCH_RUNS_DIR" in done.stderr


@pytest.mark.parametrize("value", ["[/project/lab]", '["/lab"', "[" * 100_000, '[{"a": 1}]', "[true]"])
def test_a_malformed_list_in_a_variable_is_one_error(distlaunch: Cli, value: str) -> None:
    for name in ("TRUST", "PRELOAD"):
        done = distlaunch("config", env={f"DISTLAUNCH_{name}": value})

        assert done.exit_code == 2, done
        assert f"error[bad_config]: DISTLAUNCH_{name} wants a list of texts, not '[" in done.stderr
        assert "Traceback" not in done.stderr


def test_trust_names_absolute_paths_or_groups(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DISTLAUNCH_TRUST: trust 'lab' is neither"):
        config.load({"DISTLAUNCH_TRUST": "@lab,lab"}, str(tmp_path))


def test_a_project_file_that_changes_what_is_executed_is_reported_and_with_v_each_file(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    user = distlaunch.write(".config/distlaunch/config.toml", "[defaults]\nenv = ['A=1']\n")
    toml = distlaunch.write("distlaunch.toml", f"[defaults]\nnodes = 1\npython = '{sys.executable}'\nenv = ['B=2']\n")
    (distlaunch.directory / "sub").mkdir()

    plain = distlaunch("local", "--dry-run", "x.py").stderr
    told = distlaunch("local", "--dry-run", "-v", "x.py").stderr

    assert plain.count(f"{toml} sets python, env\n") == 1, plain
    assert str(user) not in plain
    assert f"settings: {user}\n" in told
    assert f"settings: {toml}\n" in told
    shown = distlaunch("config").stdout
    assert str(user) in shown
    assert str(toml) in shown
    toml.write_text("[defaults]\nnodes = 1\n")
    assert str(toml) not in distlaunch("local", "--dry-run", "x.py").stderr


@pytest.mark.parametrize("directory", ["project", "a + b", "c: d"])
@pytest.mark.parametrize(
    "key", ["defaults.python", '"def\\u0061ults".python', 'defaults."p\\u0079thon"', "defaults = {python"]
)
def test_a_project_file_that_sets_python_is_reported_however_it_is_written_and_wherever_it_is(
    distlaunch: Cli, directory: str, key: str
) -> None:
    more = "}" if "{" in key else ""
    toml = distlaunch.write(f"{directory}/distlaunch.toml", f"{key} = '{sys.executable}'{more}\n")
    distlaunch.write(f"{directory}/x.py", "")

    told = distlaunch("local", "--dry-run", "--env", "A=1", "x.py", cwd=toml.parent).stderr

    assert told.count(f"{toml} sets python\n") == 1, told


def test_every_command_that_asks_a_cluster_reports_what_a_project_file_changes(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    text = """[clusters.k]
backend = "k8s"
kubeconfig = "kube"
[clusters.s]
backend = "slurm"
sbatch = ["get-user-env"]
[clusters.a]
backend = "ansible"
inventory = ["none.ini"]
in_place = true
[clusters.mine]
backend = "local"
"""
    toml = distlaunch.write("distlaunch.toml", text)
    distlaunch.write(".config/distlaunch/config.toml", "[clusters.mine]\nbackend = 'slurm'\n")

    def told(*command: str) -> list[str]:
        return [
            line.partition(f"{toml} sets ")[2]
            for line in distlaunch(*command).stderr.splitlines()
            if f"{toml} sets " in line
        ]

    assert told("ls", "--on", "k") == told("k8s", "--cluster", "k", "--print-role") == ["kubeconfig"]
    assert told("ls", "--on", "s") == told("run", "--on", "s", "--dry-run", "x.py") == ["sbatch"]
    assert told("adopt", "--on", "a", "x") == ["inventory, in_place"]
    assert told("adopt", "--on", "a", "-i", "n1,", "x") == ["in_place"], "a flag comes before it"
    assert told("run", "--on", "mine", "--dry-run", "x.py") == ["backend"]
    assert told("local", "--dry-run", "x.py") == []


def test_every_option_is_known_to_change_what_is_executed_or_to_leave_it() -> None:
    """Where, when, with which resources and under which name it runs: the code stays the same."""
    harmless = """
        contract ps role numa_binding near_nics virtual_local_rank tty on_hangup fetch fetch_node
        nodes workers nproc_per_node name start_method claim_wait max_restarts
        time grace rdzv_timeout peer_timeout master_port log_limit samples hang_after on_hang warm tracking stragglers
        env_ship_quota share_gpus het_group
        limit exclude spares wait wait_timeout share partial snapshot_limit project_dir host_timeout
        partition account qos gpus_per_node gres cpus_per_task mem constraint nodelist reservation dependency exclusive
        nice login_shell clusters mail_type mail_user licenses wckey switches new_job array snapshot lead max_requeues
        sbcast_above
        namespace kind mpi_implementation queue gpu_resource cpu memory resource shm ipc_lock node_selector toleration
        prefer_same require_same spread priority_class pull_secret pull_policy host_network network_policy ttl
        start_timeout server_dry_run
    """
    classes = [JobOptions, *(backends.load(name).options for name in backends.names())]
    every = {item.name: item.metadata["executes"] for cls in classes for item in fields(cls)}

    assert {name for name, executes in every.items() if not executes} == set(harmless.split())


def test_paths_in_a_settings_file_are_relative_to_it(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    for name in ("project/hosts.ini", "project/deep/x.py"):
        distlaunch.write(name, "h1\n")
    distlaunch.write(".config/distlaunch/config.toml", 'runs_dir = "my-runs"\n')
    text = """[clusters.a]
backend = "ansible"
inventory = ["hosts.ini", "h2,h3,", "~/own.ini", "/abs.ini"]
python = "./env/bin/python"
[clusters.s]
backend = "slurm"
setup = ["module load x", "@lines.sh"]
template = "../t.j2"
container_image = "docker://x"
"""
    distlaunch.write("project/distlaunch.toml", text)
    where = distlaunch.directory / "project"

    def shown(cluster: str) -> dict[str, Any]:
        env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": None}
        done = distlaunch("config", "--cluster", cluster, "--output", "json", cwd=where / "deep", env=env)
        return {key: item["value"] for key, item in done.json["result"]["settings"].items()}

    ssh, slurm = shown("a"), shown("s")
    assert ssh["inventory"] == [f"{where}/hosts.ini", "h2,h3,", f"{distlaunch.directory}/own.ini", "/abs.ini"]
    assert (ssh["python"], ssh["runs_dir"]) == (
        f"{where}/env/bin/python",
        f"{distlaunch.directory}/.config/distlaunch/my-runs",
    )
    assert slurm["setup"] == ["module load x", f"@{where}/lines.sh"]
    assert (slurm["template"], slurm["container_image"]) == (f"{distlaunch.directory}/t.j2", "docker://x")
