"""What all backend commands share. Parameters come from options dataclasses; `launcher.service` does the work."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from launcher import backends, output
from launcher.cli import late_options, parameters, spellings
from launcher.errors import SpecError
from launcher.service import interrupts as interrupting
from launcher.service import launch as service
from launcher.service import rendered
from launcher.service.launch_options import LaunchOptions
from launcher.service.request import chosen, named, of, resolve
from launcher.settings import checks, config
from launcher.settings.options import JobOptions
from launcher.settings.run_file import split
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.cli.parameters import Parameter
    from launcher.results.run import RunState, Started
    from launcher.runs.records import Run
    from launcher.service.interrupts import Interrupts
    from launcher.service.leaving import Leaving
    from launcher.service.request import Request

SCRIPT_LAST: dict[str, Any] = {
    "allow_interspersed_args": False,
    "token_normalize_func": lambda name: name.replace("_", "-"),
}
"""Everything after the first non-option belongs to the script. Underscores in our options' names count as dashes."""


ON_CLUSTER = Annotated[
    str | None,
    parameters.flag(
        "--on", aliases=("--cluster",), metavar="NAME", help="Take settings from [clusters.NAME].", group="job"
    ),
]


def backend_command(name: str) -> Callable[..., int]:
    """The function behind `distlaunch NAME`, with a parameter for each option of the job and of that backend."""
    backend = backends.load(name)
    more = [
        parameters.parameter("cluster", ON_CLUSTER, None),
        *parameters.from_fields(backend.options, group="scheduler"),
    ]
    for flag, text in backend.prints.items():
        shown = parameters.flag("--" + flag.replace("_", "-"), help=text, group="output")
        more.append(parameters.parameter(flag, Annotated[bool, shown], False))
    return launching(backends.about(name), lambda values: _print_or_launch(name, values), more)


