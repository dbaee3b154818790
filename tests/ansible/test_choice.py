"""Which hosts take part, what is reported about them, and where they meet: decided from their answers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.ansible.playbook import Playbook
from launcher.system import install

_FILE = install.data("playbooks") / "roles/distlaunch/plugin_utils/distlaunch_choice.py"


STANDS = {"pid": 7, "python": "/p", "modules": ["torch"], "since": 1.5, "until": 2, "runs": 0, "memory_bytes": 1}


@pytest.fixture(scope="module")
def plugin() -> Any:
    """The module, as Ansible's plugin loads it."""
    spec = importlib.util.spec_from_file_location("distlaunch_choice", Path(_FILE))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def facts(name: str, **more: Any) -> dict[str, Any]:
    """What a good host answers."""
    about = {
        "hostname": name,
        "machine": name,
        "disk": name,
        "torch": "2.9",
        "framework": "",
        "without": "",
        "python_version": "3.11.7",
        "gpus": 0,
    }
    return {**about, "free_bytes": 10**9, "has_cwd": True, "has_files": False, "clock_s": [0.0, 0.1], **more}


ARGS = {
    "nodes": 2,
    "least": 2,
    "digest": "d",
    "snapshot_bytes": 0,
    "gpus_matter": [f"h{number}" for number in range(9)],
    "torch": True,
    "own_disk": [],
    "cwd": "",
}
NOTHING = {"user_processes_end": False, "mounts": []}
GOOD = facts(
    "h", time=1.7e9, python="python", directory="/x", agent_path="/x/a", machine=[], disk=[], replaced=None, **NOTHING
)


def test_a_clock_that_differs_and_a_logind_that_kills_are_reported_and_the_host_takes_part(plugin: Any) -> None:
    found = {
        "late": facts("late", clock_s=[-41.0, -40.2], **NOTHING),
        "early": facts("early", clock_s=[7.3, 7.9], user_processes_end=True),
        "good": facts("good", clock_s=[-0.9, 1.1], **NOTHING),  # no more than the time that the question took
    }

    problems, notes, choice = plugin.choose(found, {**ARGS, "nodes": 3, "least": 3})

    assert problems == {}
    assert list(choice["ranks"]) == ["late", "early", "good"]
    assert notes == [
        "the clock of late differs by -40 s from the one here",
        "the clock of early differs by 7 s from the one here",
        "early: systemd ends a user's processes at logout; run there once: loginctl enable-linger",
    ]


def test_spares_take_the_places_of_hosts_without_what_others_have(plugin: Any) -> None:
    found = {
        "h1": facts("h1", gpus=8, **NOTHING),
        "h2": facts("h2", **NOTHING),
        "h3": {"problem": "ssh: connect to host h3 port 22: Connection timed out", "unreachable": True},
        "h4": facts("h4", gpus=8, disk="h1", **NOTHING),
    }

    problems, _, choice = plugin.choose(found, ARGS)

    assert {host: problem["kind"] for host, problem in problems.items()} == {"h2": "gpus", "h3": "unreachable"}
    assert (choice["master"], choice["others"], choice["copying"], choice["lacking"]) == ("h1", ["h4"], ["h1"], ["h1"])
    assert plugin.choose({host: found[host] for host in ("h1", "h2", "h3")}, ARGS)[2] is None


def test_only_hosts_whose_workers_are_counted_by_gpus_need_them(plugin: Any) -> None:
    found = {"h1": facts("h1", gpus=8, **NOTHING), "c1": facts("c1", **NOTHING)}

    assert plugin.choose(found, {**ARGS, "gpus_matter": ["h1"]})[0] == {}
    assert plugin.choose(found, {**ARGS, "gpus_matter": ["h1", "c1"]})[0].keys() == {"c1"}


def test_a_run_that_can_do_with_fewer_nodes_begins_with_those_that_are_there(plugin: Any) -> None:
    found = {"h1": facts("h1", **NOTHING), "h2": {"problem": "no", "unreachable": True}, "h3": facts("h3", **NOTHING)}

    assert plugin.choose(found, {**ARGS, "nodes": 3, "least": 2})[2]["ranks"] == {"h1": 0, "h3": 1}
    assert plugin.choose(found, {**ARGS, "nodes": 3, "least": 3})[2] is None


