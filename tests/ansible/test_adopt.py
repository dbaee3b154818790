"""What a host reports about a run that was started from another host: it may be hostile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.ansible import adoption as adopt
from launcher.backends.ansible.inventory import Host
from launcher.errors import BackendUnavailableError, RunNotFoundError

if TYPE_CHECKING:
    from pathlib import Path

RUN = "train-20250101-000000-aaaa"
FACTS = {"python_used": "python3", "ssh": ["ssh", "h"], "agent_path": "/r/agents/a.pyz", "mounts": []}


def node(number: Any = 0, **more: Any) -> dict[str, Any]:
    """An honest host's answer, except for what is given."""
    job = {"command": ["x.py"], "min_nodes": 2, "max_nodes": 2, "grace_s": 30.0, **more.pop("job", {})}
    agent = {"pid": 1, "start_ticks": 2, "boot_id": "b"}
    about = {
        "run": RUN,
        "node": number,
        "run_directory": f"/r/runs/{RUN}",
        "work": "/r/w",
        "workers": "auto",
        "agent": agent,
    }
    return {**about, "job": job, **more}


def ask(**answers: list[Any]) -> Any:
    """What `adopt` concludes from these answers of hosts."""
    found = {
        "runs": {host: {"nodes": nodes} for host, nodes in answers.items()},
        "preflight": dict.fromkeys(answers, FACTS),
    }
    running: Any = SimpleNamespace(answers=found, problems={})
    return adopt.look("train", [Host(name=name) for name in answers], running)


def test_honest_hosts_have_their_nodes(tmp_path: Path) -> None:
    found = ask(n1=[node(0)], n2=[node(1)])

    assert (found.run, [one["rank"] for one in found.handle(tmp_path)["nodes"]]) == (RUN, [0, 1])


@pytest.mark.parametrize(
    "lie",
    [
        node("../../../../etc"),
        node(-1),
        node(2),
        node(True),
        node(1.0),
        node(1, run="../../etc"),
        node(1, run=f"../{RUN}"),
        node(1, run=f"{RUN}/../../x"),
        node(1, run="other-20250101-000000-aaaa"),
        node(1, run_directory=["x"]),
        node(1, work=None),
        node(1, agent="x"),
        node(1, job={"max_nodes": 10**9}),
        node(1, job={"max_nodes": "2"}),
        node(1, job={"min_nodes": 0}),
        node(1, job={"command": []}),
        node(1, job={"command": [["x"]]}),
        node(1, job={"command": "x"}),
        node(1, job={"grace_s": float("nan")}),
        node(1, job={"grace_s": 10**400}),
        node(1, job={"grace_s": 1e18}),
        node(1, workers=10**400),
        node(1, job={"cwd": 5}),
        {"node": 1},
        ["x"],
        None,
    ],
)
def test_a_host_with_an_impossible_answer_is_left_out_with_a_warning(
    lie: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BackendUnavailableError, match=f"{RUN}: no host has its node 1"):
        ask(n1=[node(0)], n2=[lie])

    assert "n2: its report about a run is ignored: " in capfd.readouterr().err


def test_two_hosts_with_one_node_are_named() -> None:
    with pytest.raises(BackendUnavailableError, match="n2 and n3 both say that they have its node 1"):
        ask(n1=[node(0)], n2=[node(1)], n3=[node(1)])


def test_a_run_that_no_host_knows_is_an_error() -> None:
    with pytest.raises(RunNotFoundError, match="no run 'train' on n1"):
        ask(n1=[])
