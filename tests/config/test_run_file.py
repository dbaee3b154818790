"""Run files and `--role NAME:NODES:SCRIPT`: what they accept, and one clear error for everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.command import Cli

GOOD = """\
[roles.trainer]
nodes = 2
script = "a.py"
args = ["--lr", "0.1"]
nproc_per_node = 2

[roles.rollout]
nodes = 1
script = "b.sh"
no_python = true
contract = "env"
env = ["MORE=1"]
serves = true
"""


@pytest.fixture
def cli(distlaunch: Cli) -> Cli:
    """With the scripts of the roles."""
    distlaunch.write("a.py", "")
    distlaunch.write("b.sh", "#!/bin/sh\n").chmod(0o755)
    return distlaunch


def test_each_role_has_its_own_values_and_those_of_the_command_line(cli: Cli) -> None:
    cli.write("run.toml", GOOD.replace('"b.sh"', '"./b.sh"'))

    done = cli("local", "--env=ALL=1", "--nproc-per-node=3", "--dry-run", "--output=json", "--roles=run.toml")

    assert done.exit_code == 0, done.stderr
    spec = done.json["result"]["plan"]["spec"]
    trainer, rollout = spec["roles"]
    assert (spec["max_nodes"], trainer["nodes"], rollout["nodes"]) == (3, 2, 1)
    assert (trainer["command"], trainer["workers"], trainer["contract"]) == (["a.py", "--lr", "0.1"], 2, "torchrun")
    assert (rollout["kind"], rollout["workers"], rollout["contract"]) == ("program", 3, "env")
    assert (trainer["env"], rollout["env"]) == ({"ALL": "1"}, {"ALL": "1", "MORE": "1"})
    assert (trainer["serves"], rollout["serves"]) == (False, True)


ONE_HAS_MORE = """\
[roles.one]
nodes = 1
script = "a.py"
env = ["ALL=2", "OWN=1"]

