"""A run on a host reached over SSH: its files, its agent, and signals to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from functools import partial
from typing import Any, BinaryIO, Dict, List, Mapping, NoReturn, Optional, Tuple

from .. import protocol, roles
from ..forkserver import forks, prefork
from ..network import routes
from ..node.stops import CANCEL
from ..secret_files import FUNCTION_FILE, KEY_FILE, NOTIFY_FILE
from ..system import cgroup, files, processes
from . import begin, container, preflight, warm
from .leases import HOLDER
from .preflight import identity_of
from .run_files import more, note
from .user_files import HostError, working_directory

_ENDPOINT_S = 60.0
_HEARS_S = 1.0
_ENDS_S = 3.0  # how long an agent may take to end its workers and itself if it has to do so at once
_LAST_BYTES = 64 * 1024
Request = Dict[str, Any]


def start(request: Request) -> Request:
    """Start the node's agent, detached; returns once it has written to its stream."""
    directory, rank = request["directory"], int(request["node_rank"])
    own = os.path.join(directory, "nodes", str(rank))
    endpoint = os.path.join(own, "rendezvous.json")
    already = identity_of(directory, rank)
    if already is not None and preflight.alive(already):
        known = {} if request.get("reached") else _told(endpoint, own, already)
        return {**known, "running": True, "agent": already, "directory": directory, "work": already["work"]}
    for of_a_start_before in (endpoint, endpoint + ".end", os.path.join(own, CANCEL)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(of_a_start_before)
    os.makedirs(own, mode=0o700, exist_ok=True)
    workers, reached = str(request["workers"]), request.get("reached")
    job = dict(
        request["job"], directory=directory,
        workers=int(workers) if workers.isascii() and workers.isdigit() else workers,
    )  # fmt: skip
    job["cwd"], notes = working_directory(request)
    job["output_dir"] = job["cwd"]
    job["rendezvous"] = {"addr": reached, "port": request["port"]} if reached else {"file": endpoint}
    if request.get("addr"):
        job["master_addr"] = request["addr"]
    spec = os.path.join(own, "spec.json")
    begin.write(spec, json.dumps(job, indent=1))
    begin.write(os.path.join(own, KEY_FILE), request["key"])
    note(own, request)
    for name in filter(request.get, (FUNCTION_FILE, NOTIFY_FILE)):
        begin.write(os.path.join(own, name), request[name])
    about = {"work": job["cwd"], "reached": reached}
    warmed = warm.start(request, own, spec, about) if job.get("warm_s") else None
    identity = warmed or _spawn(request, own, job["cwd"], spec, about)
    answer: Request = {"reached": reached} if reached else _told(endpoint, own, identity)
    return {**answer, "agent": identity, "directory": directory, "work": job["cwd"], "notes": notes}


def reach(request: Request) -> Request:
    """Try all of node 0's addresses; returns which of them this host reaches."""
    already = identity_of(request["directory"], int(request["node_rank"]))
    if already is not None and preflight.alive(already) and already.get("reached"):
        return {"tried": {already["reached"]: True}}
    port = int(request["port"])
    found = routes.reached(request["candidates"], port)
    if not found:
        raise HostError(
            f"cannot reach port {port} of node 0 at any of its addresses: {', '.join(request['candidates'])}"
        )
    return {"tried": {address: address in found for address in request["candidates"]}}


def ended(request: Request) -> Request:
    """Why the node's agent exited; empty if it still runs. Waits, as an agent closes its port before it exits."""
    directory, rank = request["directory"], int(request["node_rank"])
    identity, limit = identity_of(directory, rank), time.monotonic() + _ENDS_S
    while identity is not None and preflight.alive(identity) and time.monotonic() < limit:
        time.sleep(0.05)
    if identity is None or preflight.alive(identity):
        return {"ended": ""}
    return {"ended": _why(os.path.join(directory, "nodes", str(rank)), identity)}


def _why(own: str, identity: Request) -> str:
    """The last cause that an exited agent has reported, else its exit status if it is a child of this process."""
    decoder = protocol.Decoder()
    with open(os.path.join(own, "stream"), "rb") as file:
        file.seek(max(identity["stream_from"], os.fstat(file.fileno()).st_size - _LAST_BYTES))
        records = [*decoder.feed(file.read()), *decoder.close()]
    causes = [
        record.fields["cause"]
        for record in records
        if isinstance(record, protocol.Event) and record.fields.get("cause")
    ]
    if causes:
        return str(causes[-1]["message"])
    with contextlib.suppress(ChildProcessError):  # it was started by another session
        return begin.how(begin.status(identity["pid"]))
    return "it gave no reason"


def _spawn(request: Request, own: str, cwd: str, spec: str, about: Request) -> Request:
    """Start the agent in its own session, or in a scope of the user's systemd; neither ends with the login."""
    env = {**os.environ, **HOLDER.environment(), **request["secrets"]}
    env.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    rank = int(request["node_rank"])
    unit = f"distlaunch-{os.path.basename(request['directory'])}-{rank}-{int(time.time())}"
    inside = container.words(request, own, cwd, [*HOLDER.environment(), *request["secrets"]])
    python = request["container"]["python"] if inside else sys.executable
    scope = ["systemd-run", "--user", "--scope", "--quiet", "--collect", f"--unit={unit}", "--"]
    for scoped in [scope, []] if preflight.supervisor() == "systemd" else [[]]:
        under = [*scoped, *inside, python] if scoped or inside or request["job"].get("env_ship") else []
        with open(os.path.join(own, "stream"), "ab") as out, open(os.path.join(own, "stderr"), "ab") as err:
            before = out.tell()
            (reader, go), (hears, says) = os.pipe(), os.pipe()
            pid = os.fork()
            if not pid:
                os.close(go)
                os.close(hears)
                if not os.read(reader, 1):
                    os._exit(os.EX_TEMPFAIL)
                os.close(reader)
                _become_agent(under, spec, rank, cwd, env, (out, err), says)
        os.close(reader)
        os.close(says)
        who = {"pid": pid, "start_ticks": processes.start_ticks(pid), "boot_id": preflight.boot_id()}
        identity = {**who, "stream_from": before, "under": bool(under), **about}
        HOLDER.hand_over(pid)
        try:
            begin.let_go(partial(os.write, go, b"\n"), own, identity)
            begun, status = begin.first_word(identity, own, hears)
        finally:
            os.close(go)
            os.close(hears)
        if begun and identity["start_ticks"] is not None:
            HOLDER.close()  # the agent has it
            return identity
        if status is None:  # it might start later, beside the next one
            os.kill(pid, signal.SIGKILL)
    raise HostError(_not_begun(own, status))


def _not_begun(own: str, status: Optional[int]) -> str:
    """What became of an agent; `status`: its exit code, if it has exited."""
    if status is None:
        return f"the agent has sent nothing for {begin.FIRST_LINE_S:.0f} s"
    with open(os.path.join(own, "stderr"), encoding="utf-8", errors="replace") as file:
        said = file.read()[-2000:].strip().splitlines()
    return f"the agent exited right after its start: {said[-1] if said else begin.how(status)}"


def _become_agent(
    under: List[str],
    spec: str,
    rank: int,
    cwd: str,
    env: Mapping[str, str],
    files: Tuple[BinaryIO, BinaryIO],
    says: int,
) -> NoReturn:
    """In the child: become the agent, either by `under`, or in this Python, which has already imported half of it."""
    code = 1
    try:
        os.setsid()
        with open(os.devnull, "rb") as null:
            for fd, file in enumerate((null, *files)):
                os.dup2(file.fileno(), fd)
                file.close()
        os.chdir(cwd)
        arguments = [os.path.abspath(sys.path[0]), "--spec", spec, "--node-rank", str(rank)]
        if under:
            for lock in HOLDER.descriptors():
                os.set_inheritable(lock, True)
            os.execvpe(under[0], [*under, *arguments], env)
        from ..job import Job
        from ..node.function_call import as_script
        from ..node.run import may_stay, run

        job = roles.job_of(Job.read(spec), rank)
        changed = [name for name, value in env.items() if os.environ.get(name) != value]
        os.environ.update(env)
        sys.argv[:] = arguments
        if job.warm_s:
            may_stay()
        forked = prefork.fork([*changed, *job.env], as_script(job, rank).command)
        processes.set_title([sys.executable, *arguments])
        with contextlib.suppress(OSError):  # the login has been killed, and the agent is recorded
            os.write(says, b"\n")
        os.close(says)
        run(job, rank, os.dup(1), forked)
    except forks.Child:
        raise
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - this child must never continue as the login's Python
        import traceback

        with contextlib.suppress(OSError):  # stderr is on the run's disk
            os.write(2, traceback.format_exc().encode(errors="backslashreplace"))
    os._exit(code)


def _told(endpoint: str, own: str, identity: Request) -> Request:
    """On node 0: the addresses and the port at which the others reach it."""
    limit = time.monotonic() + _ENDPOINT_S
    while True:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(files.read_word(endpoint)))
        if not preflight.alive(identity):
            raise HostError(f"the agent of node 0 has ended: {_why(own, identity)}; see {own}/stderr")
        if time.monotonic() > limit:
            raise HostError(f"node 0 has not opened its port in {_ENDPOINT_S:.0f} s; see {own}/stderr and {own}/stream")
        time.sleep(0.005)


