"""An impossible value is reported together with the place where it was given."""

from __future__ import annotations

import ast
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher import backends, spec
from launcher.errors import LaunchError
from launcher.settings import checks, config
from launcher.settings.options import JobOptions

if TYPE_CHECKING:
    from tests.command import Cli

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("backend", "line", "says"),
    [
        ("local", "nodes = 'many'", "nodes 'many' is not a number"),
        ("local", "nodes = 0", "nodes 0 is out of range"),
        ("local", "nproc_per_node = 'all'", "nproc-per-node 'all' is not a number"),
        ("local", "nproc_per_node = 0", "nproc-per-node 0 is below 1"),
        ("local", "time = 'soon'", "time 'soon' is not a duration"),
        ("local", "time = 30", "time '30' is not a duration"),
        ("local", "grace = ''", "grace '' is not a duration"),
        ("local", "rdzv_timeout = '0s'", "must be above zero"),
        ("local", "env = [1, 2]", "env '1': '1' is not a variable name"),
        ("local", "env = [true]", "env wants a list of texts"),
        ("local", 'env = ["A=x\\u0000y"]', "env contains a NUL character"),
        ("local", 'python = "a\\u0000b"', "python contains a NUL character"),
        ("ansible", "inventory = ['hosts.ini', '']", "inventory '' is empty"),
        ("ansible", "remote_dir = ''", "remote-dir '' is empty"),
        ("k8s", 'annotation = ["a=\\u0000"]', "annotation contains a NUL character"),
        ("local", "env = ['RANK=7']", "env RANK: distlaunch gives that to each worker itself"),
        ("local", "secret = ['a-b']", "secret 'a-b' is not a variable name"),
        ("local", "start_method = 'frok'", "did you mean fork?"),
        ("local", "preload = ['a b']", "preload 'a b' is not a module name"),
        ("local", "max_restarts = -1", "max-restarts -1 is below 0"),
        ("local", "master_port = 70000", "master-port 70000 is not a port"),
        ("slurm", "lead = 'x'", "lead 'x' is not a duration"),
        ("slurm", "array = '9-0'", "array '9-0'"),
        ("slurm", "sbatch = ['nodes=3']", "sbatch nodes: distlaunch sets that itself"),
        ("slurm", "container_runtime = 'pixis'", "did you mean pyxis?"),
        ("slurm", "max_requeues = -1", "max-requeues -1 is below 0"),
        ("ansible", "snapshot_limit = '200'", "snapshot-limit '200' is not a size"),
        ("ansible", "spares = -1", "spares -1 is below 0"),
        ("ansible", "host_timeout = 0", "host-timeout 0 is below 1"),
        ("k8s", "kind = 'jobs'", "did you mean job?"),
        ("k8s", "memory = '64 GB'", "memory '64 GB' is not a quantity"),
        ("k8s", "volume = ['x']", "volume 'x' is not understood"),
        ("k8s", "toleration = ['a:b']", "toleration 'a:b'"),
        ("k8s", "run_as = 'me'", "run-as 'me'"),
        ("k8s", "ttl = 'never'", "ttl 'never' is not a duration"),
        ("k8s", "label = ['a']", "label 'a' is not KEY=VALUE"),
        ("k8s", "secret_ref = ['RANK=s:k']", "secret RANK: distlaunch gives that"),
        ("k8s", "pull_policy = 'always'", "did you mean Always?"),
    ],
)
def test_config_checks_the_values_of_all_clusters_and_names_the_line(
    distlaunch: Cli, backend: str, line: str, says: str
) -> None:
    text = f'[clusters.good]\nbackend = "local"\n[clusters.bad]\nbackend = "{backend}"\n{line}\n'
    path = distlaunch.write("distlaunch.toml", text)

    done = distlaunch("config")

    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{path}:5: " in done.stderr
    assert says in done.stderr


def test_every_option_that_is_not_plain_text_has_a_check() -> None:
    """Texts that only a cluster can judge have none: names of partitions, images, paths."""
    free = {"name", "python", "runs_dir", "trust", "image", "context", "kubeconfig", "gpu_resource", "workdir", "patch"}
    free |= {
        "inventory",
        "limit",
        "remote_dir",
        "exclude",
        "snapshot_limit",
        "setup",
        "template",
        "env_ship",
        "env_ship_dir",
    }
    classes = [config.GlobalOptions, JobOptions, *(backends.load(name).options for name in backends.names())]
    slurm = {name for name, kind in config.field_types(backends.load("slurm").options).items() if kind in (str, tuple)}
    unchecked = {
        name
        for cls in classes
        for name, kind in config.field_types(cls).items()
        if kind is not bool and name in {item.name for item in fields(cls) if not item.metadata["check"]}
    }

    assert unchecked <= free | slurm | {"output"}, "an option without a check: can every value of it be right?"


