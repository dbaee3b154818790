"""Nobody else has a word in it: what is read comes from paths that are ours or root's alone, all the way up."""

from __future__ import annotations

import grp  # here: another user may not be able to read the standard library
import json
import os
import pickle
import pwd
import shutil
import stat
import struct
import sys
import tempfile
import traceback
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher import backends
from launcher.agent.system import trust as rule
from launcher.backends.kubernetes import kubeconfig, patch
from launcher.errors import ConfigError, UntrustedError
from launcher.runs import directories, records
from launcher.settings import config, quarantine, toml_file
from launcher.settings.options import JobOptions
from launcher.system import trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.command import Cli

STRANGER, ME, LAB = 54321, 54322, 54323

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user reaches."""
    directory = Path(tempfile.mkdtemp(prefix="distlaunch-trust-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def _nobody_is_trusted() -> Iterator[None]:
    yield
    trust.except_for(())


def as_user(uid: int, work: Callable[[], Any], *, gid: int | None = None) -> Any:
    """What `work` returns in a process of that user."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setresgid(*[uid if gid is None else gid] * 3)
            os.setresuid(uid, uid, uid)
            os.chdir("/")
            os.write(write, pickle.dumps(work()))
        except BaseException:  # noqa: BLE001 - it must not go on as pytest
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return pickle.loads(answer)


def owned(path: Path, uid: int, mode: int, gid: int | None = None) -> Path:
    """The path, a directory where it is not there, as that user's."""
    if not path.exists():
        path.mkdir()
    os.chown(path, uid, uid if gid is None else gid)
    path.chmod(mode)
    return path


def file(path: Path, uid: int, mode: int = 0o644, text: str = "") -> Path:
    """A file of that user."""
    path.write_text(text)
    return owned(path, uid, mode)


def wrong(path: Path, *trusted: str, uid: int = ME, **more: Any) -> str:
    """Why a user does not take the path; empty: for nothing."""
    found = as_user(uid, lambda: rule.problem(str(path), trusted, **more))
    return found.message if found else ""


