"""What a start on a host does not import, as each of these takes one to three milliseconds on every host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLOW = ("_hashlib", "ast", "base64", "csv", "hashlib", "hmac", "ipaddress", "subprocess", "weakref")
STARTS = """
import json, sys
sys.path.insert(0, {root!r})
import launcher.agent.ssh.calls, launcher.agent.ssh.run, launcher.agent.node.run, launcher.agent.node.agent
import launcher.agent.forkserver.server, launcher.agent.group.process, launcher.agent.group.worker_group
from launcher.agent.fabric import network_variables
from launcher.agent.forkserver.program import Program
from launcher.agent.network import secure

network_variables.for_node({{}}, {{}}, 0, {facts!r}, 1024)
program = Program([{script!r}], "script", "/")
found = [program.wants_torch(), program.early_variables()]
client, server = (secure.Session("key", end, b"1" * 32, b"2" * 32) for end in (secure.CLIENT, secure.SERVER))
server.check(client.seal(b"data"), b"data")
print(json.dumps([found, [name for name in {slow!r} if name in sys.modules]]))
"""


def test_a_start_imports_nothing_that_takes_long(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    program = STARTS.format(root=str(ROOT), facts=str(tmp_path / "facts.json"), script=str(script), slow=SLOW)

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert json.loads(done.stdout) == [[2, []], []]
    assert (tmp_path / "facts.json").exists()