def send_signal(directory: str, rank: int, number: int, *, force: bool) -> Request:
    """Signal the node's agent; `force`: it kills its workers at once, or is killed. Ends what a dead agent left."""
    if force or number == signal.SIGTERM:  # before the signal, for an agent that is about to start
        with contextlib.suppress(OSError):  # a full disk: a second signal kills, too
            own = os.path.join(directory, "nodes", str(rank))
            os.makedirs(own, mode=0o700, exist_ok=True)
            begin.write(os.path.join(own, CANCEL), json.dumps({"force": force}))
    identity = identity_of(directory, rank)
    if identity is None or not preflight.alive(identity):
        _end_leftovers(os.path.join(directory, "nodes", str(rank)))
        return {"signalled": False}
    with contextlib.suppress(ProcessLookupError):
        os.kill(identity["pid"], number)
    if force:
        limit = time.monotonic() + _HEARS_S
        while preflight.alive(identity) and time.monotonic() < limit:
            time.sleep(0.02)
        processes.kill_tree(identity["pid"], identity["start_ticks"])
        _end_leftovers(os.path.join(directory, "nodes", str(rank)))
    return {"signalled": True}


def runs(request: Request) -> Request:
    """The nodes of a run, or of all runs, on this host; sends them `signal`. `find`: by id prefix, with more facts.

    `running`: only those whose agents run.
    """
    base = os.path.join(os.path.expanduser(request["dir"]), "runs")
    run, find = str(request.get("run") or ""), bool(request.get("find"))
    known = sorted(os.listdir(base)) if os.path.isdir(base) else []
    found = []
    for name in [name for name in known if name.startswith(run)] if find or not run else [run]:
        nodes = os.path.join(base, name, "nodes")
        for rank in sorted(os.listdir(nodes) if os.path.isdir(nodes) else [], key=int):
            identity = identity_of(os.path.join(base, name), int(rank))
            if identity is None or identity["boot_id"] != preflight.boot_id():
                continue  # another host's, on a shared disk
            running = preflight.alive(identity)
            if request.get("running") and not running:
                continue
            if running and request.get("signal"):
                send_signal(
                    os.path.join(base, name), int(rank), int(request["signal"]), force=bool(request.get("force"))
                )
            directory = os.path.join(nodes, rank)
            files = [
                name for name in ("stream", "stderr", "last_words") if os.path.exists(os.path.join(directory, name))
            ]
            about = {"run": name, "node": int(rank), "running": running, "directory": directory, "files": files}
            found.append({**about, **(more(directory, identity) if find else {})})
    return {"nodes": found, "signalled": bool(request.get("signal")) and any(node["running"] for node in found)}


def _end_leftovers(own: str) -> None:
    """End what an exited agent left running, if it had a container or a cgroup."""
    container.remove(own)
    with contextlib.suppress(OSError, ValueError):
        path = json.loads(files.read_word(os.path.join(own, "agent.json"))).get("cgroup")
        if path:
            cgroup.remove(path)