def test_a_bad_value_is_named_by_its_variable_its_flag_or_its_line(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    path = distlaunch.write(
        "distlaunch.toml", 'log_ranks = "none"\n[defaults]\ntime = "soon"\nenv = ["A=1", "MASTER_ADDR=x"]\n'
    )

    assert f"{path}:1: log-ranks 'none' is not a list of ranks" in distlaunch("local", "x.py").stderr
    said = distlaunch("local", "--log-ranks", "0", "x.py").stderr
    assert f"{path}:4: env MASTER_ADDR: distlaunch gives that" in said
    path.write_text('[defaults]\ntime = "soon"\n')
    assert f"{path}:2: time 'soon' is not a duration" in distlaunch("local", "x.py").stderr
    assert distlaunch("local", "--time", "1m", "x.py").exit_code == 0, "what was overridden does no harm"
    assert f"{path}:2: time 'soon'" in distlaunch("config", env={"DISTLAUNCH_TIME": "1m"}).stderr, (
        "but config reports it"
    )
    assert "error[bad_spec]: --time 'later' is no" in distlaunch("local", "--time", "later", "x.py").stderr
    said = distlaunch("local", "x.py", env={"DISTLAUNCH_TIME": "x"}).stderr
    assert "error[bad_spec]: DISTLAUNCH_TIME: time 'x' is no" in said
    said = distlaunch(
        "local", "--env", "B", "x.py", env={"DISTLAUNCH_ENV": "C", "B": "1", "DISTLAUNCH_TIME": "1m"}
    ).stderr
    assert "DISTLAUNCH_ENV: env C: not set in the current environment" in said
    said = distlaunch("ls", env={"DISTLAUNCH_OUTPUT": "jason"}).stderr
    assert "DISTLAUNCH_OUTPUT: output 'jason' is not known" in said


@pytest.mark.parametrize(
    ("text", "says"), [("A=x\\u0000y", "a NUL character"), ("A=\\ud800", "text that is not valid Unicode")]
)
def test_a_variable_with_text_that_no_process_can_be_given_is_refused(distlaunch: Cli, text: str, says: str) -> None:
    distlaunch.write("x.py", "")

    for words in (("config",), ("local", "--dry-run", "x.py"), ("local", "x.py")):
        done = distlaunch(*words, env={"DISTLAUNCH_ENV": f'["{text}"]'})
        assert (done.exit_code, done.stdout) == (2, ""), words
        assert f"DISTLAUNCH_ENV contains {says}" in done.stderr
    assert not distlaunch.runs.exists()


@pytest.mark.parametrize(
    ("backend", "line", "says"),
    [
        ("ansible", "inventory = ['none.ini']", "inventory '{}/none.ini' does not exist"),
        ("slurm", "template = 'none.j2'", "template "),
        ("slurm", "setup = ['@none.sh']", "setup "),
        ("slurm", "container_mounts = ['/a:/a']", "container-mounts without a container"),
        ("k8s", "image = 'i'\npatch = ['none.yaml']", "patch "),
        ("local", "python = 'none'", "python 'none' is not on PATH"),
        ("local", "nodes = 1001", "nodes 1001: this machine simulates at most 1000"),
    ],
)
def test_values_that_only_planning_finds_wrong_are_reported_with_their_line_too(
    distlaunch: Cli, backend: str, line: str, says: str
) -> None:
    distlaunch.write("x.py", "import torch\n")
    path = distlaunch.write("distlaunch.toml", f'[clusters.lab]\nbackend = "{backend}"\n{line}\n')

    done = distlaunch("run", "--on", "lab", "--dry-run", "x.py")

    assert done.exit_code == 2
    assert f"error[bad_spec]: {path}:{3 + line.count(chr(10))}: {says.format(distlaunch.directory)}" in done.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('defaults.nodes = "many"\n', 1),
        ('[clusters]\nother = {backend = "local"}\nlab = {backend = "local", nodes = "many"}\n', 3),
        ('[clusters]\nlab.backend = "local"\nlab.nodes = "many"\n', 3),
        ('[clusters."a.b"]\nbackend = "local"\n# nodes = 3\n"nodes" = "many"\n', 4),
        ('[clusters.one]\nbackend = "local"\nnodes = 1\n[clusters.two]\nnodes = "many"\nbackend = "local"\n', 5),
        ('[ defaults ] # all\ngrace = "1s"\n  nodes="many"\n', 3),
    ],
)
def test_the_line_of_a_value_is_found_however_it_is_written(distlaunch: Cli, text: str, line: int) -> None:
    path = distlaunch.write("distlaunch.toml", text)

    assert f"{path}:{line}: nodes 'many' is not a number" in distlaunch("config").stderr


