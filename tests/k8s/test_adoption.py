"""Runs that others have started: listed, and made runs of this machine, by what their objects say."""

from __future__ import annotations

import getpass
import json
import subprocess
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.kubernetes import about, api, owners
from launcher.backends.kubernetes.pod import NODE_LABEL
from testbed import kube_builds, kube_programs
from tests.k8s.conftest import KINDS
from tests.k8s.role import role_rules
from tests.k8s.test_api import answering

if TYPE_CHECKING:
    from pathlib import Path

    from tests.k8s.conftest import User
    from tests.k8s.proxy import Proxy

GOOD: dict[str, Any] = {
    "kind": "job",
    "command": ["x.py"],
    "cwd": "/w",
    "nodes": 3,
    "min_nodes": 2,
    "workers": 1,
    "grace_s": 30.0,
    "python": "python3",
    "user": "ada",
}


def listed(user: User, **more: Any) -> list[dict[str, Any]]:
    """What `ls --on` shows."""
    found: list[dict[str, Any]] = user("ls", "--on", "k8s", "--output", "json", **more).json["result"]["runs"]
    return found


@pytest.mark.k8s
def test_runs_of_all_kinds_are_listed_adopted_and_cancelled_without_their_directory(user: User, proxy: Proxy) -> None:
    """Also one that kubectl has started; with one list for each kind and one of pods, however many runs there are."""
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))
    job = user.detached("--nodes", "1:3", "--max-restarts", "1", "--grace", "7s", "x.py", "--lr", "a b")
    bare = user.detached("--kind", "pods", "--nodes", "2", "x.py")
    assert user("k8s", "--render-to", "rendered", "x.py").exit_code == 0
    kubectl = kube_programs.find(kube_builds.KUBERNETES, "kubectl")
    apply = [str(kubectl), f"--kubeconfig={user.kubeconfig}", "apply", "--server-side", "-f", "rendered/run.yaml"]
    subprocess.run([*apply, f"--namespace={user.namespace}"], cwd=user.cli.directory, check=True, timeout=120)
    elsewhere: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(user.cli.directory / "elsewhere")}
    user.wait_pods(bare, 2)

    proxy.requests.clear()
    found = {item["run"]: item for item in listed(account, env=elsewhere)}

    assert [request.rpartition("/")[2] for request in proxy.requests] == ["apis", "jobs", "configmaps", "pods"]
    (applied,) = found.keys() - {job, bare}
    assert {(item["state"], item["user"], item["job_id"] == run) for run, item in found.items()} == {
        ("pending", getpass.getuser(), True)
    }
    assert (found[job]["nodes"], found[job]["command"]) == ("1:3", ["x.py", "--lr", "a b"])
    assert [found[run]["nodes"] for run in (bare, applied)] == ["2", "1"]

    for run in (job, bare, applied):
        state = user("status", run, "--on", "k8s", "--output", "json", env=elsewhere).json["result"]
        assert (state["run"], state["state"], state["job_id"]) == (run, "pending", run)
    record = json.loads((user.cli.directory / "elsewhere" / job / "run.json").read_text())
    own = json.loads((user.cli.runs / job / "run.json").read_text())
    for where in (record, own):
        where["plan"].pop("master", None)
        del where["created"], where["handle"]["run_dir"], where["options"]
    assert record == own | {"workers": "1", "given": {}, "settings": {}}, (
        "what was asked for is known where it was launched"
    )
    for run in (job, bare, applied):
        assert user("cancel", "--force", run, env=elsewhere).exit_code == 0
        user.kube.wait_none(KINDS["pods"].format(user.namespace), f"distlaunch/run={run}")
    assert user.state(bare)["state"] == "cancelled", "where it was started, too"


@pytest.mark.k8s
def test_what_cannot_be_adopted_is_reported(user: User) -> None:
    run = user.detached("x.py")
    jobs = KINDS["jobs"].format(user.namespace)
    elsewhere: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(user.cli.directory / "elsewhere")}
    for text, words in (("{", "is wrong"), (json.dumps({**GOOD, "nodes": -1}), "is wrong: 2 to -1 nodes")):
        user.kube.api.patch(f"{jobs}/{run}", {"metadata": {"annotations": {about.NOTE: text}}})
        done = user("status", run, "--on", "k8s", env=elsewhere)
        assert done.exit_code != 0
        assert f"its annotation {about.NOTE} {words}" in done.stderr
        assert [(item["run"], item["user"], item["nodes"]) for item in listed(user)] == [(run, None, "1")]
    user.kube.api.patch(f"{jobs}/{run}", {"metadata": {"annotations": {about.NOTE: None}}})
    assert "is missing" in user("logs", run, "--on", "k8s", env=elsewhere).stderr
    unknown = user("adopt", "nothing", "--on", "k8s", env=elsewhere)
    assert f"no run 'nothing' in namespace {user.namespace!r}" in unknown.stderr
    assert run in unknown.stderr
    assert "k8s has no option 'inventory'" in user("adopt", run, "--on", "k8s", "-i", "h,", env=elsewhere).stderr
    assert not (user.cli.directory / "elsewhere").exists()