@as_root
class TestRule:
    """The rule itself, as a user who is not root sees it."""

    def test_mine_or_roots_is_fine_and_anybody_elses_is_not_wherever_on_the_way(self, place: Path) -> None:
        mine, theirs = owned(place / "mine", ME, 0o755), owned(place / "theirs", STRANGER, 0o755)
        assert wrong(file(mine / "a", ME)) == ""
        assert wrong(file(mine / "b", 0)) == ""
        assert wrong(mine / "is not there/at all") == ""
        assert f"{mine}/c belongs to {STRANGER} (mode 0644)" in wrong(file(mine / "c", STRANGER))
        inner = owned(theirs / "inner", ME, 0o700)
        assert f"{theirs} belongs to {STRANGER}" in wrong(file(inner / "d", ME))
        assert f"{mine} belongs to {ME}" in wrong(mine / "a", uid=STRANGER)

    def test_others_must_not_be_able_to_write_but_for_a_sticky_directory_on_the_way(self, place: Path) -> None:
        open_, sticky = owned(place / "open", 0, 0o777), owned(place / "sticky", 0, 0o1777)
        assert f"{open_} belongs to root, and its mode 0777 lets everybody write to it" in wrong(file(open_ / "a", ME))
        assert "0666" in wrong(file(place / "b", ME, 0o666))
        assert wrong(file(sticky / "c", ME)) == ""
        assert wrong(sticky) == ""
        assert wrong(sticky, searched=True) != "", "anybody may put files of any name into it"
        assert wrong(file(sticky / "d", STRANGER)) != ""

    def test_links_are_followed_and_belong_to_somebody_themselves(self, place: Path) -> None:
        sticky, mine = owned(place / "sticky", 0, 0o1777), owned(place / "mine", ME, 0o755)
        good = file(mine / "good", ME)
        for name, target in (("whole", good), ("relative", Path("../mine/good")), ("up", Path("../sticky/../mine/good"))):
            (sticky / name).symlink_to(target)
            os.lchown(sticky / name, ME, ME)
            assert wrong(sticky / name) == "", name
        (sticky / "theirs").symlink_to(good)
        os.lchown(sticky / "theirs", STRANGER, STRANGER)
        assert f"{sticky}/theirs belongs to {STRANGER}" in wrong(sticky / "theirs")
        (mine / "out").symlink_to(owned(place / "open", 0, 0o777) / "x")
        file(place / "open" / "x", ME)
        assert f"{place}/open" in wrong(mine / "out"), "where a link leads counts as well"
        (mine / "round").symlink_to("round")
        assert "too many links" in wrong(mine / "round")

    def test_a_group_may_write_where_it_is_its_users_own_or_trusted(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        groups = {ME: ("me", []), LAB: ("lab", ["me"]), 0: ("root", [])}
        names = {ME: "me", 0: "root", STRANGER: "bob"}

        def group_of(gid: int) -> Any:
            return grp.struct_group((groups[gid][0], "x", gid, groups[gid][1]))

        monkeypatch.setattr(grp, "getgrgid", group_of)
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd((names[uid], "x", uid, uid, "", "/", "/bin/sh")))
        own = owned(place / "own", ME, 0o775)
        lab = owned(place / "lab", 0, 0o2770, gid=LAB)
        assert wrong(file(own / "a", ME, 0o664)) == "", "umask 002, and a group of one's own"
        inside = owned(lab / "me", ME, 0o755, gid=LAB)
        assert "its mode 2770 lets the group lab write to it" in as_user(ME, lambda: rule.problem(str(inside)), gid=LAB).message
        assert as_user(ME, lambda: rule.problem(str(inside), ("@lab",)), gid=LAB) is None
        groups[ME] = ("me", ["bob"])
        assert "lets the group me write" in wrong(own / "a"), "somebody else was let into it"

    def test_where_root_has_no_number_nobody_may_own_the_way_and_never_the_file(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a container's user namespace."""
        nobody = 65534
        path = file(owned(place / "way", nobody, 0o755) / "file", 0)
        assert rule.problem(str(path)) is not None
        monkeypatch.setattr(rule, "_is_unmapped_root", lambda uid: uid == nobody)

        assert rule.problem(str(path)) is None
        os.chown(path, nobody, nobody)
        assert rule.problem(str(path)) is not None

    def test_an_access_list_is_no_group_of_ones_own(self, place: Path) -> None:
        shared = owned(place / "shared", ME, 0o755)
        nobody = 2**32 - 1
        entries = [(0x01, 7, nobody), (0x02, 7, STRANGER), (0x04, 5, nobody), (0x10, 7, nobody), (0x20, 5, nobody)]
        packed = struct.pack("<I", 2) + b"".join(
            struct.pack("<HHI", *entry) for entry in entries
        )  # as acl(5) and the kernel have it
        os.setxattr(shared, "system.posix_acl_access", packed)
        assert wrong(shared) != ""

    def test_what_is_trusted_is_trusted_with_all_that_is_in_it(self, place: Path) -> None:
        theirs = owned(place / "theirs", STRANGER, 0o777)
        path = file(theirs / "a", STRANGER, 0o666)
        assert wrong(path, str(theirs)) == ""
        assert wrong(path, str(place / "their")) != "", "a beginning of a name is another directory"
        (theirs / "out").symlink_to(file(place / "b", STRANGER))
        assert wrong(theirs / "out", str(theirs)) != "", "a link that leads out of it"


def test_directories_are_made_for_their_owner_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        rule.make(str(tmp_path / "a/b/c"))
        rule.make(str(tmp_path / "a/b/c"))
        records.create(
            records.Run(id="x-20250101-000000-aaaa", path=tmp_path / "runs/of/mine/x-20250101-000000-aaaa", backend="local")
        )
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/c")} == {0o700}
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("runs", "runs/of", "runs/of/mine")} == {0o755}