def test_files_go_once_to_each_disk_that_lacks_them(plugin: Any) -> None:
    found = {
        "h1": facts("h1", disk="shared", has_files=True, **NOTHING),
        "h2": facts("h2", disk="shared", has_files=True, **NOTHING),
        "h3": facts("h3", disk="other", **NOTHING),
        "h4": facts("h4", disk="other", **NOTHING),
        "h5": facts("h5", disk="other", **NOTHING),
    }
    args = {**ARGS, "nodes": 5, "least": 5, "own_disk": ["h5"]}  # a disk that was cloned only looks shared

    choice = plugin.choose(found, args)[2]

    assert (choice["copying"], choice["lacking"]) == (["h1", "h3", "h5"], ["h3", "h5"])
    assert plugin.choose(found, {**args, "digest": ""})[2]["lacking"] == []


def test_room_for_the_files_twice_and_the_working_directory_are_required(plugin: Any) -> None:
    found = {
        "h1": facts("h1", free_bytes=100_000_000, directory="/x", **NOTHING),
        "h2": facts("h2", has_cwd=False, **NOTHING),
        "h3": facts("h3", torch=None, python="/usr/bin/python3", **NOTHING),
    }

    said = {
        host: problem["message"]
        for host, problem in plugin.choose(found, {**ARGS, "snapshot_bytes": 60_000_000, "cwd": "/w"})[0].items()
    }

    assert said == {
        "h1": "the disk is full: 100 MB are free in /x",
        "h2": "there is no directory /w",
        "h3": "there is no torch in /usr/bin/python3",
    }
    assert "h1" not in plugin.choose(found, {**ARGS, "snapshot_bytes": 30_000_000, "cwd": "/w"})[0]
    without = {"h3": found["h3"], "h4": facts("h4", torch="2.8", **NOTHING), "h5": facts("h5", **NOTHING)}
    assert plugin.choose(without, {**ARGS, "torch": False})[0] == {}, "whose workers need none"


@pytest.mark.parametrize(
    ("b", "c", "chosen", "words"),
    [
        ("v4 v6", "v4", ["v4", "v4"], "all 2 others reach it"),
        ("v6", "v4 v6", ["v6", "v6"], "tried: v4 by 1, v6 by 2"),
        ("v6", "v4", ["v6", "v4"], "each uses the first that it reaches"),
    ],
)
def test_the_nodes_meet_at_an_address_that_all_reach(
    plugin: Any, b: str, c: str, chosen: list[str], words: str
) -> None:
    tried = {
        host: {address: address in reached.split() for address in ("v4", "v6")}
        for host, reached in (("b", b), ("c", c))
    }

    where, common, reason = plugin.meeting_point(tried)

    assert [where["b"], where["c"]] == chosen
    assert common == (chosen[0] if chosen[0] == chosen[1] else None)
    assert words in reason


@pytest.mark.parametrize(
    ("step", "answer", "words"),
    [
        ("preflight", {"time": 1}, "python is 'None'"),
        ("preflight", {"time": "now"}, "time is 'now'"),
        ("preflight", {"time": 10**400}, "time is '1000"),
        ("preflight", {"time": float("nan")}, "time is 'nan'"),
        ("preflight", GOOD | {"free_bytes": -(10**400)}, "free_bytes is '-1000"),
        ("preflight", GOOD | {"gpus": True}, "gpus is 'True'"),
        ("start", {"agent": [], "directory": "/x", "work": "/x"}, "agent is '[]'"),
        ("start", {"agent": {"stream_from": 0, "pid": "x"}, "directory": "/x", "work": "/x"}, "pid is 'x'"),
        ("start", {"agent": {"pid": 7}, "directory": "/x", "work": "/x"}, "begins nowhere"),
        ("preflight", {name: value for name, value in GOOD.items() if name != "hostname"}, "hostname is 'None'"),
        ("start", {"agent": {"stream_from": "x"}, "directory": "/x", "work": "/x"}, "begins nowhere"),
        ("start", {"agent": {"stream_from": 10**400}, "directory": "/x", "work": "/x"}, "begins nowhere"),
        ("reach", {"tried": None}, "tried is 'None'"),
        ("runs", {}, "nodes is 'None'"),
        ("standing", {}, "servers is 'None'"),
        ("standing", {"servers": [], "place": ["here"]}, "place is "),
        ("standing", {"servers": [7], "place": "here"}, "a server is '7'"),
        ("standing", {"servers": [STANDS, STANDS | {"pid": "7"}], "place": "here"}, "a server is "),
        ("standing", {"servers": [STANDS | {"until": float("nan")}], "place": "here"}, "a server is "),
        ("standing", {"servers": [STANDS | {"modules": [None]}], "place": "here"}, "a server is "),
        ("standing", {"servers": [STANDS | {"memory_bytes": "much"}], "place": "here"}, "a server is "),
    ],
)
def test_an_answer_that_no_agent_gives_is_a_problem(plugin: Any, step: str, answer: dict[str, Any], words: str) -> None:
    assert words in plugin.misfit(step, answer)["problem"]
    assert plugin.misfit(step, {"problem": "its own"}) is None
    assert plugin.misfit("preflight", GOOD) is None
    assert plugin.misfit("standing", {"servers": [STANDS | {"memory_bytes": None}], "place": "here"}) is None


