"""This node's place in a Slurm job and its resources, from the variables that Slurm sets: no controller is queried."""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Tuple

from .. import roles
from ..contracts._contract import Variable
from ..failures import Failure, may_come_back
from ..job import Job
from ..system import files, folding
from ..system.natural_order import natural

if TYPE_CHECKING:
    from ..ranks import Group, Ranks

_BRACKET = r"\[([^\]]*)\]"


class SlurmError(ValueError):
    """The variables do not describe a job that includes this node."""


def expand(hostlist: str) -> List[str]:
    """The hosts of a hostlist such as `n[1-3,07],gpu[0-1]-ib[0-1]`, in the order of `scontrol show hostnames`."""
    hosts: List[str] = []
    for part in _split(hostlist):
        hosts += _expand_one(part)
    return hosts


def _split(hostlist: str) -> List[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(hostlist):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise SlurmError(f"hostlist {hostlist!r}: brackets do not match")
        if char == "," and depth == 0:
            parts.append(hostlist[start:index])
            start = index + 1
    if depth:
        raise SlurmError(f"hostlist {hostlist!r}: brackets do not match")
    return [part for part in [*parts, hostlist[start:]] if part]


def _expand_one(part: str) -> List[str]:
    match = re.search(_BRACKET, part)
    if match is None:
        return [part]
    before, after = part[: match.start()], part[match.end() :]
    ends = _expand_one(after)
    return [f"{before}{number}{end}" for number in _numbers(match[1], part) for end in ends]


def _numbers(ranges: str, part: str) -> List[str]:
    """Expand `1-3,07` to 1 2 3 07; a range keeps the width of its first number."""
    found: List[str] = []
    for piece in ranges.split(","):
        low, dash, high = piece.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise SlurmError(f"hostlist {part!r}: {piece!r} is not a range")
        found += [str(n).zfill(len(low)) for n in range(int(low), int(high or low) + 1)]
    return found


def leaves(topology: str) -> Dict[str, int]:
    """The number of each host's leaf switch (topology/tree) or block (topology/block, an NVLink domain for example).

    `topology`: from `scontrol show topology`, where a switch of level 0 and a block name hosts; aggregated blocks
    repeat them.
    """
    leaf: Dict[str, int] = {}
    order = 0
    for line in topology.splitlines():
        fields = dict(item.partition("=")[::2] for item in line.split())
        if (fields.get("Level") == "0" or "BlockName" in fields) and fields.get("Nodes"):
            for host in expand(fields["Nodes"]):
                leaf.setdefault(host, order)
            order += 1
    return leaf


def order(hosts: List[str], topology: str = "") -> List[str]:
    """Hosts in rank order: grouped by leaf switch or block if the topology is known, and in natural order."""
    leaf = leaves(topology)
    return sorted(hosts, key=lambda host: (leaf.get(host, len(leaf)), natural(host)))


def groups(env: Mapping[str, str]) -> Dict[str, List[str]]:
    """The groups of a heterogeneous job that this step spans, with their hosts; none in another job."""
    size, step = env.get("SLURM_HET_SIZE", ""), set(expand(env.get("SLURM_STEP_NODELIST", "")))
    numbers = map(str, range(int(size) if size.isdigit() else 0))
    every = {number: expand(env.get(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", "")) for number in numbers}
    return {number: hosts for number, hosts in every.items() if hosts and step.issuperset(hosts)}


def group_of(env: Mapping[str, str]) -> str:
    """The group of this node, as `srun --het-group` takes it; empty in a job without groups."""
    task = int(env.get("SLURM_PROCID") or 0)  # srun counts its tasks, one per node, over all groups
    for number, hosts in groups(env).items():
        if task < len(hosts):
            return number
        task -= len(hosts)
    return ""


def place_in_groups(env: Mapping[str, str]) -> Tuple[int, List[str]]:
    """As `place`, where each group of a heterogeneous job is a role: its nodes follow those of the group before."""
    found, own = groups(env), group_of(env)
    if not own:
        return place(env)
    wired = _topology(env.get("DISTLAUNCH_SLURM_TOPOLOGY_FILE", ""))
    ordered = {number: order(hosts, wired) for number, hosts in found.items()}
    first = sum(len(hosts) for number, hosts in ordered.items() if int(number) < int(own))
    rank = first + ordered[own].index(env.get("SLURMD_NODENAME", ""))
    return rank, [host for hosts in ordered.values() for host in hosts]


def place(env: Mapping[str, str]) -> Tuple[int, List[str]]:
    """This node's rank and all hosts of the step in rank order. Raises `SlurmError` if a variable is missing."""
    nodelist = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    name = env.get("SLURMD_NODENAME")
    if not nodelist or not name:
        raise SlurmError("SLURM_JOB_NODELIST or SLURMD_NODENAME is not set: start the agent with srun in a Slurm job")
    hosts = order(expand(nodelist), _topology(env.get("DISTLAUNCH_SLURM_TOPOLOGY_FILE", "")))
    if name not in hosts:
        raise SlurmError(f"this node, {name}, is not among the job's: {nodelist}")
    return hosts.index(name), hosts


def names(env: Mapping[str, str]) -> Dict[str, str]:
    """What Slurm calls this host, its job (of an array's task, the number that srun takes), its step and its group."""
    keys = ("JOB_ID", "ARRAY_JOB_ID", "ARRAY_TASK_ID", "STEP_ID")
    job, array, task, step = (env.get(f"SLURM_{key}", "") for key in keys)
    shown = f"{array}_{task}" if array else job
    node, where = env.get("SLURMD_NODENAME", ""), group_of(env)
    return {"node": node, "job": job, "step": f"{shown}.{step}" if step else "", "group": where}


def of_worker(job: Job, group: Group, worker: Ranks, env: Mapping[str, str]) -> List[Variable]:
    """What srun would set for the worker if it had started it as a task; nothing outside of a step.

    There is one task per node, the agent, whose numbers all workers would inherit.
    """
    if "SLURM_PROCID" not in env:
        return []
    counts, ours = list(group.counts), "as if srun had started each worker: its own task is the agent"
    per_node = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in _runs(counts))
    first = sum(counts[: group.node_rank])
    values: Dict[str, Any] = {
        "SLURM_PROCID": worker.rank,
        "SLURM_LOCALID": worker.local_rank,
        "SLURM_NODEID": group.node_rank,
        "SLURM_NTASKS": worker.world_size,
        "SLURM_NPROCS": worker.world_size,
        "SLURM_STEP_NUM_TASKS": worker.world_size,
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_GTIDS": ",".join(str(first + local) for local in range(group.local_world_size)),
    }
    if "SLURM_NTASKS_PER_NODE" in env:
        values["SLURM_NTASKS_PER_NODE"] = group.local_world_size
    if "SLURM_DISTRIBUTION" in env:  # by which Intel MPI decides whose memory a rank shares
        values["SLURM_DISTRIBUTION"] = "block"
    if job.roles:
        values = {**_of_role(job, env), **values}
    return [Variable(name, str(value), ours) for name, value in values.items()]


def _of_role(job: Job, env: Mapping[str, str]) -> Dict[str, Any]:
    """What would be set if the step were on the nodes of this role only; the job's id stays that of all."""
    role = next(role for role in roles.of(job) if role.name == job.role)
    hosts = place_in_groups(env)[1][role.first : role.first + role.nodes]
    found: Dict[str, Any] = dict.fromkeys(
        [f"SLURM_{of}NODELIST" for of in ("", "JOB_", "STEP_")], folding.in_order(hosts)
    )
    found.update(dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), role.nodes))
    end = f"_HET_GROUP_{group_of(env)}"
    own = {name[: -len(end)]: value for name, value in env.items() if name.endswith(end)}
    if "SLURM_CPUS_PER_TASK" in env and own:  # srun sets that of another group, too
        own.setdefault("SLURM_CPUS_PER_TASK", env.get("SLURM_CPUS_ON_NODE", "1"))
    differ = {name: value for name, value in own.items() if env.get(name, value) != value and name != "SLURM_JOB_ID"}
    return {**differ, **found}


def _runs(counts: List[int]) -> List[Tuple[int, int]]:
    """Each number with how many times it follows itself."""
    found: List[Tuple[int, int]] = []
    for count in counts:
        if found and found[-1][0] == count:
            found[-1] = (count, found[-1][1] + 1)
        else:
            found.append((count, 1))
    return found


def _topology(path: str) -> str:
    """The network topology recorded by the job file; ranks depend on it, so all nodes must be able to read it."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        raise SlurmError(f"{path}: {error.strerror}") from error


def here(job: Job, env: Mapping[str, str]) -> Tuple[Job, int]:
    """The job adapted to this node of the step, and the node's rank. Raises `SlurmError` if a variable is missing."""
    rank, hosts = place_in_groups(env) if job.roles else place(env)
    if job.roles and len(hosts) != job.max_nodes:
        raise SlurmError(f"the roles have {job.max_nodes} nodes, and the step has {len(hosts)}")
    restarts = int(env.get("SLURM_RESTART_COUNT") or 0)
    session = ".".join([env.get("SLURM_JOB_ID", ""), env.get("SLURM_STEP_ID", ""), str(restarts)])
    job = job._replace(max_nodes=len(hosts), min_nodes=min(job.min_nodes, len(hosts)))
    job = job._replace(session=session, attempt=job.attempt + restarts)
    if job.array:
        directory = os.path.join(job.directory, "tasks", env["SLURM_ARRAY_TASK_ID"])
        job = job._replace(directory=directory, rendezvous={"file": os.path.join(directory, "rendezvous.json")})
    gpus = env.get("SLURM_GPUS_ON_NODE", "")
    if gpus.isdigit() and int(gpus):
        job = _with_workers(job, int(gpus))
    kill, grace = (env.get(f"DISTLAUNCH_SLURM_{name}", "") for name in ("KILL_WAIT", "GRACE_TIME"))
    if kill.isdigit():
        job = job._replace(kill_wait_s=float(kill) + float(grace if grace.isdigit() else 0))
    if job.attempt:
        job = job._replace(why_again=_last_result(os.path.join(job.directory, "nodes", str(rank), "stream")))
    return job, rank


def _with_workers(job: Job, gpus: int) -> Job:
    """The job with a worker per GPU, where no number is given."""
    own = [{**role, "workers": gpus} if role.get("workers") == "auto" else role for role in job.roles or ()]
    return job._replace(workers=gpus if job.workers == "auto" else job.workers, roles=own or None)


def _last_result(stream: str) -> str:
    """The last attempt's result. Slurm's SIGTERM gives no reason; if a new attempt follows, it was a preemption."""
    result: str = Failure.NODE  # an agent that recorded no result: its node was lost
    with contextlib.suppress(OSError, ValueError, KeyError):
        for line in files.read_end(stream, 65536).split(b"\n"):
            if line.startswith(b'{"event":"agent_started"'):
                result = Failure.NODE
            elif line.startswith(b'{"event":"stopping"'):  # Slurm may have killed the agent before it was done
                result = str(json.loads(line)["reason"])
            elif line.startswith(b'{"event":"done"'):
                done = json.loads(line)
                lost = done["result"] == "failed" and may_come_back(done.get("cause"))
                result = Failure.NODE if lost else str(done["result"])
    return Failure.PREEMPTED if result == Failure.CANCELLED else result
