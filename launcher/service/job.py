"""The job of a launch: its script, found and checked, and its roles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.roles import RESTART
from launcher.errors import RequestError, SpecError
from launcher.payload import scripts
from launcher.settings import config, job_spec, run_file
from launcher.settings.job_checks import parse_env
from launcher.settings.options import JobOptions
from launcher.spec import MAX_NODES, JobSpec, NodeRange, RoleSpec
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.backends._base import AnyBackend
    from launcher.service.launch_options import LaunchOptions
    from launcher.settings.config import Setting
    from launcher.settings.run_file import RoleRequest
    from launcher.spec import Kind

_RESTARTS = 3
"""How often a role starts again if no number is given."""


def of_script(options: JobOptions, launching: LaunchOptions, script: str, args: Sequence[str]) -> JobSpec:
    """The job, with its script found and checked."""
    if launching.module and options.no_python:
        raise SpecError("--module and --no-python exclude each other")
    kind: Kind = "module" if launching.module else "program" if options.no_python else "script"
    try:
        cwd = os.getcwd()
    except OSError as error:
        raise SpecError(
            f"the working directory no longer exists: {error.strerror}", hint="cd to another one"
        ) from error
    found = scripts.find_script(script, kind, cwd)
    if found.bundled:
        output.note(f"using the bundled {script}")
    job = job_spec.from_options(options, (found.path, *args), kind=kind, cwd=cwd)
    if options.name not in ("", job.name):
        output.note(f"name {options.name!r} becomes {job.name!r}, as names have to be valid everywhere")
    return job


def of_workers(job: JobSpec, given: Mapping[str, Setting], backend: AnyBackend) -> JobSpec:
    """The job, with nodes for the number of all workers if that was given, and not the number of nodes after it."""
    total, nodes = given["workers"], given["nodes"]
    if not total.value or nodes.place > total.place:
        return job
    if nodes.source == total.source == "flag":
        raise SpecError("--workers and --nodes exclude each other", hint="--nproc-per-node goes with either")
    one = replace(job, nodes=NodeRange(min=1, max=1), all_nodes=False)
    return job_spec.of_workers(job, total.value, backend.plan(one, Path(job.cwd)).nodes[0].workers)


# -- roles ------------------------------------------------------------------------------------------------------------


def asked_roles(values: Mapping[str, Any], backend: AnyBackend) -> list[RoleRequest]:
    """The roles that were asked for; empty if the run has none. Raises for what does not go with roles."""
    words, file = run_file.split(values.get("role"))[1], values.get("roles")
    if not words and not file:
        return []
    if words and file:
        raise SpecError("--roles and --role NAME:NODES:SCRIPT exclude each other", hint="write all of them into a file")
    without = {"script": "SCRIPT", "nodes": "--nodes", "workers": "--workers", "module": "--module"}
    without |= {"no_python": "--no-python", "function": "a function"}
    for name, shown in without.items():
        if values.get(name):
            where = f"run --on {values['cluster']}" if values.get("cluster") else backend.name
            raise SpecError(f"with roles, {shown} belongs to a role", hint=f"distlaunch {where} --roles run.toml")
    return run_file.read(str(file), backend.options) if file else run_file.of_words(words)


def of_roles(
    asked: Sequence[RoleRequest],
    launching: LaunchOptions,
    backend: AnyBackend,
    resolve: Callable[[type, Mapping[str, Setting]], dict[str, Setting]],
) -> JobSpec:
    """The job of a run with roles. `resolve`: the settings of an options class with those of a role, checked."""
    roles = []
    for role in asked:
        try:
            settings = resolve(JobOptions, role.values)
            options = config.build(JobOptions, settings)
            options = replace(options, workers=0, max_restarts=_restarts(role, settings["max_restarts"]))
            job = of_script(options, replace(launching, module=role.module), role.script, role.args)
            own: Any = config.build(backend.options, resolve(backend.options, role.values))
        except RequestError as error:
            placed = error.message.startswith((role.where.rpartition(":")[0] or role.where, role.where))
            text = error.message if placed else f"{role.where}: {error.message}"
            raise type(error)(text, hint=error.hint) from None
        if job.nodes.elastic:
            raise SpecError(f"{role.where}: nodes {job.nodes}: a role has a fixed number", hint=f"{job.nodes.max}")
        roles.append(RoleSpec(name=role.name, job=job, options=own, on_failure=role.on_failure, serves=role.serves))
    first, total = roles[0].job, sum(role.job.nodes.max for role in roles)
    if total > MAX_NODES:
        raise SpecError(f"the roles have {total} nodes in all, and a run has at most {MAX_NODES}")
    env = parse_env(config.build(JobOptions, resolve(JobOptions, {})).env, os.environ)  # which all of them have
    return replace(first, nodes=NodeRange(min=total, max=total), all_nodes=False, env=env, roles=tuple(roles))


def _restarts(role: RoleRequest, given: Setting) -> int:
    """How often the role starts again after a failure."""
    if role.on_failure != RESTART:
        return 0
    restarts: int = given.value if given.layers else _RESTARTS
    return restarts