@pytest.mark.k8s
def test_a_kind_that_may_not_be_listed_is_one_warning(user: User) -> None:
    run = user.detached("--nodes", "2", "x.py")
    user.wait_pods(run, 2)
    account = user.with_rights("documented", role_rules())
    done = account("ls", "--on", "k8s")
    assert run in done.stdout
    assert done.stderr.count("are not listed") == 1
    assert "runs of --kind pods are not listed" in done.stderr

    blind = user.with_rights("blind", [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]}])
    done = blind("ls", "--on", "k8s")
    assert run in done.stdout
    assert "hosts are not known" in done.stderr

    nobody = user.with_rights("nobody", [])
    done = nobody("ls", "--on", "k8s")
    assert done.exit_code == 3
    assert "may not list jobs" in done.stderr


@pytest.mark.parametrize(
    "more",
    [
        {"kind": 1},
        {"cwd": None},
        {"python": "a\0b"},
        {"command": []},
        {"command": "x.py"},
        {"command": [1]},
        {"nodes": True},
        {"nodes": 1e300},
        {"nodes": 10**9},
        {"min_nodes": 4},
        {"workers": 0},
        {"grace_s": "1"},
        {"grace_s": -1},
    ],
)
def test_an_annotation_that_someone_else_wrote_is_checked(more: dict[str, Any]) -> None:
    def item(told: Any) -> dict[str, Any]:
        return {"metadata": {"annotations": {about.NOTE: json.dumps(told)}}}

    found: Any = about.read(item(GOOD))
    assert found == GOOD
    with pytest.raises(ValueError):  # noqa: PT011 - the words differ
        about.read(item({**GOOD, **more}))
    for nonsense in (None, [GOOD], "x"):
        with pytest.raises(ValueError, match="not an object"):
            about.read(item(nonsense))


def test_five_hundred_runs_are_listed_page_by_page(tmp_path: Path) -> None:
    def page(first: int, more: str) -> tuple[int, str]:
        items = [
            {
                "metadata": {
                    "name": f"x-{number}",
                    "labels": {"distlaunch/run": f"x-{number}"},
                    "creationTimestamp": "2026-11-20T14:00:00Z",
                }
            }
            for number in range(first, first + 250)
        ]
        return 200, json.dumps({"metadata": {"continue": more}, "items": items})

    groups = (200, '{"groups": [{"name": "batch"}]}')
    none = (200, '{"metadata": {}, "items": []}')
    with answering(tmp_path, [groups, page(0, "more"), page(250, ""), none, none]) as (cluster, asked):
        found = owners.runs(cluster)

    assert [item["run"] for item in found] == [f"x-{number}" for number in range(500)]
    assert len(asked) == 5


def test_a_kind_that_cannot_be_listed_hides_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A webhook that converts its objects may be away."""
    monkeypatch.setattr(api, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic))
    meta = {"name": "x-1", "labels": {"distlaunch/run": "x-1"}, "creationTimestamp": "2026-11-20T14:00:00Z"}
    groups = (200, '{"groups": [{"name": "batch"}, {"name": "jobset.x-k8s.io"}]}')
    jobs, none = ((200, json.dumps({"metadata": {}, "items": items})) for items in ([{"metadata": meta}], []))
    away = (500, '{"message": "conversion webhook failed"}')
    with answering(tmp_path, [groups, jobs, *[away] * 4, none, none]) as (cluster, _):
        found = owners.runs(cluster)

    assert [item["run"] for item in found] == ["x-1"]
    assert "runs of --kind jobset are not listed: " in capfd.readouterr().err


def test_pods_that_are_listed_again_as_the_listing_took_too_long_count_once(tmp_path: Path) -> None:
    """The API server forgets the version whose pages are read."""

    def pod(number: int) -> dict[str, Any]:
        labels = {"distlaunch/run": "x-1", NODE_LABEL: "0"}
        meta = {"name": f"x-1-{number}", "uid": f"{number}", "labels": labels}
        return {"metadata": {**meta, "creationTimestamp": "2026-11-20T14:00:00Z"}, "status": {"phase": "Running"}}

    first = (200, json.dumps({"metadata": {"continue": "more"}, "items": [pod(1)]}))
    whole = (200, json.dumps({"metadata": {}, "items": [pod(1), pod(2)]}))
    with answering(tmp_path, [first, (410, ""), whole]) as (cluster, _):
        found = owners._pods(cluster, {"x-1": "node"})

    assert found is not None
    assert [each.name for each in found["x-1"]] == ["x-1-1", "x-1-2"]
