"""What a node's directory keeps of the request that started its agent, for a launcher that starts the run again."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Dict, List

from ..system import files

SECRETS = "secrets.json"
"""The names of the workers' secrets, which a new start needs again."""


def note_secrets(own: str, names: List[str]) -> None:
    """Record the names of the secrets in the node's directory, if there are any."""
    path = os.path.join(own, SECRETS)
    with contextlib.suppress(FileNotFoundError):  # of an earlier start
        os.unlink(path)
    if names:
        files.write_whole(path, json.dumps(sorted(names)).encode("ascii"), 0o600, sync=False)


def request(directory: str, rank: int) -> Dict[str, Any]:
    """The agent's job without its key, its Python, where it worked, and the names of its secrets.

    Unlike an answer about any run, it has the workers' variables: it goes only to who can read them in the file.
    """
    own = os.path.join(directory, "nodes", str(rank))
    found: Dict[str, Any] = {"secrets": []}
    for name, file in (("job", "spec.json"), ("agent", "agent.json"), ("secrets", SECRETS)):
        with contextlib.suppress(OSError, ValueError):
            found[name] = json.loads(files.read_word(os.path.join(own, file), 64 << 20))
    if "job" not in found:
        return {"problem": f"{own}/spec.json cannot be read"}
    return {"job": found["job"], "python": found.get("agent", {}).get("python", ""), "secrets": found["secrets"]}


def more(directory: str, identity: Dict[str, Any]) -> Dict[str, Any]:
    """What a launcher needs to follow a node that another one started; no variables, as they may be secret."""
    with open(os.path.join(directory, "spec.json"), encoding="ascii") as file:
        spec = json.load(file)
    names = ("command", "kind", "cwd", "min_nodes", "max_nodes", "grace_s")
    job = {name: spec[name] for name in names if name in spec}
    where = {"run_directory": os.path.dirname(os.path.dirname(directory)), "work": identity["work"]}
    return {**where, "workers": spec["workers"], "job": job, "agent": identity}