def test_a_settings_file_of_brackets_alone_is_an_error(distlaunch: Cli) -> None:
    distlaunch.write("distlaunch.toml", "a = " + "[" * 100_000)

    done = distlaunch("config")

    assert (done.exit_code, "Traceback" in done.stderr) == (2, False)


def test_variables_that_distlaunch_gives_to_workers_cannot_be_set(distlaunch: Cli) -> None:
    """The list is the agent's, except for variables that users may set too."""
    tree = ast.parse((ROOT / "launcher/agent/contracts/torchrun.py").read_text())
    given = {
        str(call.args[0].value)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Variable"
        if isinstance(call.args[0], ast.Constant) and "environ" not in ast.dump(call.args[1])
    }
    assert {"RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} <= given <= set(spec._SET_BY_US)
    distlaunch.write("x.py", "")

    for name in (*given, "DISTLAUNCH_ATTEMPT"):
        for words in ((f"--env={name}=7",), (f"--env={name}",), (f"--secret={name}",)):
            done = distlaunch("local", *words, "x.py", env={name: "7"} if "DISTLAUNCH" not in name else None)
            assert done.exit_code == 2, done.stderr
            assert f"{name}: distlaunch gives that to each worker itself" in done.stderr
    assert "--master-port PORT sets it" in distlaunch("local", "-e", "MASTER_PORT=1", "x.py").stderr


def test_a_bad_variable_is_reported_without_its_value(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")

    for words in (("--env", "MY-KEY=s3cr3t"), ("--secret", "MY_KEY=s3cr3t"), ("--secret", "MY-KEY=s3cr3t")):
        done = distlaunch("local", *words, "x.py")
        assert done.exit_code == 2
        assert "is not a variable name" in done.stderr
        assert "s3cr3t" not in done.stderr


def test_that_a_run_was_not_submitted_is_reported_once(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    done = distlaunch("slurm", "x.py", env={"PATH": "/nowhere"})
    assert done.exit_code == 3, done.stderr

    status = distlaunch("status", "last")

    assert "not submitted: sbatch is not on PATH" in status.stdout
    assert "not submitted: not submitted" not in status.stdout


STRANGE = [
    "",
    " ",
    "\0",
    "x" * 100_000,
    "9" * 5000,
    "9" * 400,
    "-1",
    "1e999",
    "nan",
    "²",
    "٣",
    "\ud800",
    "%s{}",
    "a\nb",
    "=",
    ":",
    "@",
    ",",
    "[",
    "../..",
    "0:0",
]


@pytest.mark.parametrize("number", ["2147483648", "9" * 400, "-" + "9" * 400])
def test_a_number_far_out_of_range_is_refused(distlaunch: Cli, number: str) -> None:
    distlaunch.write("x.py", "")
    toml = distlaunch.write("distlaunch.toml", f"[defaults]\nmax_restarts = {number}\n")
    wrong = "is too large" if not number.startswith("-") else "is below 0"

    for done, where in (
        (distlaunch("local", "x.py"), f"{toml}:2: max-restarts {number[:20]}"),
        (
            distlaunch("ansible", "-i", "n1,", "--host-timeout", number, "--max-restarts", "0", "x.py"),
            f"--host-timeout {number[:20]}",
        ),
    ):
        assert done.exit_code == 2, done
        assert where in done.stderr
        assert wrong in done.stderr or "is below 1" in done.stderr


@pytest.mark.parametrize("backend", [None, *backends.names()])
def test_no_value_of_any_option_is_an_internal_error(backend: str | None) -> None:
    for cls in (backends.load(backend).options,) if backend else (config.GlobalOptions, JobOptions):
        said: dict[str, str] = {}
        for name, kind in config.field_types(cls).items():
            for text in STRANGE:
                env = {config.ENV_PREFIX + name.upper(): text}
                try:
                    settings = config.Config((), env).resolve(cls)
                    checks.check(cls, settings)
                except LaunchError as error:
                    said[config.ENV_PREFIX + name.upper()] = error.message
                if kind is tuple:
                    values = {name: config.Setting((text,), "flag", (config.Setting((text,), "flag"),))}
                    with suppress(LaunchError):
                        checks.check(cls, {**config.Config((), {}).resolve(cls), **values})
        assert [message for variable, message in said.items() if not message.startswith(variable)] == []
