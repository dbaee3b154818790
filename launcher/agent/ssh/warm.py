"""Fork servers that earlier runs have left standing on this host (`--warm`): an agent forked from one, and a list."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, Optional

from ..system import processes, trust
from ..warm import asking, records
from . import begin, preflight
from .leases import HOLDER

Request = Dict[str, Any]


def start(request: Request, own: str, spec: str, about: Request) -> Optional[Request]:
    """The identity of an agent that has begun; None if one has to be started, which is then told the reason."""
    with open(spec, encoding="ascii") as file:
        job = json.load(file)
    agent, reason, before = None, "", 0
    if request.get("container"):
        reason = "its workers run in a container"
    elif preflight.supervisor() == "systemd":
        reason = "agents here run in scopes of the user's systemd, each with a cgroup of its own"
    else:
        agent, reason, before = _asked(request, own, spec, job)
    if agent is None:
        begin.write(spec, json.dumps({**job, "cold": reason}, indent=1))
        return None
    try:
        who = {"pid": agent.pid, "start_ticks": processes.start_ticks(agent.pid), "boot_id": preflight.boot_id()}
        identity = {**who, "stream_from": before, "under": False, **about}
        HOLDER.hand_over(agent.pid)
        begin.let_go(agent.go, own, identity)
    finally:
        agent.close()
    if who["start_ticks"] is None or begin.first_word(identity, own)[1] is not None:
        begin.write(spec, json.dumps({**job, "cold": "the agent that was forked from it has been killed"}, indent=1))
        return None
    HOLDER.close()  # the agent has it
    return identity


def standing(request: Request) -> Request:
    """What runs of this user have left standing on this host; `end`: ends all of it. `place`: where pids are unique."""
    place = f"{preflight.boot_id()} {os.stat('/proc/self/ns/pid').st_ino}"
    return {"servers": records.listed(end_all=bool(request.get("end"))), "place": place}


def _asked(request: Request, own: str, spec: str, job: Request) -> Any:
    archive = os.path.abspath(sys.path[0])
    env = {**os.environ, **HOLDER.environment(), **request["secrets"]}
    env.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    with open(archive, "rb") as file:
        agent = trust.agent_name(file.read())
    argv = [sys.executable, "-u", archive, "--spec", spec, "--node-rank", str(int(request["node_rank"]))]
    wanted = asking.Request(agent, argv, env, job["cwd"], float(job["warm_s"]), HOLDER.descriptors())
    with open(os.path.join(own, "stream"), "ab") as out, open(os.path.join(own, "stderr"), "ab") as err:
        return (*asking.ask(wanted, (out.fileno(), err.fileno())), out.tell())
