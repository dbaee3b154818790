"""What doctor's job reports of a node that cannot meet the others."""

from __future__ import annotations

from typing import NoReturn

import pytest

from launcher.agent.protocol import LineTagger, encode_event
from launcher.doctor import checks
from launcher.doctor.reports import Reports
from launcher.runs.reader import StreamReader

pytestmark = pytest.mark.torch


def test_only_the_port_is_reported_and_no_packet_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import doctor

    def refuse(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("connection refused")

    monkeypatch.setattr(doctor, "rendezvous", refuse)
    monkeypatch.setenv("MASTER_PORT", "12345")
    with pytest.raises(RuntimeError):
        doctor.meet({"rank": 1, "local_rank": 0, "host": "n1", "versions": {}, "disks": {}})

    line = LineTagger(1, 1, "stdout").feed(capsys.readouterr().out.encode())
    found = Reports(2)
    for record in StreamReader(None, 1).feed(encode_event("rendezvous", 1, ranks=[1], world_size=2) + line):
        found.take(1, record)
    (report,) = found.reports
    assert report["paths"] == {"blocked": [[0, "12345 (MASTER_PORT)", "refused"]]}
    seen = [name for name, check in checks.known().items() if check.seen(report, None)]
    assert "ports" in seen
    assert "mtu" not in seen
