"""What a start on a host does not import, as each of these takes one to three milliseconds on every host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLOW = ("_hashlib", "ast", "base64", "csv", "hashlib", "hmac", "ipaddress", "subprocess", "weakref")
LATER = ("launcher.agent.forkserver.notes", "launcher.agent.network.netlink", "launcher.agent.outputs.own")
"""What few of the processes on a host, or few runs, need."""

STARTS = """
import json, sys
sys.path.insert(0, {root!r})
import launcher.agent.ssh.calls, launcher.agent.ssh.run, launcher.agent.node.run, launcher.agent.node.agent
import launcher.agent.group.process
later = [name for name in {later!r} if name in sys.modules]
import launcher.agent.forkserver.server, launcher.agent.group.worker_group
from launcher.agent.fabric import network_variables
from launcher.agent.forkserver.program import Program
from launcher.agent.network import secure

network_variables.for_node({{}}, {{}}, 0, {facts!r}, 1024)
program = Program([{script!r}], "script", "/")
found = [program.wants_torch(), program.early_variables()]
client, server = (secure.Session("key", end, b"1" * 32, b"2" * 32) for end in (secure.CLIENT, secure.SERVER))
server.check(client.seal(b"data"), b"data")
print(json.dumps([found, later + [name for name in {slow!r} if name in sys.modules]]))
"""


def test_a_start_imports_nothing_that_takes_long(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    facts = str(tmp_path / "facts.json")
    program = STARTS.format(root=str(ROOT), facts=facts, script=str(script), slow=SLOW, later=LATER)

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert json.loads(done.stdout) == [[2, []], []]
    assert (tmp_path / "facts.json").exists()