@as_root
@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("what", ["a directory", "a link"])
def test_a_directory_that_somebody_else_made_after_the_look_is_not_taken(
    place: Path, when: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, target = owned(place / "shared", 0, 0o1777), owned(place / "target", 0, 0o700)
    directory = directories.root(str(shared / "me/runs"))

    def steal() -> None:
        if what == "a directory":
            owned(shared / "me", STRANGER, 0o777)
        else:
            (shared / "me").symlink_to(target)
            os.lchown(shared / "me", STRANGER, STRANGER)

    def mkdir(path: str, mode: int = 0o777, *, really: Callable[..., None] = os.mkdir) -> None:
        if path == str(shared / "me"):
            steal()
        really(path, mode)

    if when == "before":
        steal()
    else:
        monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(UntrustedError, match=f"{shared}/me belongs to {STRANGER}"):
        records.create(records.Run(id="x-20250101-000000-aaaa", path=directory / "x-20250101-000000-aaaa", backend="local"))
    assert [*(shared / "me").iterdir(), *target.iterdir()] == []


@as_root
def test_a_directory_is_made_in_what_is_trusted(place: Path) -> None:
    lab = owned(place / "lab", STRANGER, 0o777)
    trust.except_for([str(lab)])
    records.create(records.Run(id="x-20250101-000000-aaaa", path=lab / "me/runs/x-20250101-000000-aaaa", backend="local"))
    assert (lab / "me/runs/x-20250101-000000-aaaa/run.json").exists()


@as_root
class TestCommands:
    """What the commands do: root here, among others who leave files."""

    @staticmethod
    def trap(directory: Path, uid: int = STRANGER) -> tuple[Path, Path]:
        """A settings file that runs a program of somebody else's, and what that program leaves."""
        evil = directory / "evil"
        file(evil, uid, 0o755, f'#!/bin/sh\ntouch {directory}/was-run\nexec {sys.executable} "$@"\n')
        return file(directory / "distlaunch.toml", uid, text=f'[defaults]\npython = "{evil}"\n'), directory / "was-run"

    @pytest.mark.parametrize("mode", [0o1777, 0o777, 0o755])
    def test_a_project_file_of_somebody_else_above_runs_nothing(self, distlaunch: Cli, place: Path, mode: int) -> None:
        shared = owned(place / "shared", STRANGER if mode == 0o755 else 0, mode)
        work = owned(shared / "work", 0, 0o755)
        toml, ran = self.trap(shared)
        (work / "x.py").write_text("print('hello')\n")

        done = distlaunch("local", "x.py", cwd=work)

        assert not ran.exists(), "somebody else's program ran"
        assert done.exit_code == 2, done
        assert f"error[untrusted]: settings file '{toml}': " in done.stderr
        assert "hint:" in done.stderr
        for command in (("ls",), ("config",), ("status", "last"), ("local", "--dry-run", "x.py")):
            assert distlaunch(*command, cwd=work).exit_code == 2, command
        if mode != 0o1777:
            return
        (work / "distlaunch.toml").touch()
        assert distlaunch("local", "x.py", cwd=work).stdout == "hello\n", "one of our own, nearer, comes before it"
        (work / "distlaunch.toml").unlink()
        assert distlaunch("ls", cwd=work, env={"DISTLAUNCH_TRUST": str(shared)}).exit_code == 0

    def test_every_settings_file_is_held_to_it(self, tmp_path: Path, place: Path) -> None:
        bad = file(place / "config.toml", STRANGER, text="[defaults]\nnodes = 2\n")
        env = {"DISTLAUNCH_SYSTEM_CONFIG": str(bad)}
        with pytest.raises(UntrustedError, match="belongs to"):
            config.load(env, str(tmp_path))
        home = owned(place / "home", STRANGER, 0o755)
        (home / "distlaunch").mkdir()
        (home / "distlaunch/config.toml").touch()
        with pytest.raises(UntrustedError, match="belongs to"):
            config.load({"DISTLAUNCH_SYSTEM_CONFIG": "/none", "XDG_CONFIG_HOME": str(home)}, str(tmp_path))
        (home / "distlaunch/config.toml").unlink()
        (home / "distlaunch/quarantine.json").write_text("{}")
        with pytest.raises(UntrustedError, match="list of bad hosts"):
            quarantine.hosts("lab", {"XDG_CONFIG_HOME": str(home)})
        assert config.load({**env, "DISTLAUNCH_TRUST": str(place)}, str(tmp_path)).files

    def test_a_home_that_cannot_be_searched_has_no_settings(self, place: Path) -> None:
        path = file(owned(place / "home", 0, 0o700) / "config.toml", 0, text="nodes = [")

        assert as_user(ME, lambda: toml_file.read_file(str(path)) is None) is True

    def test_a_fifo_of_somebody_else_is_not_waited_for(self, place: Path) -> None:
        os.mkfifo(place / "distlaunch.toml")
        os.chown(place / "distlaunch.toml", STRANGER, STRANGER)
        with pytest.raises(UntrustedError):
            config.load({"DISTLAUNCH_SYSTEM_CONFIG": "/none"}, str(place))

    def test_a_kubeconfig_names_programs_to_run(self, place: Path) -> None:
        with pytest.raises(UntrustedError, match="kubeconfig"):
            kubeconfig.find(str(file(place / "kube", STRANGER)))

    def test_a_patch_says_what_a_pod_runs(self, place: Path) -> None:
        with pytest.raises(UntrustedError, match="patch"):
            patch.read([str(file(place / "patch.yaml", STRANGER))], ship_secrets=False)

    def test_runs_of_somebody_else_are_listed_and_not_asked(self, distlaunch: Cli, place: Path) -> None:
        """A run's directory says which program reaches its hosts."""
        shared = owned(place / "runs", 0, 0o1777)
        env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(shared)}
        evil = shared / "train-20250101-000000-aaaa"
        evil.mkdir()
        ssh = ["sh", "-c", f"touch {place}/was-run"]
        node = {"host": "n", "rank": 0, "python": "p", "directory": "/x", "agent_path": "/x/a", "ssh": ssh}
        handle = {"run_dir": str(evil), "hosts": ["n"], "nodes": [node]}
        text = json.dumps({"backend": "ansible", "command": ["x.py"], "plan": {"nodes": []}, "handle": handle})
        file(evil / "run.json", STRANGER, text=text)
        owned(evil, STRANGER, 0o755)

        for command in ("status", "cancel", "logs"):
            done = distlaunch(command, "last", env=env)
            assert done.exit_code == 2, (command, done)
            assert f"{evil} belongs to {STRANGER}" in done.stderr
        listed = distlaunch("ls", "--output", "json", env=env)

        assert not (place / "was-run").exists()
        assert [run["state"] for run in listed.json["result"]["runs"]] == ["unknown"]
        owned(shared, STRANGER, 0o755)
        assert distlaunch("ls", env=env).exit_code == 2
        distlaunch.write("x.py", "print(1)\n")
        assert "runs_dir" in distlaunch("local", "x.py", env=env).stderr
        assert sorted(path.name for path in shared.iterdir()) == [evil.name], "nothing was written there"