def options_of_cluster(words: list[str]) -> list[Parameter]:
    """The options of the backend of the cluster that `--on` names among these words. Raises if there is no such one."""
    for word, after in zip(words, [*words[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        if flag in ("--on", "--cluster") and (name := value if equals else after):
            of_each = [
                parameters.from_fields(backends.load(each.backend).options, group="scheduler")
                for each in named(name, config.load())
            ]
            return list({item.name: item for items in of_each for item in items}.values())
    return []


def launching(
    about: str,
    run: Callable[[dict[str, Any]], int],
    own: list[Parameter],
    *,
    leave_out: tuple[str, ...] = ("runs_dir",),
) -> Callable[..., int]:
    """A command function with SCRIPT, ARGS, all job options and the given parameters; `run` gets the values.

    `leave_out`: names of parameters that the command does not take.
    """

    def command(**values: Any) -> int:
        return run(values)

    script = parameters.argument(metavar="SCRIPT", help="Python file, or a script that comes with distlaunch.")
    role = parameters.flag(
        "--role", metavar="NAME|NAME:NODES:SCRIPT", help="Value of ROLE_NAME; or, repeated, the roles of the run."
    )
    args = parameters.argument(metavar="ARGS", help="Arguments of the script; distlaunch reads none of them.")
    shared = [
        *parameters.from_fields(JobOptions, group="job"),
        *own,
        *parameters.from_fields(LaunchOptions, group="output"),
        *parameters.from_fields(config.GlobalOptions, group="output", leave_out=("trust",)),
        *spellings.parameters(),
        parameters.parameter("role", Annotated[list[str] | None, role], None),
    ]
    every = [
        parameters.parameter("script", Annotated[str | None, script], None),
        parameters.parameter("args", Annotated[list[str] | None, args], None),
        *{item.name: item for item in shared}.values(),
    ]
    command.parameters = [item for item in every if item.name not in leave_out]  # type: ignore[attr-defined]
    command.__doc__ = about
    return command


def _print_or_launch(name: str, values: dict[str, Any]) -> int:
    """Print what one of the backend's `prints` flags requests, or launch."""
    for flag in backends.load(name).prints:
        if values.pop(flag):
            text = chosen(name, values).backend.printed(flag)
            output.document({flag.removeprefix("print_"): text}, text)
            return 0
    return launch(name, values)


def asked(backend_name: str | None, values: dict[str, Any]) -> Request:
    """The request that the command line makes. Also sets up output."""
    values, settings = prepared(values)
    request = resolve(backend_name, values, settings)
    late_options.warn(values, request.backend.options)
    return request


def prepared(values: dict[str, Any]) -> tuple[dict[str, Any], config.Config]:
    """The values in our own spelling, and the settings. Also sets up output."""
    values, notes = spellings.translated(values)
    settings = config.load()
    output.setup(verbosity=-1 if values.get("quiet") else int(bool(values.get("verbose"))))
    general = settings.resolve(config.GlobalOptions, flags=of(config.GlobalOptions, values))
    checks.blame("output", general["output"].layers[-1:], lambda fmt: output.setup(fmt=fmt))
    output.setup(fmt=general["output"].value)  # before the command line was read, the script's may have been taken
    for file in settings.files:
        output.detail(f"settings: {file.path}")
    output.note(*notes)
    if values["script"] is None and not values.get("roles") and not split(values.get("role"))[1]:
        from launcher.cli.usage import UsageError

        raise UsageError("missing argument 'SCRIPT'", hint="train.py, or a script that comes with distlaunch")
    return values, settings


def launch(backend_name: str | None, values: dict[str, Any]) -> int:
    """Resolve, plan, and submit; then follow the run to its end. Returns the exit code."""
    return launch_planned(service.planned(asked(backend_name, values)), values)


def launch_planned(planned: service.Launch, values: dict[str, Any]) -> int:
    """Submit the plan, and follow the run to its end. Returns the exit code."""
    planned = checked(planned, values)
    request = planned.request
    if request.options.dry_run or request.options.render_to:
        show_rendered(planned)
        return 0
    if output.form() == "id" and not request.options.detach:
        raise SpecError("--output id prints the job's id of a run that is not followed", hint="add --detach")
    with interrupting.of(request.on_hangup, request.backend) as interrupts:
        try:
            run = service.start(planned, interrupts)
        except KeyboardInterrupt:
            from launcher.cli import following
            from launcher.runs import directories

            following.interrupted(directories.read(planned.path.parent, planned.path.name))
            raise
        if others := run.id != planned.path.name:
            output.note(f"{run.id} has not ended, so no other run of this name is started")
        if request.options.detach and not interrupts.stops:
            return detached(run)
        try:
            return _follow_other(planned, run, interrupts) if others else follow(planned, run, interrupts)
        except KeyboardInterrupt:
            output.warn(f"{run.id} may still be running; to end it: distlaunch cancel --force {run.id}")
            raise


def detached(run: Run) -> int:
    """Print the id of a run that is not followed."""
    with output.after(f"{run.id} continues", f"to end it: distlaunch cancel {run.id}", read=True):
        started: Started = {"run": run.id, "path": str(run.path), "job_id": run.job_id}
        output.result(started, run.id)
    return 0


def checked(planned: service.Launch, values: dict[str, Any]) -> service.Launch:
    """The launch with the ranks that are shown. Raises `SpecError` for ranks and nodes that it has not."""
    request = planned.request
    if (ranks := spellings.local_ranks(values, planned.plan)) is not None:
        typed = request.options.interactive
        request = replace(request, ranks=ranks | {int(typed)} if typed else ranks, ranks_asked=True)
        planned = planned._replace(request=request)
    _check_ranks(planned)
    _check_fetch(planned)
    return planned


def _check_ranks(planned: service.Launch) -> None:
    """Report wanted ranks that cannot exist. Raises `SpecError` if a flag names no rank that does."""
    request = planned.request
    counts = [node.workers for node in planned.plan.nodes]
    if None in counts:
        return
    world, typed = sum(count or 0 for count in counts), request.options.interactive
    if not typed and not any(rank >= world for rank in request.ranks or ()):
        return
    from launcher.console import summary  # only an error needs it

    if typed and int(typed) >= world:
        hint = f"ranks: {summary.ranks_text(range(world))}"
        name = "debug" if request.options.debug else "interactive"
        raise SpecError(f"--{name} {typed}: there is no such rank", hint=hint)
    if not request.ranks:
        return
    missing = [rank for rank in request.ranks if rank >= world]
    if len(missing) == len(request.ranks) and request.ranks_asked:
        hint = f"ranks: {summary.ranks_text(range(world))}"
        raise SpecError(f"--{summary.missing_ranks(missing, world)}", hint=hint)
    if len(missing) == len(request.ranks):
        output.warn(f"{summary.missing_ranks(missing, world)}, so no line of its workers is shown")
    elif missing and request.ranks_asked:
        output.warn(f"--{summary.missing_ranks(missing, world)}")


def _check_fetch(planned: service.Launch) -> None:
    """Raise `SpecError` if there is no node of the rank whose files are to be fetched."""
    wanted, count = planned.request.job.fetches, len(planned.plan.nodes)
    if wanted.isdecimal() and int(wanted) >= count:
        raise SpecError(f"--fetch-node {wanted}: there is no such node", hint=f"nodes: 0 to {count - 1}, or all")


def follow(planned: service.Launch, run: Run, interrupts: Interrupts) -> int:
    """Follow a run that was started here to its end. Returns its exit code."""
    # Imported here: only a launch that is followed needs it, and its agents start meanwhile.
    from launcher.cli import following
    from launcher.console import summary
    from launcher.service import following as service_following
    from launcher.service.follow import View

    request = planned.request
    output.note(summary.heading(run))
    service.note_places(planned, run)
    asked = (request.fetch, request.options.fetch_to, request.job.fetches)
    fetching = None
    if request.fetch:
        from launcher.service.fetching import Fetching

        fetching = Fetching(*asked)
    view = View(_shown(planned), request.options.explain, request.lent, fetching)

    def follow(leaving: Leaving) -> tuple[Run, RunState]:
        if run.tasks:
            from launcher.service import arrays  # few runs are one

            return run, arrays.follow(run, leaving)
        shown = partial(service.note_places, planned)
        ended, outcome = service_following.follow(run, request.backend, view, leaving, restarted=shown)
        return ended, outcome.to_json()

    asks = not request.backend.is_here  # workers on this machine may have our stdin
    return following.to_end(run, interrupts, follow, asks=asks, since=time.time(), fetching=fetching)


def _shown(planned: service.Launch) -> frozenset[int] | None:
    """The ranks whose lines are shown: those of a worker that is alone need no marks, which several ranks have."""
    ranks, alone = planned.request.ranks, [node.workers for node in planned.plan.nodes] == [1]
    return frozenset({0}) if alone and (ranks is None or 0 in ranks) else ranks


def _follow_other(planned: service.Launch, run: Run, interrupts: Interrupts) -> int:
    """Attach to the run that has the launch's name."""
    from launcher.cli import following
    from launcher.service import attaching

    if not planned.request.on_hangup:
        interrupts.detach_at_hangup()
    asked = attaching.Asked(planned.request.ranks, planned.request.on_hangup, attaching.TAIL)
    return following.attach(run, asked, interrupts)


def show_rendered(planned: service.Launch) -> None:
    """Print what would be sent, or write it to files."""
    from launcher.console import summary  # only this needs it before a launch

    texts, written, data, sent = rendered.render(planned)
    if not written:
        output.note(*summary.plan_table(planned.plan).splitlines())
    if listed := summary.sent(sent, data["sent"]["variables"], data["sent"]["secrets"]):
        output.note(*listed.splitlines())
    if written:
        output.result(data, *written)
    else:
        output.document(data, summary.files(texts))
