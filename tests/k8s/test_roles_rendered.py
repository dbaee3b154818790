"""What is created for roles: a Job for each, or one JobSet for all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.k8s.conftest import LABEL
from tests.k8s.rendering import documents, one
from tests.k8s.roles import EXCHANGE, LATEST, ROLES, TWO

if TYPE_CHECKING:
    from tests.command import Cli

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(400)]


def rendered(cli: Cli, *options: str, code: int = 0) -> str:
    """What `--dry-run` prints for roles; its errors if it is to fail."""
    cli.write("exchange.py", EXCHANGE)
    cli.write("run.toml", ROLES)
    done = cli("k8s", "--dry-run", "--image", "registry.test/torch:1", "--roles", "run.toml", *options)
    assert done.exit_code == code, done.stderr
    return done.stderr if code else done.stdout


def test_each_role_is_a_job_whose_pods_know_their_place_in_the_run(distlaunch: Cli) -> None:
    found = documents(rendered(distlaunch))
    run = found[0]["metadata"]["labels"][LABEL]
    *_, rollout, trainer = found

    assert [(item["kind"], item["metadata"]["name"]) for item in (rollout, trainer)] == [
        ("Job", f"{run}-rollout"),
        ("Job", run),
    ]
    assert [item["spec"]["completions"] for item in (trainer, rollout)] == [2, 1]
    templates = [item["spec"]["template"] for item in (trainer, rollout)]
    assert [each["metadata"]["labels"]["distlaunch/first-node"] for each in templates] == ["0", "2"]
    containers = [each["spec"]["containers"][0] for each in templates]
    assert [each["args"][1] for each in containers] == ["JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX+2"]
    assert [each["image"] for each in containers] == ["registry.test/torch:1", LATEST]
    assert [each["resources"]["requests"] for each in containers] == [
        {"cpu": "300m"},
        {"cpu": "200m", "memory": "256Mi"},
    ]
    spec = json.loads(found[0]["data"]["spec.json"])
    assert spec["rendezvous"]["addr"] == f"{run}-0.{run}"
    assert [(role["name"], role["workers"], role["contract"]) for role in spec["roles"]] == [
        ("trainer", 1, "torchrun"),
        ("rollout", 2, "env"),
    ]
    job_set = one(documents(rendered(distlaunch, "--kind", "jobset")), "JobSet")
    assert [each["name"] for each in job_set["spec"]["replicatedJobs"]] == ["trainer", "rollout"]


def test_a_long_name_leaves_room_for_those_of_all_pods(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "print(1)\n")
    for kind, longest in (("job", 32), ("jobset", 26)):
        role = "r" * longest
        words = ("--image", "i:1", "--kind", kind, "--name", "n" * 32, "--role", "a:1:x.py", "--role", f"{role}:2:x.py")
        done = distlaunch("k8s", "--dry-run", *words)
        assert done.exit_code == 0, done.stderr
        name = documents(done.stdout)[-1]["metadata"]["name"]
        # JobSet's webhook counts the random end of a pod's name, too.
        host = f"{name}-{role}-0-99999-abcde" if kind == "jobset" else f"{name}-{role}-99999"
        assert len(host) <= 63


def test_a_role_whose_name_leaves_no_room_is_refused(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "print(1)\n")
    words = ("--image", "i:1", "--kind", "jobset", "--role", "a:1:x.py", "--role", f"{'r' * 27}:2:x.py")
    done = distlaunch("k8s", "--dry-run", *words)

    assert done.exit_code == 2
    assert "leave room for 26 characters" in done.stderr


@pytest.mark.parametrize("kind", ["pods", "pytorchjob", "trainjob", "mpijob", "tfjob"])
def test_a_kind_without_roles_is_refused_and_those_that_have_them_are_named(distlaunch: Cli, kind: str) -> None:
    told = rendered(distlaunch, "--kind", kind, code=2)

    assert f"--kind {kind} has no roles" in told
    assert "--kind job and --kind jobset" in told


def test_roles_in_a_queue_have_to_be_admitted_together(distlaunch: Cli) -> None:
    assert "hint: --kind jobset, which Kueue admits as a whole" in rendered(distlaunch, "--queue", "team", code=2)
    rendered(distlaunch, "--queue", "team", "--kind", "jobset")


def test_an_option_of_a_role_is_about_its_pods_alone(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "print(1)\n")
    distlaunch.write("run.toml", TWO.format(first="x.py", second="x.py", more="spread = true"))
    done = distlaunch("k8s", "--dry-run", "--image", "i:1", "--prefer-same", "rack", "--roles", "run.toml")
    assert done.exit_code == 0, done.stderr
    *_, second, _ = documents(done.stdout)
    run = second["metadata"]["labels"][LABEL]
    affinity = second["spec"]["template"]["spec"]["affinity"]
    (term,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == {LABEL: run, "distlaunch/role": "second"}
    (wish,) = affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["podAffinityTerm"]["labelSelector"]["matchLabels"] == {LABEL: run}, "all roles in one rack"


def test_a_role_without_an_image_and_one_with_an_option_of_the_run_are_refused(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "print(1)\n")
    distlaunch.write("run.toml", TWO.format(first="x.py", second="x.py", more='image = "i:1"'))
    done = distlaunch("k8s", "--dry-run", "--roles", "run.toml")
    assert (done.exit_code, "role first: no image given" in done.stderr) == (2, True), done.stderr
    distlaunch.write("run.toml", TWO.format(first="x.py", second="x.py", more='ttl = "1h"'))
    done = distlaunch("k8s", "--dry-run", "--image", "i:1", "--roles", "run.toml")
    assert (done.exit_code, "a role cannot have its own ttl" in done.stderr) == (2, True), done.stderr
