"""Which hosts a run would use, and what would be sent there, by the inventory and the user's files; asks no host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.agent import contracts
from launcher.agent.failures import Failure
from launcher.agent.forkserver.guess import SURELY
from launcher.backends._interpreter import needed
from launcher.backends._plan import PlannedNode
from launcher.backends._roles import names_of, parts_of_nodes, with_roles
from launcher.backends.ansible import ansible_config as config
from launcher.backends.ansible import inventory, of_roles, playbook
from launcher.backends.ansible.plan import AnsiblePlan
from launcher.errors import SpecError
from launcher.payload import project, scripts, setup_lines
from launcher.runs import directories
from launcher.spec import parse_duration, parse_size
from launcher.system import amounts, trust

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from launcher.agent.job import Job
    from launcher.backends.ansible.inventory import Host
    from launcher.backends.ansible.options import AnsibleOptions
    from launcher.login.connection import Login
    from launcher.payload.snapshot import Snapshot
    from launcher.spec import JobSpec


def plan(options: AnsibleOptions, spec: JobSpec, run_dir: Path, login: Login | None) -> AnsiblePlan:
    """What a submission sends. Raises `SpecError` if the inventory has too few hosts."""
    sources = inventory.sources(options.inventory, spec.cwd)
    settings = config.variables(sources, spec.cwd, 1)
    playbook.prepare()
    chosen, wanted = _hosts(options, spec, lambda limit: inventory.hosts(sources, limit, settings, options.exclude))
    files, commands = _files(options, spec, directories.root_of(run_dir))
    least = wanted if spec.all_nodes else spec.nodes.min
    variables: dict[str, Any] = {
        "distlaunch_run": run_dir.name,
        "distlaunch_hosts": [host.name for host in chosen],
        "distlaunch_nodes": wanted,
        "distlaunch_least_nodes": 1 if options.partial and spec.all_nodes else least,
        **lease_mode(options),
        **common(options, spec.cwd, login),
        **_of_files(files, spec.cwd),
        "distlaunch_secrets": list(spec.secrets),
        **_of_python(options, spec),
        **({"distlaunch_parts": _parts(spec, chosen)} if spec.roles else {}),
    }
    job = spec.job(run=run_dir.name, directory="", rendezvous={})._replace(
        command=commands[0],
        min_nodes=least,
        max_nodes=wanted,
        sigterm_means=Failure.CANCELLED,
        project=project.name_of(spec.cwd) if files and options.project_dir else None,
    )
    return AnsiblePlan(
        run_dir=run_dir,
        inventory=sources,
        settings=settings | {"ANSIBLE_FORKS": str(len(chosen))},
        variables=variables,
        job=_with_roles(job, spec, commands),
        job_secrets=spec.secrets,
        snapshot=files,
        nodes=_rows(chosen[:wanted], spec),
        spares=tuple(host.name for host in chosen[wanted:]),
        setup="\n".join(setup_lines.watched(options.setup, ship_secrets=spec.ship_secrets)),
        container=_container(options, spec),
    )


def _hosts(options: AnsibleOptions, spec: JobSpec, matching: Callable[[str], list[Host]]) -> tuple[list[Host], int]:
    """The hosts in the order of their node ranks, then the spares; and the number of nodes."""
    if spec.roles:
        chosen = of_roles.hosts(options, spec, matching)
        return chosen, len(chosen)
    found = matching(options.limit)
    wanted = _wanted(options, spec, found)
    return (found if options.partial else found[: wanted + options.spares]), wanted


def _with_roles(job: Job, spec: JobSpec, commands: Sequence[list[str]]) -> Job:
    """The job, with what each role has of its own. How many workers there are, a host may know."""
    of_job = dict(zip(map(id, spec.parts), commands, strict=True))
    return with_roles(job, spec, lambda part: {"command": of_job[id(part)], "workers": None})


def _workers(spec: JobSpec) -> int | None:
    return None if spec.workers_per_node == "auto" else spec.workers_per_node


def _of_python(options: AnsibleOptions, spec: JobSpec) -> dict[str, Any]:
    """Variables about the workers, and the hosts' Python, which runs none of them if they are in a container."""
    workers = None if spec.roles else _workers(spec)
    found: dict[str, Any] = {"distlaunch_workers": workers} if workers else {}
    if options.container_image:
        return {**found, "distlaunch_torch": False}
    torch, contract = _needs(spec.parts[0])
    found |= {"distlaunch_torch": torch, **({"distlaunch_contract": contract} if contract else {})}
    return {**found, **({"distlaunch_python": spec.python} if spec.python else {})}


