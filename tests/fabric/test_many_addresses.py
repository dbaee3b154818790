"""More addresses than a process may open files."""

from __future__ import annotations

import subprocess
import sys

import pytest

MANY = """
import resource, sys, threading
from launcher.agent.group import exploring
from launcher.agent.network import reach

tried = threading.Event()

class Late(reach.Answerer):  # it accepts nothing before all files are in use
    def _run(self):
        tried.wait()
        super()._run()

def connect_first(*args):
    connect(*args)
    tried.set()

connect, reach._connect = reach._connect, connect_first

def patient(targets):
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return attempt(targets, limit_s=600, settle_s=600)

attempt, reach.attempt = reach.attempt, patient
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
about = {"port": Late(b"right").port, "token": "right"}
peers = {peer: {**about, "addresses": [f"127.0.{peer}.{n}" for n in range(1, 21)]} for peer in range(1, 11)}
targets = reach.targets(peers, [])
print(len(exploring._reached(targets)), len({target.peer for target in targets[:10]}))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize("hard", [64, 1024])
def test_all_addresses_are_tried_where_there_are_more_than_this_process_may_open(hard: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(hard)], check=True, capture_output=True, text=True, timeout=60
    )

    may_open, reached, first_peers, afterwards = map(int, done.stdout.split())
    assert (may_open, reached, first_peers, afterwards) == (hard, 200, 10, 64)
