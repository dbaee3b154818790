"""Runs with roles, from outside: ended, applied by hand, started again on request, queued."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testbed import kube_programs
from testbed.kube_builds import KUBERNETES
from tests.k8s.conftest import KINDS, MORE_KINDS, User
from tests.k8s.roles import AGAIN, EXCHANGE, ROLES, STAYS, ready, write
from tests.k8s.scripts import WAITS

if TYPE_CHECKING:
    from tests.k8s.proxy import Proxy

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(400)]


def kubectl() -> str:
    """The directory with kubectl."""
    return str(Path(str(kube_programs.find(KUBERNETES, "kubectl"))).parent)


def test_the_end_of_a_run_is_that_of_all_its_roles(kinds: User) -> None:
    """Cancelled, out of time, and with a Job that someone else deletes."""
    kinds.write("stays.py", STAYS)
    file = write(kinds, "run.toml", "stays.py", "stays.py")
    late = {
        kind: kinds.follow("--kind", kind, "--time", "6s", "--grace", "2s", "--roles", file)
        for kind in ("job", "jobset")
    }
    cancelled = {kind: kinds.detached("--kind", kind, "--roles", file) for kind in ("job", "jobset")}
    robbed = kinds.follow("--grace", "2s", "--roles", file)
    for run in cancelled.values():
        ready(kinds, run)
        assert kinds("cancel", run).exit_code == 0
        state = kinds.state(run)
        assert (state["state"], {node["result"] for node in state["nodes"]}) == ("cancelled", {"cancelled"}), state
        kinds.wait_nothing_left(run, **MORE_KINDS)
    ready(kinds, robbed.run)
    jobs = KINDS["jobs"].format(kinds.namespace)
    kinds.kube.api.delete(f"{jobs}/{robbed.run}-second", propagationPolicy="Background")

    for kind, follower in late.items():
        done = follower.result()
        assert done.exit_code == 124, f"{kind}: {done.stderr}"
        assert kinds.state(follower.run)["state"] == "timeout", kind
    done = robbed.result()
    assert (done.exit_code, kinds.state(robbed.run)["state"]) == (130, "cancelled"), done.stderr
    kinds.wait_nothing_left(robbed.run)


def test_the_rendered_file_runs_by_hand_and_its_first_job_owns_the_others(kinds: User) -> None:
    kinds.write("exchange.py", EXCHANGE)
    kinds.write("run.toml", ROLES)
    for kind in ("job", "jobset"):
        words = ("--kind", kind, "-n", kinds.namespace, "--roles", "run.toml", "--render-to", f"out-{kind}")
        assert kinds("k8s", *words).exit_code == 0
    for kind in ("job", "jobset"):
        path = kinds.cli.directory / f"out-{kind}" / "run.yaml"
        kinds.kube.kubectl("apply", "--server-side", "-f", str(path))
        text = path.read_text(encoding="utf-8")
        (run,) = re.findall(r"^# Run (\S+):", text, re.MULTILINE)
        found = kinds("ls", "--on", "k8s", "--output", "json").json["result"]["runs"]
        assert [row["run"] for row in found] == [run], "one run, though its Jobs have no owner yet"
        (own,) = re.findall(r"^# Then, .*?: (kubectl patch .*)$", text, re.MULTILINE)
        env = {**os.environ, "KUBECONFIG": str(kinds.kubeconfig), "PATH": f"{kubectl()}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", own], env=env, check=True, timeout=120)
        assert kinds("wait", run, "--on", "k8s").exit_code == 0
        assert len(kinds("logs", run).stdout.splitlines()) == 4
        state = kinds("status", run, "--output", "json").json["result"]
        assert (state["state"], len(state["nodes"])) == ("success", 3)
        assert kinds("rm", run).exit_code == 0
        kinds.wait_nothing_left(run, **MORE_KINDS)


def test_all_roles_are_started_again_on_request_here_and_elsewhere(kinds: User) -> None:
    kinds.write("waits.py", WAITS)
    kinds.write("again.py", AGAIN)
    running = kinds.follow("--log-ranks", "all", "--roles", write(kinds, "run.toml", "waits.py", "waits.py"))
    file = write(kinds, "again.toml", "again.py", "again.py")
    ended = {kind: kinds.follow("--kind", kind, "--roles", file) for kind in ("job", "jobset")}
    running.wait("three that wait", lambda: running.stdout.count("ready") == 3)

    asked = kinds("requeue", running.run)

    assert asked.exit_code == 0, asked.stderr
    done = running.result()
    assert (done.exit_code, done.stdout.count("attempt 1 preempted")) == (0, 3), done.stdout + done.stderr
    assert {kind: follower.result().exit_code for kind, follower in ended.items()} == dict.fromkeys(ended, 1)
    there: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(kinds.cli.directory / "elsewhere")}
    for number, env in enumerate(({}, there), start=1):
        for kind, follower in ended.items():
            begun = kinds("requeue", follower.run, "--on", "k8s", env=env)
            assert begun.exit_code == 0, f"{kind}: {begun.stderr}"
        for kind, follower in ended.items():
            assert kinds("wait", follower.run, env=env).exit_code == 2 - number, kind
            shown = kinds("logs", follower.run, env=env).stdout
            assert f"attempt {number} after failed" in shown, f"{kind}: {shown}"
            state = kinds("status", follower.run, "--output", "json", env=env).json["result"]
            assert (state["attempt"], len(state["nodes"])) == (number, 3), kind


def test_kueue_admits_the_roles_of_a_jobset_together(kinds: User) -> None:
    """With room for one role at most, none starts."""
    kueue = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
    objects: list[dict[str, Any]] = [{**kueue, "kind": "ResourceFlavor", "metadata": {"name": "any"}}]
    for queue, quota in (("tight", "400m"), ("roomy", "9")):
        flavors = [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": quota}]}]
        spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]}
        name = f"roles-{queue}"
        objects += [
            {**kueue, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec},
            {**kueue, "kind": "LocalQueue", "metadata": {"name": queue}, "spec": {"clusterQueue": name}},
        ]
    for item in objects[1::2]:
        item["spec"]["resourceGroups"][0]["coveredResources"].append("memory")
        item["spec"]["resourceGroups"][0]["flavors"][0]["resources"].append({"name": "memory", "nominalQuota": "9Gi"})
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    kinds.kube.kubectl("apply", "-n", kinds.namespace, "-f", "-", stdin=text)
    kinds.write("exchange.py", EXCHANGE)
    kinds.write("run.toml", ROLES.replace('cpu = "300m"', 'cpu = "200m"\nmemory = "64Mi"'))
    words = ("--kind", "jobset", "--log-ranks", "all", "--roles", "run.toml")
    tight = kinds.follow("--queue", "tight", *words)
    roomy = kinds.follow("--queue", "roomy", *words)

    done = roomy.result()

    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 4), done.stderr
    tight.wait_err("it waits to be admitted")
    assert kinds.pods(tight.run) == []
    assert kinds("cancel", tight.run).exit_code == 0
    kinds.wait_nothing_left(tight.run, **MORE_KINDS)


@pytest.mark.parametrize(("resource", "allowed"), [("count/jobs.batch", "1"), ("secrets", "0")])
def test_a_submission_that_is_refused_half_way_leaves_no_job_of_any_role(
    user: User, resource: str, allowed: str
) -> None:
    """On a control plane without nodes."""
    user.kube.quota(user.namespace, **{resource: allowed})

    done = user("k8s", "--detach", "--role", "one:1:x.py", "--role", "two:1:x.py", "--role", "three:2:x.py")

    assert done.exit_code == 2, done.stderr
    assert f"exceeded quota: quota, requested: {resource}=1" in done.stderr
    user.wait_nothing_left()


def test_roles_are_created_after_what_their_pods_mount_in_one_request_each(user: User, proxy: Proxy) -> None:
    """The first one is suspended until all exist."""
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))

    run = account.detached("--role", "one:1:x.py", "--role", "two:1:x.py")

    sent = [(item["kind"], item["metadata"]["name"]) for item in proxy.sent]
    assert (sent[0], sent[-1]) == (("Job", run), ("Job", f"{run}-two"))
    kinds = Counter(kind for kind, _ in sent)
    assert kinds - Counter(ConfigMap=9) == Counter(Job=2, Service=1, NetworkPolicy=1, Secret=1)
    assert [item.rpartition("/")[2] for item in proxy.requests if item.startswith("PATCH")] == [run]
    user.wait_pods(run, 2)
    user.write("proxy.kubeconfig", user.kubeconfig.read_text())  # the proxy passes on no events
    assert user("cancel", run).exit_code == 0
    user.wait_nothing_left()


def test_a_run_with_roles_is_found_and_cancelled_by_another_machine(user: User) -> None:
    """Its pods have no host to run on."""
    run = user.detached("--role", "one:1:x.py", "--role", "two:3:x.py")
    there: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(user.cli.directory / "elsewhere")}

    state = user("status", run, "--on", "k8s", "--output", "json", env=there).json["result"]

    assert (state["state"], len(state["nodes"])) == ("pending", 4)
    assert user("cancel", run, env=there).exit_code == 0
    user.wait_nothing_left()


def test_a_role_whose_pods_are_refused_is_reported_with_the_quota_that_it_exceeds(user: User) -> None:
    """The other role's pods fit; with less in use, all of it would."""
    user.kube.quota(user.namespace, **{"requests.cpu": "2"})
    file = write(user, "run.toml", "x.py", "x.py", 'cpu = "1500m"')
    follower = user.follow("--cpu", "100m", "--start-timeout", "1s", "--roles", file)

    done = follower.result()

    assert done.exit_code == 1, done.stderr
    assert "exceeded quota: quota, requested: requests.cpu=1500m" in done.stderr
    user.wait_nothing_left()
