"""Roles on Kubernetes: they meet, fail, are disrupted and start again."""

from __future__ import annotations

import re
import signal

import pytest

from testbed import Kube, wait_until
from tests.k8s.conftest import MORE_KINDS, User, job_ends
from tests.k8s.role import role_rules
from tests.k8s.roles import EXCHANGE, FAILS_ONCE, LASTS, LATEST, ROLES, STAYS, UNTIL, by_role, said, write
from tests.k8s.scripts import WAITS
from tests.k8s.test_disruptions import agent_of, no_room

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(400)]


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_roles_with_different_contracts_images_and_resources_reach_one_another(kinds: User, kind: str) -> None:
    kinds.write("exchange.py", EXCHANGE)
    kinds.write("run.toml", ROLES)
    asked = kinds("k8s", "--dry-run=server", "--kind", kind, "--roles", "run.toml")
    assert asked.exit_code == 0, asked.stderr
    run = kinds.follow("--kind", kind, "--log-ranks", "all", "--roles", "run.toml")

    done = run.result()

    assert done.exit_code == 0, done.stderr
    assert said(done.stdout) == [
        "0 trainer 0/2 on 2: rollout to 0; RANK",
        "1 trainer 1/2 on 2: rollout to 1; RANK",
        "2 rollout 0/2 on 1: trainer to 0; DISTLAUNCH_RANK",
        "2 rollout 1/2 on 1: trainer to 1; DISTLAUNCH_RANK",
    ]
    made = {
        (pod["metadata"]["labels"]["distlaunch/role"], each["image"], *each["resources"]["requests"].items())
        for pod in kinds.pods(run.run)
        for each in pod["spec"]["containers"]
    }
    assert made == {
        ("trainer", kinds.image, ("cpu", "300m")),
        ("rollout", LATEST, ("cpu", "200m"), ("memory", "256Mi")),
    }
    state = kinds.state(run.run)
    assert (state["state"], len(state["nodes"])) == ("success", 3)

    def listed() -> bool:
        """Its controller may be late."""
        (row,) = kinds("ls", "--on", "k8s", "--output", "json").json["result"]["runs"]
        assert (row["run"], row["nodes"]) == (run.run, "3")
        return bool(row["state"] == "success")

    wait_until("the run to be listed as ended", listed)
    assert kinds("rm", run.run).exit_code == 0
    kinds.wait_nothing_left(run.run, **MORE_KINDS)


def test_a_failure_ends_the_run_or_starts_its_role_again_or_is_ignored(kinds: User) -> None:
    """With Jobs and with a JobSet; the first of them without a command that looks."""
    kinds.write("stays.py", STAYS)
    kinds.write("lasts.py", LASTS)
    kinds.write("fails.py", FAILS_ONCE)
    ends = write(kinds, "ends.toml", "stays.py", "fails.py")
    again = write(kinds, "again.toml", "lasts.py", "fails.py", 'on_failure = "restart_role"')
    ignored = write(kinds, "ignored.toml", "lasts.py", "fails.py", 'on_failure = "ignore"')
    several = ("--log-ranks", "all", "--grace", "5s")
    alone = kinds.detached("--grace", "5s", "--roles", ends)
    runs = {
        (kind, file): kinds.follow("--kind", kind, *several, "--roles", file)
        for kind in ("job", "jobset")
        for file in (ends, again, ignored)
    }

    assert job_ends(kinds, alone) == job_ends(kinds, f"{alone}-second") == {"Failed"}
    assert kinds("wait", alone).exit_code == 1
    for (kind, file), follower in runs.items():
        done = follower.result()
        told = f"{kind} {file}: {done.stdout} {done.stderr}"
        assert done.exit_code == (1 if file == ends else 0), told
        if file == ends:
            cause = kinds.state(follower.run)["cause"]
            assert (cause["rank"], cause["node"], cause["exit_code"]) == (2, 2, 3), told
            assert "role second" in done.stderr, told
        if file == again:
            assert [done.stdout.count(f"restarts {number}") for number in (0, 1)] == [2, 2], told
        if file == ignored:
            assert "ignored, as its role second is to be" in done.stderr, told
        if file != ends:
            assert (done.stdout.count("begun"), done.stdout.count("lasted")) == (1, 1), told
            assert kinds.state(follower.run)["state"] == "success", told