[roles.two]
nodes = 1
script = "a.py"
"""


def test_the_variables_of_the_first_role_are_its_own(cli: Cli) -> None:
    cli.write("a.py", "import os; print(*map(os.environ.get, ('DISTLAUNCH_ROLE', 'ALL', 'OWN')))")
    cli.write("run.toml", ONE_HAS_MORE)

    done = cli("local", "--env=ALL=1", "--log-ranks=all", "--roles=run.toml")
    shown = cli("local", "--env=ALL=1", "--dry-run", "--roles=run.toml")

    assert done.exit_code == 0, done.stderr
    assert sorted(line.split("] ")[1] for line in done.stdout.splitlines()) == ["one 2 1", "two 1 None"]
    assert "OWN " in shown.stderr, "what is sent to any of them is listed"


@pytest.mark.parametrize(
    ("own", "args", "variables", "expected"),
    [
        ("", [], {}, 3),
        ("max_restarts = 0", [], {}, 0),
        ("", ["--max-restarts=0"], {}, 0),
        ("", [], {"DISTLAUNCH_MAX_RESTARTS": "0"}, 0),
        ("max_restarts = 2", ["--max-restarts=0"], {}, 2),
    ],
)
def test_a_role_that_starts_again_does_so_as_often_as_was_asked(
    cli: Cli, own: str, args: list[str], variables: dict[str, str | None], expected: int
) -> None:
    text = GOOD.replace("nproc_per_node = 2", f'on_failure = "restart_role"\n{own}')
    cli.write("run.toml", text.replace('"b.sh"', '"./b.sh"'))

    done = cli("local", *args, "--dry-run", "--output=json", "--roles=run.toml", env=variables)

    assert done.exit_code == 0, done.stderr
    assert [role["max_restarts"] for role in done.json["result"]["plan"]["spec"]["roles"]] == [expected, 0]


def test_roles_on_the_command_line_are_the_same_with_fewer_words(cli: Cli) -> None:
    done = cli("local", "--dry-run", "--output=json", "--role", "one:2:a.py --lr '0 1'", "--role=two:1:a.py")

    assert done.exit_code == 0, done.stderr
    spec = done.json["result"]["plan"]["spec"]
    assert [role["command"] for role in spec["roles"]] == [["a.py", "--lr", "0 1"], ["a.py"]]


def test_one_name_is_still_the_value_of_role_name(cli: Cli) -> None:
    cli.write("a.py", "import os; print('role', os.environ['ROLE_NAME'])")

    done = cli("local", "--role=trainer", "a.py")

    assert (done.exit_code, done.stdout) == (0, "role trainer\n")


WRONG = [
    ("nodes = 2", "", "run.toml:1: role trainer has no nodes"),
    ("nodes = 2", "nodes = 0", "run.toml:2: nodes 0 is out of range"),
    ("nodes = 2", 'nodes = "1:2"', "nodes 1:2: a role has a fixed number"),
    ("nodes = 2", "nodes = [2]", "run.toml:2: nodes wants a text"),
    ('script = "a.py"', "", "run.toml:1: role trainer has no script"),
    ('"a.py"', '"c.py"', "run.toml:1: script 'c.py' does not exist"),
    ('"env"', '"evn"', "run.toml:11: contract 'evn' is not known"),
    ("serves = true", 'on_failure = "ingore"', "run.toml:13: on_failure 'ingore' is not known"),
    ("serves = true", "severs = true", "run.toml:13: unknown key 'severs' in [roles.rollout]"),
    ("serves = true", 'time = "1h"', "run.toml:13: a role cannot have its own time"),
    ("serves = true", "max_restarts = 1", "run.toml:13: max_restarts: the role rollout never starts again"),
    ("serves = true", "ps = 1", "ps 1: only --contract tensorflow has parameter servers"),
    ("nproc_per_node = 2", "serves = true", "roles: each of them serves the others"),
    ("[roles.trainer]", "[roles.Trainer]", "role 'Trainer' is not a name"),
    ("[roles.trainer]", "[role.trainer]", "run.toml:1: unknown key 'role' at the top level"),
    ("[roles.trainer]", "[roles]\n[roles.trainer", "run.toml:2: broken TOML"),
]


@pytest.mark.parametrize(("old", "new", "error"), WRONG, ids=range(len(WRONG)))
def test_an_error_names_the_line_and_what_is_wrong(cli: Cli, old: str, new: str, error: str) -> None:
    cli.write("run.toml", GOOD.replace('"b.sh"', '"./b.sh"').replace(old, new))

    done = cli("local", "--roles=run.toml")

    assert (done.exit_code, done.stdout) == (2, "")
    assert error in done.stderr
    assert done.stderr.count("error[") == 1
    assert not list(cli.runs.glob("*"))


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--roles=none.toml"], "roles: no file none.toml"),
        (["--roles=run.toml", "a.py"], "with roles, SCRIPT belongs to a role"),
        (["--nodes=2", "--roles=run.toml"], "with roles, --nodes belongs to a role"),
        (["--role=a:1:a.py", "--roles=run.toml"], "--roles and --role NAME:NODES:SCRIPT exclude each other"),
        (["--role=a:1:a.py", "--role=a:1:a.py"], "there are two roles of the name a"),
        (["--role=a:1:", "--role=b:1:a.py"], "--role a: role a has no script"),
        (["--role=a::a.py", "--role=b:1:a.py"], "--role a: role a has no nodes"),
        (["--role=a:1:a.py 'x", "--role=b:1:a.py"], "--role a: No closing quotation"),
        (["--role=a:x:a.py"], "--role a: nodes 'x' is not a number"),
        (["--role=a"], "missing argument 'SCRIPT'"),
    ],
)
def test_what_does_not_go_together_is_one_error(cli: Cli, args: list[str], error: str) -> None:
    cli.write("run.toml", GOOD.replace('"b.sh"', '"./b.sh"'))

    done = cli("local", *args)

    assert (done.exit_code, done.stdout) == (2, "")
    assert error in done.stderr


@pytest.mark.parametrize("command", ["local", "slurm", "k8s", "run --on lab"])
def test_the_hint_stays_with_the_backend(cli: Cli, command: str) -> None:
    cli.write("run.toml", GOOD)
    cli.write("distlaunch.toml", '[clusters.lab]\nbackend = "slurm"\n')

    done = cli(*command.split(), "--nodes=2", "--roles=run.toml")

    assert done.exit_code == 2
    assert f"hint: distlaunch {command} --roles run.toml\n" in done.stderr


def test_doctor_has_no_roles(cli: Cli) -> None:
    cli.write("run.toml", GOOD)

    for option in ("--roles=run.toml", "--role=a:1:a.py"):
        done = cli("doctor", "local", option)
        assert (done.exit_code, "no such option: --role" in done.stderr) == (2, True), done.stderr


def test_a_run_with_roles_is_not_queued_on_several_clusters(cli: Cli) -> None:
    cli.write("distlaunch.toml", '[clusters.one]\nbackend = "local"\n[clusters.two]\nbackend = "local"\n')
    cli.write("run.toml", GOOD)

    done = cli("run", "--on=one,two", "--roles=run.toml")

    assert done.exit_code == 2
    assert "a run with roles cannot be queued on several clusters" in done.stderr