def test_a_project_file_trusts_nobody(distlaunch: Cli) -> None:
    path = distlaunch.write("distlaunch.toml", 'trust = ["/"]\n')

    done = distlaunch("ls")

    assert done.exit_code == 2
    assert f"{path}:1: a project file cannot decide whom to trust" in done.stderr
    assert "DISTLAUNCH_TRUST" in done.stderr


@pytest.mark.parametrize("key", ["runs_dir", '"runs\\u005fdir"'])
def test_a_project_file_does_not_say_where_runs_are(distlaunch: Cli, key: str) -> None:
    """A run's directory says which program reaches its hosts, and whoever looks at runs is asked nothing."""
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
def test_a_list_in_a_variable_that_is_none_is_one_error(distlaunch: Cli, value: str) -> None:
    for name in ("TRUST", "PRELOAD"):
        done = distlaunch("config", env={f"DISTLAUNCH_{name}": value})

        assert done.exit_code == 2, done
        assert f"error[bad_config]: DISTLAUNCH_{name} wants a list of texts, not '[" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_word_of_trust_is_a_whole_path_or_a_group(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DISTLAUNCH_TRUST: trust 'lab' is neither"):
        config.load({"DISTLAUNCH_TRUST": "@lab,lab"}, str(tmp_path))


def test_a_project_file_that_changes_what_is_executed_is_said_and_each_file_with_v(distlaunch: Cli) -> None:
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
@pytest.mark.parametrize("key", ["defaults.python", '"def\\u0061ults".python', 'defaults."p\\u0079thon"', "defaults = {python"])
def test_however_it_is_written_and_wherever_it_lies(distlaunch: Cli, directory: str, key: str) -> None:
    more = "}" if "{" in key else ""
    toml = distlaunch.write(f"{directory}/distlaunch.toml", f"{key} = '{sys.executable}'{more}\n")
    distlaunch.write(f"{directory}/x.py", "")

    told = distlaunch("local", "--dry-run", "--env", "A=1", "x.py", cwd=toml.parent).stderr

    assert told.count(f"{toml} sets python\n") == 1, told


def test_every_command_that_asks_a_cluster_tells_what_a_project_file_changes(distlaunch: Cli) -> None:
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
            line.partition(f"{toml} sets ")[2] for line in distlaunch(*command).stderr.splitlines() if f"{toml} sets " in line
        ]

    assert told("ls", "--on", "k") == told("k8s", "--cluster", "k", "--print-role") == ["kubeconfig"]
    assert told("ls", "--on", "s") == told("run", "--on", "s", "--dry-run", "x.py") == ["sbatch"]
    assert told("adopt", "--on", "a", "x") == ["inventory, in_place"]
    assert told("adopt", "--on", "a", "-i", "n1,", "x") == ["in_place"], "a flag comes before it"
    assert told("run", "--on", "mine", "--dry-run", "x.py") == ["backend"]
    assert told("local", "--dry-run", "x.py") == []


def test_every_option_is_known_to_change_what_is_executed_or_not_to() -> None:
    """Where and when it runs, with how much, under which name: whose code it is stays the same."""
    harmless = """
        role numa_binding near_nics virtual_local_rank tty
        nodes nproc_per_node name start max_restarts time grace rdzv_timeout peer_timeout master_port log_limit
        share_gpus
        limit exclude spares snapshot_limit host_timeout
        partition account qos gpus_per_node gres cpus_per_task mem constraint nodelist reservation dependency exclusive nice
        mail_type mail_user licenses wckey switches new_job array snapshot lead max_requeues
        namespace kind queue gpu_resource cpu memory resource shm ipc_lock node_selector toleration prefer_same
        require_same spread priority_class pull_secret pull_policy host_network network_policy ttl start_timeout server_dry_run
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
    assert (ssh["python"], ssh["runs_dir"]) == (f"{where}/env/bin/python", f"{distlaunch.directory}/.config/distlaunch/my-runs")
    assert slurm["setup"] == ["module load x", f"@{where}/lines.sh"]
    assert (slurm["template"], slurm["container_image"]) == (f"{distlaunch.directory}/t.j2", "docker://x")