def test_a_deleted_pod_of_any_role_starts_all_of_them_again(kinds: User) -> None:
    """By a user who has only the documented rights."""
    kinds.write("waits.py", WAITS)
    file = write(kinds, "run.toml", "waits.py", "waits.py")
    lesser = kinds.with_rights("documented", role_rules())
    cases = {("job", "first"): lesser, ("job", "second"): lesser, ("jobset", "second"): kinds}
    runs = {
        (kind, role): user.follow("--kind", kind, "--log-ranks", "all", "--roles", file)
        for (kind, role), user in cases.items()
    }
    for (_, role), follower in runs.items():
        follower.until("ready", count=3)
        kinds.kube.evict(kinds.namespace, by_role(kinds, follower.run)[role][0]["metadata"]["name"])

    for case, follower in runs.items():
        done = follower.result()
        told = f"{case}: {done.stdout} {done.stderr}"
        assert done.exit_code == 0, told
        words = ("ready", "saving with time left", "saved", "attempt 1 preempted")
        assert [done.stdout.count(word) for word in words] == [3, 3, 3, 3], told
        state = cases[case].state(follower.run)
        assert (state["state"], state["attempt"]) == ("success", 1), told


def test_a_node_that_is_lost_starts_the_run_again_unless_its_role_ignores_failures(pods: User, own_kube: Kube) -> None:
    pods.write("lasts.py", UNTIL)
    pods.write("stays.py", STAYS)
    pods.write("waits.py", WAITS)
    again = pods.follow("--log-ranks", "all", "--roles", write(pods, "again.toml", "waits.py", "waits.py"))
    more = 'on_failure = "ignore"\nserves = true'
    file = write(pods, "ignored.toml", "lasts.py", "stays.py", more)
    ignored = pods.follow("--log-ranks", "all", "--grace", "2s", "--roles", file)
    again.wait("three that wait", lambda: again.stdout.count("ready") == 3)
    ignored.wait("all to run", lambda: (ignored.stdout.count("begun"), ignored.stdout.count("ready")) == (1, 2))
    before = {pod["metadata"]["uid"] for pod in pods.pods(ignored.run)}

    for run in (again.run, ignored.run):
        agent_of(f"{run}-second-0").kill()

    ignored.wait_err("the run continues without this node, which waits until it ends or starts again")
    ignored.process.send_signal(signal.SIGUSR1)
    done = ignored.result()
    assert (done.exit_code, done.stdout.count("lasted")) == (0, 1), done.stdout + done.stderr
    assert "ignored, as its role second is to be" in done.stderr
    assert done.stdout.count("ready") == 2, "what replaces the pod is not needed"
    assert job_ends(pods, ignored.run) == job_ends(pods, f"{ignored.run}-second") == {"Complete"}
    after = {pod["metadata"]["uid"] for pod in pods.pods(ignored.run)}
    assert len(after - before) == 1, "the other pods are those from before"
    assert pods.state(ignored.run)["state"] == "success"
    done = again.result()
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("attempt 1") == 3, done.stdout


def test_a_pod_that_replaces_one_that_is_not_needed_is_there_when_all_start_again(kinds: User) -> None:
    kinds.write("waits.py", WAITS)
    file = write(kinds, "run.toml", "waits.py", "waits.py", 'on_failure = "ignore"')
    runs = {kind: kinds.follow("--kind", kind, "--log-ranks", "all", "--roles", file) for kind in ("job", "jobset")}
    for follower in runs.values():
        follower.until("ready", count=3)
        kinds.kube.evict(kinds.namespace, by_role(kinds, follower.run)["second"][0]["metadata"]["name"])
    for follower in runs.values():
        follower.wait_err("the run continues without this node, which waits until it ends or starts again")
        assert follower.stdout.count("saved") == 1
        kinds.kube.evict(kinds.namespace, by_role(kinds, follower.run)["first"][0]["metadata"]["name"])

    for kind, follower in runs.items():
        done = follower.result()
        told = f"{kind}: {done.stdout} {done.stderr}"
        assert (done.exit_code, done.stdout.count("saved")) == (0, 3), told
        assert sorted(re.findall(r"attempt \d", done.stdout)) == ["attempt 2"] * 3, told


def test_a_role_that_ignores_failures_is_left_by_pods_that_are_taken_away_and_not_waited_for(kinds: User) -> None:
    """Its workers have their grace time, and the others continue."""
    kinds.write("lasts.py", LASTS.replace("sleep(4)", "sleep(15)"))
    kinds.write("waits.py", WAITS)
    file = write(kinds, "run.toml", "lasts.py", "waits.py", 'on_failure = "ignore"\nserves = true')
    runs = {kind: kinds.follow("--kind", kind, "--log-ranks", "all", "--roles", file) for kind in ("job", "jobset")}
    for follower in runs.values():
        follower.until("begun")
        follower.until("ready", count=2)

    with no_room(kinds):
        for follower in runs.values():
            kinds.kube.evict(kinds.namespace, by_role(kinds, follower.run)["second"][0]["metadata"]["name"])

        for kind, follower in runs.items():
            done = follower.result()
            told = f"{kind}: {done.stdout} {done.stderr}"
            assert (done.exit_code, done.stdout.count("lasted"), done.stdout.count("begun")) == (0, 1, 1), told
            assert "ignored, as its role second is to be" in done.stderr, told
            assert kinds.state(follower.run)["state"] == "success", told
        assert job_ends(kinds, runs["job"].run) == {"Complete"}
