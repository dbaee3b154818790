"""The options of a single launch, which are not settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.errors import SpecError
from launcher.settings.option import one_of, option
from launcher.system.dataclass import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.settings.config import Setting
    from launcher.settings.options import JobOptions
    from launcher.spec import JobSpec


def is_rank(what: str) -> Callable[[str], object]:
    """A check that the text is a rank or empty."""

    def check(text: str) -> None:
        if text and not (text.isascii() and text.isdecimal() and len(text) < 8):
            raise SpecError(f"{what} {text!r} is not a rank", hint=f"write --{what} 0")

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Options that concern a single launch and are not settings."""

    module: bool = option(
        False, flags=("-m", "--module"), help="SCRIPT is the name of a module, as with python -m.", group="job"
    )
    roles: str = option(
        "", metavar="FILE", help="Several groups of nodes that differ: a file with [roles.NAME].", group="job"
    )
    detach: bool = option(False, flags=("-d", "--detach"), help="Print the run's id and return at once.", group="job")
    unique: bool = option(
        False,
        flags=("--unique",),
        help="Start nothing while a run of this --name has not ended; attach to it.",
        group="job",
    )
    if_running: str = option(
        "",
        metavar="attach|fail|new",
        help="What --unique does then [default: attach].",
        check=lambda text: text and one_of("if-running", "attach", "fail", "new")(text),
        group="job",
    )
    dry_run: bool = option(False, flags=("--dry-run",), help="Print what would be sent; write and send nothing.")
    render_to: str = option(
        "", metavar="DIR", help="Write what would be sent to files in DIR, to send it by hand.", group="files"
    )
    fetch_to: str = option(
        "",
        metavar="DIR",
        flags=("--fetch-to",),
        help="Directory here for these files [default: one of the run's name].",
        group="files",
    )
    interactive: str = option(
        "",
        metavar="RANK",
        help="Connect the keyboard to that rank, on a terminal of its own.",
        flags=("--interactive",),
        check=is_rank("interactive"),
    )
    debug: str = option(
        "",
        metavar="RANK",
        help="The same, and open pdb if an exception would end that rank, while the others wait.",
        flags=("--debug",),
        check=is_rank("debug"),
    )
    explain: bool = option(
        False, flags=("--explain",), help="Show which variables the contract, NCCL, gloo, UCX and OpenMP get, and why."
    )
    quiet: bool = option(False, flags=("-q", "--quiet"), help="Print only warnings and failures on stderr.")
    verbose: bool = option(False, flags=("-v", "--verbose"), help="Print more on stderr.")


def check(options: LaunchOptions) -> None:
    """Check the options of this launch, which no settings file has."""
    if options.render_to and (options.dry_run or options.detach):
        raise SpecError(
            f"--render-to and --{'dry-run' if options.dry_run else 'detach'} exclude each other",
            hint="it starts nothing",
        )
    if options.if_running:
        one_of("if-running", "attach", "fail", "new")(options.if_running)


def to_fetch(options: LaunchOptions, job: Mapping[str, Setting]) -> tuple[str, ...]:
    """The patterns of files to fetch at the end. Those of the settings are left out where no one waits for the end."""
    patterns: tuple[str, ...] = job["fetch"].value
    nobody = "detach" if options.detach else "render-to" if options.render_to else ""
    if options.fetch_to and not patterns:
        raise SpecError("--fetch-to without --fetch", hint="add --fetch PATTERN")
    if patterns and nobody:
        hint = "distlaunch fetch RUN, once it has written them"
        if job["fetch"].source == "flag":
            raise SpecError(f"--fetch and --{nobody} exclude each other", hint=hint)
        output.note(f"with --{nobody}, nothing is fetched at the end, though {job['fetch'].source} sets fetch: {hint}")
    return () if nobody else patterns


def told(spec: JobSpec, asked: JobOptions, options: LaunchOptions) -> JobSpec:
    """The job, which knows whom to tell of it. Raises `SpecError` if a variable with a URL or the secret is not set."""
    if not asked.notify:
        return spec
    from launcher.settings import notify  # few runs tell anybody

    followed = not (options.detach or options.dry_run or options.render_to)
    receivers = notify.receivers(asked.notify, asked.notify_secret, followed=followed)
    if receivers and receivers.others and options.detach:
        output.warn("with --detach, only webhooks (https://...) are told; what needs apprise, while a launcher follows")
    return replace(spec, agents={**spec.agents, "notify": receivers and receivers.to_text()})


def check_stragglers(settings: Mapping[str, Setting], cluster: str | None, backend: str) -> None:
    """Raise `SpecError` if a flag asks for a quarantine where there is none. As a setting it has no effect there."""
    asked = settings["stragglers"]
    if asked.value == "report" or asked.source != "flag":
        return
    if not cluster:
        hint = "distlaunch run --on CLUSTER --stragglers quarantine"
        raise SpecError("--stragglers quarantine needs a cluster to keep the list for", hint=hint)
    if "exclude" not in settings:
        why = f"a cluster with the backend {backend} has no hosts that could be left out"
        raise SpecError(f"--stragglers quarantine: {why}")
