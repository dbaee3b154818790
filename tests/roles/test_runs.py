"""A run of two roles: they meet, and each failure has what its role says; on this host and over SSH."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.place import nothing_left
from tests.roles.scenarios import ALL, Roles, met

if TYPE_CHECKING:
    from tests.frameworks.place import Place

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture(params=["local", pytest.param("over_ssh", marks=pytest.mark.ssh)])
def roles(request: pytest.FixtureRequest) -> Roles:
    """Two roles on three nodes."""
    place: Place = request.getfixturevalue(request.param)
    return Roles(place)


def test_both_roles_have_ranks_of_their_own_and_meet_and_the_run_ends_with_the_client(roles: Roles) -> None:
    done = roles.run(roles.file())

    assert done.exit_code == 0, done.stderr
    assert met(done.stdout) == ALL, done.stdout
    assert "role client started: 1 node, 2 ranks" in done.stderr
    assert "role server started: 2 nodes, 2 ranks" in done.stderr
    table = [line.split()[1:4] for line in done.stderr.splitlines() if "  client  " in line or "  server  " in line]
    assert table == [["0", "client", "0-1"], ["1", "server", "2"], ["2", "server", "3"]], done.stderr
    assert "[2:3] server 1 of 2 met server" in done.stdout
    state = roles.place.state(roles.mark)
    assert (state["state"], [node["ranks"] for node in state["nodes"]]) == ("success", [[0, 1], [2], [3]])


def test_a_failure_ends_the_run_and_names_the_role(roles: Roles) -> None:
    done = roles.run(roles.file(client_args="wait", server_args="fail rank=1"))

    assert done.exit_code == 1, done.stderr
    assert "first failure: rank 3, role server, host " in done.stderr
    assert ", node 2, exit code 3" in done.stderr


def test_a_role_that_is_to_starts_again_alone(roles: Roles) -> None:
    file = roles.file('on_failure = "restart_role"', client_args="once rank=1", server="")

    done = roles.run(file)

    assert done.exit_code == 0, done.stderr
    assert "role client restart 1 of 3: exited with code 3" in done.stderr
    assert set(met(done.stdout)) == set(ALL), done.stdout
    assert met(done.stdout).count("client 1 of 2") == 2  # its first time, it failed
    assert done.stdout.count(" serves") == 1


def test_after_its_restarts_its_failure_ends_the_run(roles: Roles) -> None:
    file = roles.file('on_failure = "restart_role"\nmax_restarts = 1', client_args="fail rank=0")

    done = roles.run(file)

    assert done.exit_code == 1, done.stderr
    assert "role client restart 1 of 1: exited with code 3" in done.stderr
    assert "first failure: rank 0, role client, host " in done.stderr


def test_an_ignored_failure_is_reported_and_all_else_continues(roles: Roles) -> None:
    done = roles.run(roles.file('on_failure = "ignore"', client_args="fail rank=0"))

    assert done.exit_code == 0, done.stderr
    assert "rank 0: exited with code 3; ignored, as its role client is to be" in done.stderr
    assert met(done.stdout) == ALL, done.stdout


@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_killed_agent_ends_the_run_wherever_it_is(roles: Roles, node: int) -> None:
    code, said = roles.while_it_waits(roles.file(client_args="wait"), lambda _: roles.kill_agent(node), waits=2)

    assert code == 1, said
    assert f"node {node}, signal SIGKILL" in said


def test_the_loss_of_a_node_whose_role_ignores_it_ends_nothing(roles: Roles) -> None:
    file = roles.file(server='on_failure = "ignore"', client_args="wait", server_args="wait")

    def lose(_: object) -> None:
        roles.kill_agent(2)

    code, said = roles.while_it_waits(file, lose, "--time=12s", waits=3)

    assert code == 124, said  # until the time limit
    assert "node 2: the agent (pid " in said
    assert "was killed by SIGKILL; ignored, as its role server is to be" in said


@pytest.mark.torch
@pytest.mark.parametrize("bundled", [False, True])
def test_a_rendered_folder_runs_by_hand_after_it_has_moved(local: Place, bundled: bool) -> None:
    roles = Roles(local)
    file = roles.file()
    if bundled:
        text = '[roles.one]\nnodes = 1\nscript = "reduce.py"\n[roles.two]\nnodes = 2\nscript = "reduce.py"\n'
        Path(file).write_text(text, encoding="utf-8")
    made, moved = local.work / "made", local.work / "moved"
    done = local.cli(*roles.argv(file, f"--render-to={made}"), cwd=local.work)
    assert done.exit_code == 0, done.stderr
    made.rename(moved)

    with nothing_left(roles.mark):
        started = subprocess.run(["sh", moved / "start.sh"], capture_output=True, text=True, timeout=120, check=False)

    assert started.returncode == 0, started.stderr
    lines = [line for line in started.stdout.splitlines() if not line.startswith("{")]
    assert bundled or met("\n".join(lines)) == ALL, lines
    assert not bundled or {line[:3] for line in lines} >= {"[0:", "[1:", "[2:"}, lines


def test_started_again_all_roles_are(roles: Roles) -> None:
    first = roles.run(roles.file(client_args="fail rank=0"))
    assert first.exit_code == 1, first.stderr

    with nothing_left(roles.mark):
        again = roles.place.other("requeue", roles.place.id_of(roles.mark))
        assert again.exit_code == 0, again.stderr
        ended = roles.place.other("wait", roles.place.id_of(roles.mark))

    assert ended.exit_code == 1, ended.stderr
    state = roles.place.state(roles.mark)
    assert (state["attempt"], state["cause"]["rank"], state["cause"]["node"]) == (1, 0, 0)
    assert [node["role"] for node in state["nodes"]] == ["client", "server", "server"]


def test_a_role_whose_only_node_is_lost_is_done_if_that_is_ignored(roles: Roles) -> None:
    file = roles.file(server='on_failure = "ignore"', client_args="wait")
    text = Path(file).read_text(encoding="utf-8").replace("nodes = 2", "nodes = 1").replace("serves = true", "")
    Path(file).write_text(text.replace('"wait"', '"wait", "for=6"'), encoding="utf-8")

    code, said = roles.while_it_waits(file, lambda _: roles.kill_agent(1), waits=2)

    assert code == 0, said
    assert "was killed by SIGKILL; ignored, as its role server is to be" in said


def test_cancel_ends_all_roles(roles: Roles) -> None:
    def cancel(_: object) -> None:
        assert roles.place.other("cancel", roles.place.id_of(roles.mark)).exit_code == 0

    code, said = roles.while_it_waits(roles.file(client_args="wait"), cancel, waits=2)

    assert code == 130, said


def test_the_time_limit_ends_all_roles(roles: Roles) -> None:
    done = roles.run(roles.file(client_args="wait"), "--time=6s")

    assert done.exit_code == 124, done.stderr
    assert roles.place.state(roles.mark)["state"] == "timeout"