NODE = {
    "run": "x-1",
    "node": 3,
    "running": True,
    "directory": "/home/u/.distlaunch/hosts/runs/x-1/nodes/3",
    "files": ["stream"],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run", "x-2"),
        ("run", "../x-1"),
        ("run", None),
        ("node", "../../../home/.ssh"),
        ("node", -1),
        ("node", True),
        ("node", 10**9),
        ("node", 1.5),
        ("directory", "etc"),
        ("directory", "/a\n!touch /tmp/x"),
        ("directory", 7),
        ("files", ["stream", "authorized_keys"]),
        ("files", ["../stderr"]),
        ("files", "stream"),
        ("files", [["stream"]]),
        ("running", "yes"),
    ],
)
def test_a_node_that_a_host_reports_is_validated_as_it_becomes_a_path_here(plugin: Any, name: str, value: Any) -> None:
    for find in (False, True):
        asked = {"call": "runs", "run": "x-1", "find": find}
        assert plugin.misfit("runs", {"nodes": [NODE]}, asked) is None
        assert "is not an agent's" in plugin.misfit("runs", {"nodes": [NODE, NODE | {name: value}]}, asked)["problem"]
        assert "is not an agent's" in plugin.misfit("runs", {"nodes": [NODE, name]}, asked)["problem"]


def test_a_reported_run_has_to_be_one_that_was_asked_for_and_a_valid_name(plugin: Any) -> None:
    def fits(run: str, asked: str, *, find: bool = False) -> bool:
        return plugin.misfit("runs", {"nodes": [NODE | {"run": run}]}, {"run": asked, "find": find}) is None

    assert fits("x-1", "x", find=True)
    assert not fits("y-1", "x", find=True)
    assert not fits("x-1", "x")
    assert fits("x-1", "")
    assert not [
        run
        for run in ("..", ".", "", "a/b", "/etc", "x\n", "{{ x }}", ".ssh")
        if fits(run, "") or fits(run, "", find=True)
    ]


def test_a_deeply_nested_answer_is_refused_at_every_step(plugin: Any) -> None:
    deep: Any = 0
    for _ in range(600):
        deep = [deep]
    for step in ("preflight", "files", "start", "reach", "runs", "stop"):
        for answer in ({"more": deep}, {"more": {"a": deep}}):
            assert "nested" in plugin.misfit(step, GOOD | answer)["problem"]


def test_other_fields_of_an_answer_are_ignored(plugin: Any, tmp_path: Path) -> None:
    """Each passes the check of its step, with keys of other steps in it."""
    odd = {"torch": 1, "agent": 5, "nodes": 7}
    agent = {"pid": 7, "stream_from": 0}
    steps = {
        "preflight": GOOD | odd | {"torch": "2.9"},
        "files": odd,
        "start": {"directory": "/x", "work": "/x", **odd, "agent": agent},
    }
    steps |= {"reach": {"tried": {}, **odd}, "runs": odd | {"nodes": [NODE]}, "stop": odd}
    (tmp_path / "report").write_text(
        "".join(json.dumps({"step": step, "host": "h", "answer": answer}) + "\n" for step, answer in steps.items())
    )

    assert [step for step, answer in steps.items() if plugin.misfit(step, answer, {"run": ""})] == []
    heard = Playbook(tmp_path, "x.yml")
    heard.follow()

    assert list(heard.answers) == list(steps)