def _needs(spec: JobSpec) -> tuple[bool, str]:
    """Whether the workers need torch, and their contract if it needs another framework."""
    (module, wants), contract = needed(spec), str(spec.agents.get("contract") or "torchrun")
    other = contracts.load(contract).mpi or (contracts.load(contract).required and spec.kind != "program")
    return module == "torch" and wants == SURELY, contract if other else ""


def _parts(spec: JobSpec, hosts: Sequence[Host]) -> dict[str, dict[str, Any]]:
    """What differs between the hosts of a run with roles, by host."""
    found: dict[str, dict[str, Any]] = {}
    left = list(hosts)
    for role in spec.roles:
        own, left = left[: role.job.nodes.max], left[role.job.nodes.max :]
        container = _container(role.options, role.job)
        torch, contract = (False, "") if container else _needs(role.job)
        about = {"role": role.name, "torch": torch, "contract": contract, "container": container}
        found |= {host.name: {**about, "workers": str(_workers(role.job) or host.workers or "auto")} for host in own}
    return found


def _container(options: AnsibleOptions, spec: JobSpec) -> dict[str, Any] | None:
    """The container that the agents run in."""
    if not options.container_image:
        if options.container_mounts:
            raise SpecError("container-mounts without a container", hint="name one: --container-image IMAGE")
        return None
    return {
        "runtime": options.container_runtime,
        "image": options.container_image,
        "mounts": list(options.container_mounts),
        "python": spec.python or "python3",
    }


def _rows(hosts: Sequence[Host], spec: JobSpec) -> tuple[PlannedNode, ...]:
    parts, names = parts_of_nodes(spec), names_of(spec)
    same = not spec.roles  # the number of nodes may be the inventory's
    return tuple(
        PlannedNode(
            node_rank=rank,
            host=host.name,
            workers=_workers(spec if same else parts[rank]) or host.workers,
            role="" if same else names[rank],
        )
        for rank, host in enumerate(hosts)
    )


def common(options: AnsibleOptions, cwd: str, login: Login | None) -> dict[str, Any]:
    """Variables that every request to hosts needs."""
    return {
        **({"distlaunch_proxy": login.proxy_command()} if login else {}),
        "distlaunch_dir": options.remote_dir,
        "distlaunch_trust": list(trust.words()),
        "distlaunch_here": cwd,
        "distlaunch_timeout_s": options.host_timeout,
    }


def lease_mode(options: AnsibleOptions) -> dict[str, Any]:
    """Variables about hosts that other runs have. Raises `SpecError` for options that exclude one another."""
    modes = [name for name in ("wait", "share", "partial") if getattr(options, name)]
    if len(modes) > 1:
        raise SpecError(
            f"--{modes[0]} and --{modes[1]} exclude each other",
            hint="--wait waits for hosts that are in use, --share uses them, --partial leaves them out",
        )
    wait_s = parse_duration(options.wait_timeout, "wait-timeout")
    return {"distlaunch_lease": modes[0] if modes else "refuse", "distlaunch_wait_s": wait_s if options.wait else 0.0}


def _wanted(options: AnsibleOptions, spec: JobSpec, found: Sequence[Host]) -> int:
    """Number of nodes of the run, without spares."""
    wanted = len(found) - options.spares if spec.all_nodes else spec.nodes.max
    if options.spares < 0 or not 1 <= wanted <= len(found) - options.spares:
        spares = f" and {options.spares} spares" if options.spares else ""
        raise SpecError(
            f"{wanted} nodes{spares} are asked for, but the inventory has {amounts.counted(len(found), 'host')}",
            hint="hosts: " + ", ".join(host.name for host in found[:20]),
        )
    return wanted


def _of_files(files: Snapshot | None, cwd: str) -> dict[str, Any]:
    return {
        "distlaunch_digest": files.digest if files else "",
        "distlaunch_payload_bytes": files.total_bytes if files else 0,
        "distlaunch_cwd": "" if files else cwd,
    }


def _files(options: AnsibleOptions, spec: JobSpec, runs_root: Path) -> tuple[Snapshot | None, list[list[str]]]:
    """The files to send, and the roles' commands relative to them: workers start in their top directory."""
    bundled = any(part.kind == "script" and scripts.is_bundled(part.command[0]) for part in spec.parts)
    if options.in_place and not bundled:
        return None, [list(part.command) for part in spec.parts]
    limit = parse_size(options.snapshot_limit, "snapshot-limit")
    found, root, _ = project.files(spec, runs_root, limit_bytes=limit)
    return found, [project.command_in(part, root) for part in spec.parts]
