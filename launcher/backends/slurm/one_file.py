"""A run in one job file, for a login node that takes single commands only: the job unpacks what it needs.

The job file is sbatch's stdin. A shell reads its body whole before it runs any of it, so one that was cut off with the
connection is a syntax error, not half a run.
"""

from __future__ import annotations

import base64
import io
import json
import shlex
import tarfile
from subprocess import CompletedProcess
from typing import TYPE_CHECKING

from launcher.agent.outputs.packs import LIST
from launcher.backends.slurm import submitit
from launcher.errors import BackendUnavailableError, CommandError, SpecError
from launcher.login.store import USES, listing, pack_of, uses, write_pack
from launcher.payload import agent_archive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.backends.slurm.plan import SlurmPlan
    from launcher.backends.slurm.site import Site

LARGEST_BYTES = 4 << 20
"""Slurm's own limit on a job file (`max_script_size`)."""

_SBATCH_S = 90.0
_LINE = 76
_MODE = 0o600

_UNPACK = r"""
# What the run needs is at the end of this file; the first task of an array unpacks it.
distlaunch_unpack() (
    umask 077
    [ -e {directory}/spec.json ] && exit
    new={directory}.$SLURM_JOB_ID
    mkdir -p "$new" && distlaunch_files | base64 -d | tar -xzf - -C "$new" && [ -e "$new/complete" ] || exit
    mv -T "$new" {directory} 2>/dev/null || [ -e {directory}/spec.json ] || exit
    rm -rf "$new"
)
distlaunch_files() {{
    cat <<'END_OF_FILES'
{data}
END_OF_FILES
}}
distlaunch_unpack || {{
    echo "distlaunch: {top} cannot be written to on $SLURMD_NODENAME: it is to be a directory that all nodes see" >&2
    exit 2
}}
"""


def output_file(top: str, run: str, *, array: bool) -> str:
    """Where Slurm puts what the job prints: the run's directory is not there before the job."""
    return f"{top.rstrip('/')}/{run}".replace("%", "%%") + ("-%a.out" if array else ".out")


def text(plan: SlurmPlan, contents: Mapping[str, bytes], top: str) -> str:
    """The whole job file. Raises `SpecError` if Slurm would refuse its size."""
    lines = plan.text.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    data = base64.b64encode(_archive(plan, contents, top)).decode("ascii")
    folded = "\n".join(data[start : start + _LINE] for start in range(0, len(data), _LINE))
    unpack = _UNPACK.format(directory=shlex.quote(str(plan.directory)), data=folded, top=top)
    found = "".join([*lines[:first], "{", unpack, *lines[first:], "}\n"])
    if len(found) > LARGEST_BYTES:
        size = f"{len(found) / 1e6:.1f} MB"
        raise SpecError(
            f"the job file, with the files in it, has {size}, and Slurm takes {LARGEST_BYTES >> 20} MB",
            hint="nothing was submitted; list what is not needed in .gitignore, or use --in-place",
        )
    return found


def send(site: Site, job_file: str) -> str:
    """Submit the job file and return the job's id, as `submitit.send` does."""
    try:
        done = site.run(("sbatch",), timeout_s=_SBATCH_S, stdin=job_file.encode(errors="surrogateescape"))
    except CommandError as error:
        raise BackendUnavailableError(error.message, in_part=True) from error
    return submitit.job_id(CompletedProcess(done.args, done.returncode, done.stdout, done.stderr))


def _archive(plan: SlurmPlan, contents: Mapping[str, bytes], top: str) -> bytes:
    """The run's directory."""
    found = {"agent.pyz": agent_archive.packed(), **contents}
    if (snapshot := plan.placed.snapshot) is not None:
        files = tuple(file for file in snapshot.files if file.link is None)
        name, pack = pack_of(files), io.BytesIO()
        write_pack(snapshot, tuple({file.sha256: file for file in files}.values()), pack)
        listed = {**listing(snapshot, (name,), top, plan.job.project or ""), "store": f"{plan.directory}/packs"}
        found |= {f"packs/{name}": pack.getvalue(), LIST: json.dumps(listed).encode("ascii")}
        found[USES] = uses((), plan.job.project or "")
    found |= {f"tasks/{task}/.keep": b"" for task in plan.tasks} | {"complete": b""}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for path, content in found.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), _MODE
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()
