"""Settings: every layer, and every mistake in them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from launcher import backends
from launcher.backends.local.options import LocalOptions
from launcher.errors import ConfigError
from launcher.settings import config, job_spec
from launcher.settings.options import JobOptions
from launcher.settings.shared_options import SharedOptions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli, Result


def load(tmp_path: Path, env: dict[str, str] | None = None, **files: str) -> config.Config:
    """The settings with these files as `system`, `user` and `project`."""
    places = {"system": "system.toml", "user": "home/.config/distlaunch/config.toml", "project": "work/distlaunch.toml"}
    (tmp_path / "work" / "deep").mkdir(parents=True)
    for name, text in files.items():
        path = tmp_path / places[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    where = {"DISTLAUNCH_SYSTEM_CONFIG": str(tmp_path / "system.toml"), "HOME": str(tmp_path / "home")}
    return config.load({**where, **(env or {})}, str(tmp_path / "work" / "deep"))


def test_a_later_layer_wins_and_the_source_names_it(tmp_path: Path) -> None:
    files = {
        "system": '[defaults]\nnodes = 1\nstart_method = "spawn"\ngrace = "5s"\ntime = "1h"\nname = "a"\n',
        "user": '[defaults]\ngrace = "6s"\ntime = "2h"\nname = "b"\n',
        "project": '[defaults]\ntime = "3h"\nname = "c"\n'
        '[clusters.x]\nbackend = "local"\nname = "d"\nmax_restarts = 4\n',
    }
    loaded = load(tmp_path, {"DISTLAUNCH_MAX_RESTARTS": "5"}, **files)
    found = loaded.resolve(
        JobOptions, cluster=loaded.cluster("x", lambda _: LocalOptions), flags={"nodes": "7", "python": None}
    )

    assert found["nodes"] == config.Setting("7", "flag")
    assert found["start_method"] == config.Setting("spawn", f"{tmp_path}/system.toml:3")
    assert found["grace"] == config.Setting("6s", f"{tmp_path}/home/.config/distlaunch/config.toml:2")
    assert found["time"] == config.Setting("3h", f"{tmp_path}/work/distlaunch.toml:2")
    assert found["name"] == config.Setting("d", f"{tmp_path}/work/distlaunch.toml:6")
    assert found["max_restarts"] == config.Setting(5, "DISTLAUNCH_MAX_RESTARTS")
    assert found["python"] == config.Setting("", "default")


@pytest.mark.parametrize(
    ("more", "variables", "nodes"),
    [
        ("", {}, 2),
        ("", {"DISTLAUNCH_NODES": "4"}, 4),
        ("nodes = 4\n", {}, 4),
        ("nodes = 4\n", {"DISTLAUNCH_WORKERS": "24"}, 3),
    ],
)
def test_of_the_numbers_of_nodes_and_of_workers_the_later_layer_wins(
    distlaunch: Cli, more: str, variables: dict[str, str | None], nodes: int
) -> None:
    distlaunch.write("distlaunch.toml", f'[defaults]\nworkers = 16\n[clusters.lab]\nbackend = "local"\n{more}')
    distlaunch.write("x.py", "")
    done = distlaunch(
        "run", "--on", "lab", "--nproc-per-node", "8", "--dry-run", "--output", "json", "x.py", env=variables
    )
    assert len(done.json["result"]["plan"]["argv"]) == nodes, done


def test_a_cluster_in_a_later_file_changes_single_keys(tmp_path: Path) -> None:
    system = '[clusters.x]\nbackend = "local"\nnodes = 2\ngrace = "9s"\n'
    profile = load(tmp_path, system=system, project="[clusters.x]\nnodes = 3\n").cluster("x", lambda _: LocalOptions)

    assert profile.backend == "local"
    assert {key: item.value for key, item in profile.values.items()} == {"nodes": "3", "grace": "9s"}


def test_variables_of_all_layers_add_up_and_the_last_one_of_a_name_is_last(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"DISTLAUNCH_ENV": "B=2,C=3"}, project='[defaults]\nenv = ["A=1", "B=1"]\n')

    assert loaded.resolve(JobOptions, flags={"env": ("A=9",)})["env"].value == ("A=1", "B=1", "B=2", "C=3", "A=9")


def test_a_variable_is_the_later_layers_also_if_an_earlier_one_gave_it_the_same_value(distlaunch: Cli) -> None:
    text = '[defaults]\nenv = ["A=1"]\n[clusters.c]\nbackend = "local"\nenv = ["A=2"]\n'
    distlaunch.write("distlaunch.toml", text)

    def printed(*flags: str) -> str:
        return distlaunch("run", "--on", "c", *flags, "--no-python", "sh", "-c", "echo A=$A").stdout.strip()

    assert (printed(), printed("--env", "A=1")) == ("A=2", "A=1")


def test_a_variable_without_a_value_in_a_file_can_get_one_from_a_flag(distlaunch: Cli) -> None:
    path = distlaunch.write("distlaunch.toml", '[defaults]\nenv = ["WANDB_PROJECT"]\n')

    def start(*flags: str, here: str | None = None) -> Result:
        script = ("--no-python", "sh", "-c", "echo $WANDB_PROJECT")
        return distlaunch("local", *flags, *script, env={"WANDB_PROJECT": here})

    assert start("--env", "WANDB_PROJECT=demo").stdout.strip() == "demo"
    assert start(here="mine").stdout.strip() == "mine"
    refused = start()
    assert refused.exit_code == 2
    assert f"{path}:2: env WANDB_PROJECT: not set in the current environment" in refused.stderr


def test_a_comma_in_a_variable_survives_as_json(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"DISTLAUNCH_ENV": '["NCCL_IB_HCA=mlx5_0,mlx5_1"]'})

    assert loaded.resolve(JobOptions)["env"].value == ("NCCL_IB_HCA=mlx5_0,mlx5_1",)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("[defaults]\nnode = 3\n", 2, "unknown key 'node' in [defaults]", "did you mean nodes? known: nodes, "),
        ("rusn_dir = 'x'\n", 1, "unknown key 'rusn_dir' at the top level", "did you mean runs_dir? known: runs_dir, "),
        (
            "\n[default]\nnodes = 3\n",
            2,
            "unknown section 'default' at the top level",
            "did you mean defaults? known: runs_dir, ",
        ),
        ("[defaults]\nmax_restarts = 'x'\n", 2, "max_restarts wants a whole number, not 'x'", None),
        ("[defaults]\nno_python = 1\n", 2, "no_python wants true or false, not 1", None),
        ("[defaults]\n# nodes\nenv = 'A=1'\n", 3, "env wants a list of texts", None),
        ("[defaults]\nnodes = [\n", 2, "broken TOML", None),
        ("nodes = 3\n", 1, "unknown key 'nodes' at the top level", "write nodes below [defaults]"),
        (
            "[defaults]\npartition = 'gpu'\n",
            2,
            "unknown key 'partition' in [defaults]",
            "an option of one backend belongs to a [clusters.NAME], or to DISTLAUNCH_PARTITION; known: nodes, ",
        ),
        ("defaults = 3\n", 1, "defaults is a section, not a value", "write [defaults]"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, message: str, hint: str | None
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, project=text)

    assert f"{tmp_path}/work/distlaunch.toml:{line}" in caught.value.message
    assert message in caught.value.message
    assert hint is None or str(caught.value.hint).startswith(hint)


def test_a_settings_file_that_is_not_text_or_not_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "distlaunch.toml"
    path.write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(ConfigError, match=r"distlaunch.toml:2: not UTF-8"):
        config.load({}, str(tmp_path))
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot read"):
        config.load({}, str(tmp_path))


@pytest.mark.parametrize(("name", "value"), [("MAX_RESTARTS", "x"), ("NO_PYTHON", "maybe"), ("ENV", "[1")])
def test_a_mistake_in_a_variable_is_named(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"DISTLAUNCH_{name} wants"):
        load(tmp_path, {f"DISTLAUNCH_{name}": value})


def test_an_unknown_cluster_lists_the_known_ones(distlaunch: Cli) -> None:
    distlaunch.write("distlaunch.toml", '[clusters.lab]\nbackend = "local"\n[clusters.big]\nbackend = "local"\n')

    done = distlaunch("run", "--on", "lap", "x.py")

    assert done.exit_code == 2
    assert "unknown cluster 'lap'" in done.stderr
    assert "did you mean lab? known: big, lab" in done.stderr


def test_an_unknown_backend_of_a_cluster_lists_the_known_ones(distlaunch: Cli) -> None:
    distlaunch.write("distlaunch.toml", '[clusters.lab]\nbackend = "slrum"\n')

    done = distlaunch("run", "--on", "lab", "x.py")

    assert done.exit_code == 2
    assert "distlaunch.toml:2: unknown backend 'slrum' in [clusters.lab]" in done.stderr
    assert "local" in done.stderr


def test_a_cluster_takes_the_options_of_its_backend_and_no_others(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    distlaunch.write("distlaunch.toml", '[clusters.lab]\nbackend = "local"\nshare_gpus = true\nnodes = 3\n')
    assert (
        len(distlaunch("local", "--cluster", "lab", "--dry-run", "--output", "json", "x.py").json["result"]["nodes"])
        == 3
    )
    assert distlaunch("run", "--on", "lab", "x.py").exit_code == 0
    (recorded,) = distlaunch.runs.glob("*/run.json")
    run = json.loads(recorded.read_text())
    assert (run["options"], run["cluster"], run["nodes"]) == ({"share_gpus": True}, "lab", "3")

    assert distlaunch("run", "--on=lab", "--no-share-gpus", "x.py").exit_code == 0
    recorded = max(distlaunch.runs.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    assert json.loads(recorded.read_text())["options"] == {"share_gpus": False}
    assert "--share-gpus" in distlaunch("run", "--on", "lab", "--help").stdout
    assert "--share-gpus" not in distlaunch("run", "--help").stdout

    distlaunch.write("distlaunch.toml", '[clusters.lab]\nbackend = "local"\npartition = "a"\n')
    done = distlaunch("run", "--on", "lab", "x.py")
    assert done.exit_code == 2
    assert "distlaunch.toml:3: unknown key 'partition' in [clusters.lab]" in done.stderr
    assert "hint: lab has the backend local; " in done.stderr


def test_config_shows_each_value_with_its_source_and_finds_mistakes_in_any_cluster(distlaunch: Cli) -> None:
    path = distlaunch.write("distlaunch.toml", '[defaults]\nnodes = 4\n[clusters.lab]\nbackend = "local"\n')

    shown = distlaunch("config", "--output", "json", env={"DISTLAUNCH_GRACE": "7s"}).json["result"]

    assert shown["settings"]["nodes"] == {"value": "4", "source": f"{path}:2"}
    assert shown["settings"]["grace"] == {"value": "7s", "source": "DISTLAUNCH_GRACE"}
    assert shown["clusters"] == {"lab": {"backend": "local"}}
    path.write_text('[clusters.lab]\nnodes = "2"\n')
    assert "names no backend" in distlaunch("config").stderr


@pytest.mark.parametrize(
    ("text", "variable", "where"),
    [
        ("", "SHARE_GPUS=maybe", "DISTLAUNCH_SHARE_GPUS wants true or false"),
        ("", "WAIT_TIMEOUT=soon", "DISTLAUNCH_WAIT_TIMEOUT: wait-timeout 'soon' is not a duration"),
        ("[defaults]\nmax_requeues = -1\n", "", "distlaunch.toml:2: max-requeues -1 is below 0"),
        ("[defaults]\nmax_requeues = -1\n", "MAX_REQUEUES=2", "distlaunch.toml:2: max-requeues -1 is below 0"),
    ],
)
def test_config_finds_mistakes_in_what_a_backend_uses_without_a_cluster(
    distlaunch: Cli, text: str, variable: str, where: str
) -> None:
    distlaunch.write("distlaunch.toml", text)
    name, _, value = variable.partition("=")

    done = distlaunch("config", env={f"DISTLAUNCH_{name}": value} if name else {})

    assert done.exit_code == 2
    assert where in done.stderr


def test_config_shows_what_a_variable_sets_for_a_backend_and_takes_what_one_of_several_takes(distlaunch: Cli) -> None:
    distlaunch.write("distlaunch.toml", '[defaults]\ngpus_per_node = "a100:4"\n')

    shown = distlaunch("config", "--output", "json", env={"DISTLAUNCH_SHARE_GPUS": "yes"}).json["result"]["settings"]

    assert shown["share_gpus"] == {"value": True, "source": "DISTLAUNCH_SHARE_GPUS"}
    assert shown["gpus_per_node"]["value"] == "a100:4", "only Kubernetes has no types"


def test_options_for_the_agents_arrive_in_their_job_as_they_were_checked() -> None:
    options = JobOptions(max_restarts=3, rdzv_timeout="2m", log_limit="1GB", role="trainer", near_nics=True)
    spec = job_spec.from_options(options, ("train.py",), kind="script", cwd="/")
    job = spec.job(run="r", directory="/r", rendezvous={})

    assert (job.max_restarts, job.rdzv_timeout_s, job.log_limit_bytes) == (3, 120.0, 10**9)
    assert (job.role, job.near_nics, job.virtual_local_rank, job.master_port) == ("trainer", True, False, None)
    assert {item.metadata["job"] for item in fields(JobOptions)} - {""} == set(spec.agents)


def test_options_that_several_backends_have_can_be_defaults_of_all(tmp_path: Path) -> None:
    shared = load(tmp_path, user='[defaults]\ngpus_per_node = 4\n[clusters.x]\nbackend = "slurm"\ngpus_per_node = 2\n')
    by_backend = {name: backends.load(name).options for name in backends.names()}

    found = {name: shared.resolve(cls).get("gpus_per_node") for name, cls in by_backend.items()}

    where = f"{tmp_path}/home/.config/distlaunch/config.toml:2"
    assert (found["slurm"], found["k8s"], found["local"]) == (
        config.Setting("4", where),
        config.Setting(4, where),
        None,
    )
    cluster = shared.cluster("x", by_backend.__getitem__)
    assert shared.resolve(by_backend["slurm"], cluster=cluster)["gpus_per_node"].value == "2"
    typed = load(tmp_path / "typed", user='[defaults]\ngpus_per_node = "a100:4"\n')
    assert typed.resolve(by_backend["slurm"])["gpus_per_node"].value == "a100:4"
    with pytest.raises(ConfigError, match=r"config\.toml:2: gpus_per_node wants a whole number"):
        typed.resolve(by_backend["k8s"])
    counts = Counter(item.name for cls in by_backend.values() for item in fields(cls))
    several = {name for name, count in counts.items() if count > 1}
    of_one_cluster = {"login", "exclude", "setup", "container_image", "container_runtime", "container_mounts"}
    of_its_files = {"remote_dir", "in_place", "snapshot_limit"}
    alone = several - {item.name for item in fields(SharedOptions)}
    assert alone == of_one_cluster | of_its_files, "its hosts, modules, images and disks"
    assert {item.name for item in fields(SharedOptions)} <= several
