"""Which kubeconfigs are read, and what of them a run keeps: lists as kubectl reads them, from any directory."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from launcher.backends.kubernetes import connecting
from launcher.backends.kubernetes.watch import RunWatch
from launcher.errors import BackendUnavailableError, SpecError, UntrustedError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.k8s.conftest import User


def parts(user: User) -> tuple[str, str, str]:
    """The user's kubeconfig as two files in two directories, and a missing one; relative to the working directory.

    The first has no user; the second has one, and contexts of its own that lead nowhere.
    """
    whole = yaml.safe_load(user.kubeconfig.read_text())
    (context,), (cluster,) = whole["contexts"], whole["clusters"]
    nowhere = {"name": cluster["name"], "cluster": {"server": "https://127.0.0.1:1"}}
    other = {"name": "other", "context": {**context["context"], "namespace": "nowhere"}}
    texts = {
        "first/a.kubeconfig": {**whole, "users": []},
        "second/b.kubeconfig": {**whole, "clusters": [nowhere], "contexts": [other], "current-context": "other"},
    }
    beside = f"../{user.cli.directory.name}-"
    for name, text in texts.items():
        user.cli.write(beside + name, yaml.dump(text))
    return (f"{beside}first/a.kubeconfig", f"{beside}none.kubeconfig", f"{beside}second/b.kubeconfig")


@pytest.mark.k8s
@pytest.mark.parametrize("given", ["KUBECONFIG", "--kubeconfig", "a settings file"])
def test_a_list_of_kubeconfigs_is_merged_as_kubectl_does_it_and_its_run_is_seen_from_any_directory(
    user: User, tmp_path: Path, given: str
) -> None:
    listed = os.pathsep.join(parts(user))
    env: dict[str, str | None] = {"KUBECONFIG": listed if given == "KUBECONFIG" else None}
    if given == "a settings file":
        inner = user.cli.directory / "inner"
        user.cli.write("distlaunch.toml", f'[clusters.mine]\nbackend = "k8s"\nkubeconfig = "{listed}"\n')
        inner.mkdir()
        user.cli.write("inner/x.py", "print(1)\n")
        with user.cli.start("run", "--on", "mine", "--detach", "x.py", env=user.env(env), cwd=inner) as started:
            stdout, stderr = (text.decode() for text in started.communicate(timeout=120))
        assert started.returncode == 0, stderr
        run = stdout.strip()
    else:
        follower = user.follow(*(["--kubeconfig", listed] if given == "--kubeconfig" else []), "x.py", env=env)
        follower.wait_err("no nodes available")
        follower.process.kill()
        run = follower.run

    here = partial(user, env={"KUBECONFIG": None}, cwd=tmp_path)
    state = here("status", run, "--output", "json").json["result"]
    assert state["state"] == "pending", state
    assert "no nodes available" in state["detail"]
    logs = here("logs", run)
    assert (logs.exit_code, "error" in logs.stderr) == (0, False), logs.stderr
    cancelled = here("cancel", run)
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{run}: cancelled\n"), cancelled.stderr
    user.wait_nothing_left()


def kubeconfig(path: Path, *contexts: str, current: str = "", **user: str) -> str:
    """A file with these contexts, each with a cluster of its own; its user has what is given."""
    clusters = [{"name": name, "cluster": {"server": f"https://{name}:1"}} for name in contexts]
    found = {
        "clusters": clusters,
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in contexts],
        "users": [{"name": "me", "user": user}] if user else [],
        **({"current-context": current} if current else {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.dump(found))
    return str(path)


@pytest.mark.parametrize("current", ["", "gone"])
def test_a_context_that_is_named_needs_no_current_one(tmp_path: Path, current: str) -> None:
    """A run records the name of its context: it is reached even if the current one is another by then, or none."""
    path = kubeconfig(tmp_path / "a", "one", "two", current=current)

    assert connecting.connect(path, "two", "").configuration.host == "https://two:1"
    with pytest.raises(SpecError, match="no current context" if not current else "no context 'gone'"):
        connecting.connect(path, "", "")


def test_the_first_of_several_kubeconfigs_wins_and_files_are_relative_to_the_one_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kubeconfig(tmp_path / "first/a", "one")
    second = kubeconfig(
        tmp_path / "second/b", "two", current="two", **{"client-certificate": "me.crt", "client-key": "me.key"}
    )
    third = kubeconfig(tmp_path / "third/c", "one", "three", current="three", **{"client-certificate": "nobody.crt"})
    empty = tmp_path / "empty"
    for path in (empty, tmp_path / "second/me.crt", tmp_path / "second/me.key"):
        path.touch()
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, (empty, first, tmp_path / "none", "", second, third))))

    current, named = connecting.connect("", "", ""), connecting.connect("", "one", "")

    assert (current.context, current.configuration.host) == ("two", "https://two:1")
    assert (named.context, named.configuration.host) == ("one", "https://one:1")
    assert named.configuration.cert_file == str(tmp_path / "second/me.crt")


@pytest.mark.parametrize("key", ["as", "as-uid"])
def test_a_user_that_acts_as_another_one_is_refused(tmp_path: Path, key: str) -> None:
    """As kubectl does, it would send a run as that other user, with its rights and its quota."""
    path = kubeconfig(tmp_path / "a", "one", current="one", token="t", **{key: "alice"})

    with pytest.raises(SpecError, match=f"user 'me' has {key}, and distlaunch cannot act as another user"):
        connecting.connect(path, "", "")


def test_a_file_whose_name_has_a_colon_is_one_file(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "a:b" / "c", "one", current="one")

    assert connecting.connect(path, "", "").context == "one"
    with pytest.raises(SpecError, match="does not exist"):
        connecting.connect(f"{tmp_path}/no:{tmp_path}/nor", "", "")


def test_each_file_of_a_list_has_to_be_ours(tmp_path: Path) -> None:
    ours, theirs = (kubeconfig(tmp_path / name, name, current=name) for name in ("ours", "theirs"))
    (tmp_path / "theirs").chmod(0o666)

    with pytest.raises(UntrustedError, match="theirs"):
        connecting.connect(f"{ours}{os.pathsep}{theirs}", "", "")


def test_a_run_that_was_started_in_a_pod_is_not_looked_for_in_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, it would be taken for deleted."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "a", "one", current="one"))
    handle: Any = {
        "run_dir": str(tmp_path),
        "kind": "job",
        "nodes": 1,
        "kubeconfig": "",
        "context": "",
        "namespace": "ml",
    }

    with pytest.raises(BackendUnavailableError, match="in a pod of its cluster, and this is not a pod"):
        _ = RunWatch(handle).cluster


def test_an_account_of_a_pod_that_cannot_be_used_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("t")
    monkeypatch.setattr(connecting, "_ACCOUNT", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "")

    with pytest.raises(BackendUnavailableError, match="the account of this pod cannot be used: Service host/port"):
        connecting.connect("", "", "")
