"""Renders the job file from its template."""

from __future__ import annotations

import os
import re
import shlex
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.backends.slurm import allocation, components, sbcast, words
from launcher.backends.slurm.options import OF_SBATCH
from launcher.errors import BackendUnavailableError, SpecError
from launcher.payload import setup_lines
from launcher.system import input_file, install, trust

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import jinja2

    from launcher.backends.slurm.allocation import Allocation
    from launcher.backends.slurm.components import Directive
    from launcher.backends.slurm.options import SlurmOptions
    from launcher.spec import JobSpec

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=\[\]*|&-]*\Z")
_OURS = "job.sbatch.j2"
_HETJOB = "\n#SBATCH hetjob\n"
_TAKE_OURS = "begin with slurm_templates/job.sbatch.j2, and keep its first lines"
_START = """srun --nodes={{ nodes }} --ntasks={{ nodes }} --ntasks-per-node=1 {{ agent | map("quote") | join(" ") }}"""

MOVED = Path("$DISTLAUNCH_RUN_DIR")
"""Placeholder for the run's directory in a job file to be run by hand: the shell finds out where it is."""


def quote(word: str) -> str:
    """Quote a word for the shell, which expands `MOVED` to the run's directory."""
    return f'"{MOVED}"'.join(shlex.quote(part) if part else "" for part in word.split(str(MOVED))) or "''"


