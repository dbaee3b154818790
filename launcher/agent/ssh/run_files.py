"""What a node's directory keeps of the request that started its agent, for a launcher that starts the run again."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Dict

from ..system import files

NOTE = "request.json"
"""What a new start needs again beside the job."""

_SECRETS = "secrets.json"
"""The names of the secrets, as earlier versions noted them."""


def note(own: str, request: Dict[str, Any]) -> None:
    """Record it in the node's directory: the names of the secrets, the setup lines, the container."""
    found = {"secrets": sorted(request.get("secrets") or ()), "setup": request.get("setup") or ""}
    found["container"] = request.get("container")
    files.write_whole(os.path.join(own, NOTE), json.dumps(found).encode("ascii"), 0o600, sync=False)


def request(directory: str, rank: int) -> Dict[str, Any]:
    """The agent's job without its key, its Python, and what was noted of the request that started it.

    Without `setup`, an earlier version has started it, which noted the names of the secrets alone.
    Unlike an answer about any run, it has the workers' variables: it goes only to who can read them in the file.
    """
    own = os.path.join(directory, "nodes", str(rank))
    found: Dict[str, Any] = {"agent": {}, "secrets": [], "note": {}}
    kept = (("job", "spec.json"), ("agent", "agent.json"), ("secrets", _SECRETS), ("note", NOTE))
    for name, file in kept:
        with contextlib.suppress(OSError, ValueError):
            found[name] = json.loads(files.read_word(os.path.join(own, file), 64 << 20))
    if "job" not in found:
        return {"problem": f"{own}/spec.json cannot be read"}
    about = {"job": found["job"], "python": found["agent"].get("python", "")}
    return {"secrets": found["secrets"], **found["note"], **about}


def more(directory: str, identity: Dict[str, Any]) -> Dict[str, Any]:
    """What a launcher needs to follow a node that another one started; no variables, as they may be secret."""
    with open(os.path.join(directory, "spec.json"), encoding="ascii") as file:
        spec = json.load(file)
    names = ("command", "kind", "cwd", "min_nodes", "max_nodes", "grace_s")
    job = {name: spec[name] for name in names if name in spec}
    where = {"run_directory": os.path.dirname(os.path.dirname(directory)), "work": identity["work"]}
    return {**where, "workers": spec["workers"], "job": job, "agent": identity}
