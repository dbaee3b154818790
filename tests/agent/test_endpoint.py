"""Which files in a directory a node takes for messages of another node: none that another user may have put there."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from launcher.agent import cause
from launcher.agent.job import Job
from launcher.agent.network import routes
from launcher.agent.network.endpoint import Endpoint
from launcher.agent.node.joining import Joining
from launcher.agent.system import files

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Unpack

    from launcher.agent.messages import Rendezvous

WHY = cause.of_node(host="n", node=1, message="it has no disk", time=1.5)


def endpoint(tmp_path: Path, **rendezvous: Unpack[Rendezvous]) -> Endpoint:
    return Endpoint(Job("run", ["x.py"], "script", str(tmp_path), {}, str(tmp_path), rendezvous, max_nodes=2))


@pytest.mark.parametrize("what", ["a file", "a pipe"])
def test_without_a_rendezvous_file_none_is_read_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("None", "None.end", ".end"):
        if what == "a file":
            (tmp_path / name).write_text(json.dumps({"cause": WHY}))
        else:
            os.mkfifo(tmp_path / name)

    assert endpoint(tmp_path, addr="127.0.0.1", port=1).ended() is None


def test_how_another_node_has_ended_is_read(tmp_path: Path) -> None:
    end = endpoint(tmp_path, file=str(tmp_path / "rdzv"))
    assert end.ended() is None
    end.end(WHY)
    assert end.ended() == {"cause": WHY}
    os.unlink(tmp_path / "rdzv.end")
    end.end(None)
    assert end.ended() == {"cause": None}


WRONG = {"class": "made up", "message": 3, "host": None, "time": "now", "secondary": 2, "node": "x", "traceback": {}}
NO_CAUSES = [
    *("[]", "{}", "3", '{"cause": 3}', '{"cause": {}}', "[" * 100_000, "\xff"),
    *(json.dumps({"cause": {**WHY, key: value}}) for key, value in [*WRONG.items(), ("class", [])]),
    json.dumps({"cause": WHY}) + " " * (1 << 20),
]


@pytest.mark.parametrize("said", NO_CAUSES, ids=range(len(NO_CAUSES)))
def test_a_malformed_cause_is_ignored(tmp_path: Path, said: str) -> None:
    (tmp_path / "rdzv.end").write_bytes(said.encode("latin-1"))

    assert endpoint(tmp_path, file=str(tmp_path / "rdzv")).ended() is None


@pytest.mark.parametrize("name", ["rdzv", "rdzv.end"])
@pytest.mark.parametrize("what", ["a pipe", "a link", "a directory", "too large"])
def test_only_a_small_regular_file_is_read_and_without_waiting(tmp_path: Path, name: str, what: str) -> None:
    other = tmp_path / "other"
    other.write_text(json.dumps({"cause": WHY, "addresses": ["127.0.0.1"], "port": 1}))
    path = tmp_path / name
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "a link":
        path.symlink_to(other)
    elif what == "a directory":
        path.mkdir()
    else:
        path.write_bytes(other.read_bytes())
        os.truncate(path, (1 << 20) + 1)
    with pytest.raises(OSError, match=r"."):
        files.read_word(str(path))
    end = endpoint(tmp_path, file=str(tmp_path / "rdzv"))
    assert end.ended() is None
    assert end.look() is None
    assert end.told == ""


def test_a_malformed_address_is_ignored(tmp_path: Path) -> None:
    port_x, no_text = '{"addresses": ["127.0.0.1"], "port": "x"}', '{"addresses": [{}], "port": 1}'
    for said in ("[]", "{}", '{"addresses": 3, "port": 1}', port_x, no_text):
        (tmp_path / "rdzv").write_text(said)
        assert endpoint(tmp_path, file=str(tmp_path / "rdzv")).look() is None, said


def test_no_name_server_is_asked_for_an_address_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(name: str) -> list[str]:
        raise AssertionError(name)

    monkeypatch.setattr(routes, "resolve", asked)
    job = Job("run", ["x.py"], "script", str(tmp_path), {}, str(tmp_path), {"addr": "127.0.0.1"}, max_nodes=1)
    joining = Joining(MagicMock(job=job, node_rank=0), MagicMock())
    joining.endpoint.open()

    joining.look_at_fabric({}, 1024)

    assert (joining.endpoint.look() or ("", 0))[0] == "127.0.0.1"
    joining.endpoint.handed_over()