def quote_value(value: str) -> str:
    """A value as sbatch reads it in a `#SBATCH` line: in double quotes if it has blanks, quotes or a hash."""
    if "\n" in value or "\0" in value:
        raise SpecError(f"sbatch option value {value!r} has a line break", hint="no sbatch option can hold one")
    if _PLAIN.match(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@cache
def _environment() -> jinja2.Environment:
    try:
        import jinja2
    except ImportError as error:
        raise BackendUnavailableError("jinja2 is not installed", hint=install.command("slurm")) from error

    environment = jinja2.Environment(  # noqa: S701 - the text is a shell script, and the filters quote for the shell
        loader=jinja2.FunctionLoader(_source),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(sbatch=quote_value, quote=quote)
    return environment


def _source(name: str) -> tuple[str, str, Callable[[], bool]] | None:
    """A template's text and path: a bundled one, or an absolute path, which no other user may be able to change."""
    ours = install.data("slurm_templates")
    path = ours / name if name in os.listdir(ours) else Path("/") / name
    if not os.path.lexists(path):
        return None
    text = input_file.read_text(path) if path.parent == ours else trust.read_text("template", path)
    return text, str(path), lambda: True


def render(
    spec: JobSpec,
    opts: SlurmOptions,
    run: str,
    run_dir: Path,
    agent: Sequence[str],
    *,
    cwd: str,
    within: Allocation | None,
    lead_s: float,
    out: str = "",
) -> str:
    """Render the job file, or the script of a step; with `MOVED` as the run's directory, it may be anywhere.

    `out`: what Slurm calls the file for the job's own output, if that is not in the run's directory.

    Raises `SpecError` with the file and line of an error in the template.
    """
    environment = _environment()
    import jinja2

    name = _template(opts.template, spec.cwd)
    gpus = any(asked.gpus_per_node or "gpu" in asked.gres for asked in (opts, *(role.options for role in spec.roles)))
    more, around = container(opts, run_dir, cwd, gpus=gpus)
    names = {**_of_step(spec, opts, run, within, more), "directives": []}
    if not within:
        names["directives"] = directives(spec, opts, run, run_dir, cwd=cwd, lead_s=lead_s, out=out)
    setup = setup_lines.watched(opts.setup, ship_secrets=spec.ship_secrets)
    if run_dir == MOVED:
        setup = [*_find_itself(cwd, submitted=within is None), *setup]
    names["directory"] = quote(str(run_dir)) + ('/tasks/"$SLURM_ARRAY_TASK_ID"' if opts.array else "")
    names.update(run=run, run_dir=str(run_dir), agent=[*around, *agent], spec=spec, setup=setup, array=opts.array)
    names.update(sbcast.names(spec, opts, agent, is_step=within is not None, may_move=run_dir == MOVED))
    try:
        text = environment.get_template(name.lstrip("/")).render(names)
    except jinja2.TemplateNotFound as error:
        raise SpecError(f"template {name!r} does not exist") from error
    except OSError as error:
        raise SpecError(f"template {error.filename!r} cannot be read: {error.strerror}") from error
    except jinja2.TemplateSyntaxError as error:
        raise SpecError(f"{error.filename or name}:{error.lineno}: {error.message}") from error
    except jinja2.UndefinedError as error:
        known = ", ".join(sorted(names))
        raise SpecError(f"{name}{_line_of(error)}: {error.message}", hint=f"known names: {known}") from error
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    if not all(quote(word) in lines for word in agent[1:]):
        raise SpecError(f"template {name!r} does not start the agent", hint=f"it needs a line like: {_START}")
    if text.count(_HETJOB) != names["directives"].count(components.SEPARATOR):
        raise SpecError(f"template {name!r} does not write {_HETJOB.strip()!r} between the roles", hint=_TAKE_OURS)
    return text


def _of_step(spec: JobSpec, opts: SlurmOptions, run: str, within: Allocation | None, more: list[str]) -> dict[str, Any]:
    """What the template says of the step. `more`: options of srun for all of its nodes."""
    if within and not (spec.roles and within.groups):
        nodes = allocation.size(spec.nodes, within)
        return {"nodes": nodes, "step": [*allocation.options(within, opts, run), *more], "max_requeues": 0}
    if spec.roles:
        of = components.of_groups(within, run) if within else components.of_job
        step = components.step(spec, lambda number, role: [*of(number, role), *more])
        return {"nodes": "", "step": step, "max_requeues": 0 if within else opts.max_requeues or 0}
    step = [f"--cpus-per-task={opts.cpus_per_task}"] if opts.cpus_per_task else []
    return {"nodes": '"$SLURM_JOB_NUM_NODES"', "step": [*step, *more], "max_requeues": opts.max_requeues or 0}


def _template(given: str, cwd: str) -> str:
    """The template's name: a path relative to the working directory, or a bundled one."""
    path = os.path.join(cwd, os.path.expanduser(given or _OURS))
    if not given or (not os.path.lexists(path) and given in os.listdir(install.data("slurm_templates"))):
        return given or _OURS
    return path


def _find_itself(cwd: str, *, submitted: bool) -> list[str]:
    """Lines with which a job file that may have been moved finds its directory: Slurm runs a copy from elsewhere."""
    where = "$SLURM_SUBMIT_DIR" if submitted else '$(cd "$(dirname "$0")" && pwd)'
    return [
        "# This directory may be anywhere that all nodes see.",
        f"DISTLAUNCH_RUN_DIR={where}",
        f'if [ ! -e "{MOVED}/spec.json" ]; then',
        '    echo "submit this file from its directory: cd DIRECTORY && sbatch job.sbatch" >&2',
        "    exit 2",
        "fi",
        f"cd {quote(cwd)} || exit",
    ]


def container(opts: SlurmOptions, run_dir: Path, cwd: str, *, gpus: bool) -> tuple[list[str], list[str]]:
    """Options of srun for pyxis, or the runtime's command; mounts the run's directory and the working directory."""
    if not opts.container_image:
        if opts.container_mounts:
            raise SpecError("container-mounts without a container", hint="name one: --container-image IMAGE")
        return [], []
    mounts = [f"{directory}:{directory}" for directory in dict.fromkeys([str(run_dir), cwd])] + list(
        opts.container_mounts
    )
    if opts.container_runtime == "pyxis":
        for mount in mounts:
            if "," in mount:
                raise SpecError(f"container mount {mount!r}: pyxis takes no comma in a path")
        more = [f"--container-image={opts.container_image}", f"--container-mounts={','.join(mounts)}"]
        return [*more, f"--container-workdir={cwd}"], []
    binds = [word for mount in mounts for word in ("--bind", mount)]
    return [], [opts.container_runtime, "exec", *(["--nv"] if gpus else []), *binds, "--pwd", cwd, opts.container_image]


def _line_of(error: Exception) -> str:
    """`:LINE` of the template that lacks a name, from the traceback that jinja2 makes."""
    trace, line = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_name in ("top-level template code", "root"):
            line = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def directives(
    spec: JobSpec, opts: SlurmOptions, run: str, run_dir: Path, *, cwd: str, lead_s: float, out: str = ""
) -> list[Directive]:
    """The `#SBATCH` lines: ours, then the user's own, which win."""
    if spec.roles:
        each = partial(directives, run=run, run_dir=run_dir, cwd=cwd, lead_s=lead_s, out=out)
        return components.directives(spec, each)
    directory = "" if run_dir == MOVED else str(run_dir).replace("%", "%%") + "/"
    nodes = f"{spec.nodes.min}-{spec.nodes.max}" if spec.nodes.elastic else str(spec.nodes.min)
    found: dict[str, str | None] = {"job-name": spec.name, "comment": f"distlaunch:{run}", "nodes": nodes}
    out = out or (f"{directory}tasks/%a/job.out" if opts.array else f"{directory}job.out")
    if not spec.nodes.elastic:  # with it, Slurm allocates only the minimum number of nodes
        found["ntasks-per-node"] = "1"
    found.update({"output": out, "open-mode": "append", **({"chdir": cwd} if directory else {})})
    if opts.array:
        found["array"] = opts.array
    if spec.time_limit_s is not None:
        found["time"] = _slurm_time(spec.time_limit_s)
        found["signal"] = f"URG@{int(min(lead_s, max(spec.time_limit_s - 1, 1)))}"
    if opts.max_requeues is not None:
        found["requeue" if opts.max_requeues else "no-requeue"] = None
    for name in OF_SBATCH:
        value = getattr(opts, name)
        if value:
            found[name.replace("_", "-")] = None if value is True else str(value)
    found.update(words.pairs(opts.sbatch))
    return list(found.items())


def _slurm_time(seconds: float) -> str:
    whole = max(60, round(seconds))
    days, rest = divmod(whole, 86_400)
    return f"{days}-{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
