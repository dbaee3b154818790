"""`distlaunch doctor BACKEND|--on CLUSTER`: run a short job on the nodes, and compare their reports."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from launcher import backends, output
from launcher.agent.system.folding import folded
from launcher.cli import app, launch
from launcher.cli.group import Command
from launcher.cli.parameters import from_fields, parameter
from launcher.console import alike_rows, link_picture, tables
from launcher.doctor import checks, findings
from launcher.errors import RequestError, SpecError
from launcher.service import examination
from launcher.service import launch as service
from launcher.settings import quarantine
from launcher.settings.option import option
from launcher.system import names
from launcher.system.dataclass import dataclass, fields

if TYPE_CHECKING:
    from launcher.doctor.findings import Finding
    from launcher.results.cluster import Quarantine
    from launcher.service.examination import Examination

TAKES_ALL = True

_NOT_OURS = (
    *sorted(examination.IGNORED),
    *("script", "args", "secret", "ship_secrets", "env_ship", "env_ship_dir", "env_ship_quota", "start_method"),
    *("preload", "grace", "module", "roles", "role", "detach", "fetch_to", "explain", "log_ranks", "runs_dir"),
    "server_dry_run",
)
"""Options of jobs that do not apply to this one."""

_MARKS = {"ok": "OK", "warn": "warn", "fail": "FAIL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Doctor's own options; the rest are those of the job and the backend."""

    seconds: float = option(5.0, metavar="S", help="Seconds of arithmetic on each GPU or CPU.")
    quarantine: bool = option(
        False, flags=("--quarantine",), help="Exclude hosts that failed from later runs on this cluster."
    )
    release: tuple[str, ...] = option((), metavar="HOST", help="Remove a host from that list; run no checks.")


def doctor(words: list[str]) -> int:
    """Check a cluster's nodes: versions, clocks, disks, limits, network, GPUs, speed, links.

    $ distlaunch doctor local
    $ distlaunch doctor --on juno --quarantine
    """
    words = list(words)
    asks = not words or "--help" in words or words == ["-h"]
    name = words.pop(0) if words and words[0] in backends.names() else None
    named = any(word.partition("=")[0] in ("--on", "--cluster") for word in words)
    if name is None and not named and not asks:
        hint = names.hint(words[0], backends.names(), "a backend comes first") + "; or --on CLUSTER"
        raise RequestError(f"doctor {words[0]}: no backend and no cluster is named", hint=hint)
    _check_release(words)
    more = [
        parameter("on", launch.ON_CLUSTER, None),
        *from_fields(DoctorOptions, group="job"),
        *(from_fields(backends.load(name).options, group="scheduler") if name else launch.options_of_cluster(words)),
    ]
    function = launch.launching(str(doctor.__doc__), lambda values: _examine(name, values), more, leave_out=_NOT_OURS)
    prog = f"distlaunch doctor {name or ('--on CLUSTER' if named else 'BACKEND')}"
    return int(app.call(Command(prog, function), ["--help"] if asks else words) or 0)


def _check_release(words: list[str]) -> None:
    """Raise `SpecError` with the quarantined hosts if `--release` names none."""
    following = dict(zip(words, [*words, "-"][1:], strict=True))
    if following.get("--release", "HOST").startswith("-"):
        listed = folded(quarantine.hosts(following.get("--on", following.get("--cluster", "")), os.environ))
        hint = f"in quarantine: {listed}" if listed else "distlaunch doctor --on CLUSTER --release HOST"
        raise SpecError("--release: which host?", hint=hint)


def _examine(name: str | None, values: dict[str, Any]) -> int:
    """Run the job, compare its nodes' reports, and print the findings. Returns 1 if a check failed."""
    own = DoctorOptions(
        **{item.name: values[item.name] for item in fields(DoctorOptions) if values.get(item.name) is not None}
    )
    values = {**values, "cluster": values["on"]}
    if own.release:
        return _release(values["cluster"], tuple(own.release))
    request = examination.request(name, *launch.prepared(examination.values(values, own.seconds)))
    if own.quarantine:
        examination.check_quarantine(request)
    planned = service.planned(request)
    if request.options.dry_run or request.options.render_to:
        launch.show_rendered(planned)
        return 0
    from launcher.service.interrupts import Interrupts

    with Interrupts() as interrupts:
        run = examination.start(planned, interrupts)
        outcome = examination.follow(planned, run, interrupts)
    done = examination.examine_nodes(request, run, outcome, puts_away=own.quarantine)
    _show(done)
    return done.exit_code if done.exit_code not in (0, 1) else int(not done.ok)


def _release(cluster: str | None, hosts: tuple[str, ...]) -> int:
    left = examination.release(cluster, hosts)
    data: Quarantine = {"cluster": str(cluster), "quarantined": left}
    output.result(data, f"left out of {cluster}: {folded(left) or 'no host'}")
    return 0


def _show(done: Examination) -> None:
    """Print the table, then the findings with their fixes, then the pairs."""
    marks = _marks(done)
    rows = [(host, node, *marks[node]) for node, host in sorted(done.hosts.items())]
    table = tables.table(("HOST", "NODE", *(check.upper() for check in checks.known())), alike_rows.folded(rows))
    text = table.rstrip("\n").splitlines()
    alike: dict[tuple[str, ...], list[str]] = {}
    for each in sorted(done.found, key=lambda f: (f.status != "fail", f.node)):
        alike.setdefault((each.status, each.check, each.reason, each.fix), []).append(done.hosts[each.node])
    for (status, check, reason, fix), hosts in alike.items():
        mark = output.paint(_MARKS[status], tables.STYLES[_MARKS[status]], output.STDOUT)
        text += [f"{mark}  {folded(hosts)}: {check}: {reason}", f"      {fix}"]
    if done.silent:
        again = f"distlaunch logs {done.run.id} --node {done.silent[0]}"
        text.append(f"FAIL  {folded(done.hosts[node] for node in done.silent)}: no report came from there: {again}")
    if done.pairs:
        picture = done.run.path / examination.PICTURE
        text += ["", *link_picture.text(done.pairs).splitlines(), "", f"as a picture: {picture}"]
    output.result(done.to_json(), *text)


def _marks(done: Examination) -> dict[int, list[str]]:
    """By node, a mark for each check."""
    own: dict[tuple[int, str], list[Finding]] = {place: [] for place in done.seen}
    for finding in done.found:
        own.setdefault((finding.node, finding.check), []).append(finding)

    def mark(node: int, check: str) -> str:
        return _MARKS[findings.worst(own[node, check])] if (node, check) in own else "-"

    return {node: [mark(node, check) for check in checks.known()] for node in done.hosts}
