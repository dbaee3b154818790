"""Sends a run's job to Slurm, exactly once, from here or through a login node."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO, TYPE_CHECKING, Any

from launcher import output
from launcher.agent.outputs.packs import LIST
from launcher.agent.system.files import SENT_MTIME_S
from launcher.backends._writing import write_beside, write_files
from launcher.backends.slurm import inherited, jobs, one_file, run_files, submitit
from launcher.backends.slurm.site import LoginSite
from launcher.errors import BackendUnavailableError, StorageError
from launcher.login import remote
from launcher.login.store import USES, Store, listing, pack_bytes, uses, write_pack
from launcher.payload import agent_archive
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.backends.slurm.handle import SlurmHandle
    from launcher.backends.slurm.plan import SlurmPlan
    from launcher.backends.slurm.site import Site
    from launcher.login.store import Missing
    from launcher.payload.snapshot import Snapshot

_SBATCH_S = 90.0
_CUT, _FULL, _TWICE = 21, 22, 23

SEND = r"""
mask=$(umask)
umask 077
cd "$1" || exit 22
in="$1/incoming.$$"
trap 'rm -rf "$in"' EXIT
trap 'exit 21' HUP INT PIPE TERM
mkdir "$in" && (cd "$in" && tar xf -) || exit 22
[ -e "$in/complete" ] || exit 21
rm -f "runs/$2/cancel.json"
mkdir -p "runs/$2" && cp -R "$in/run/." "runs/$2/" || exit 22
for pack in "$in"/packs/*; do
    [ ! -e "$pack" ] || mv -f "$pack" packs/ || exit 22
done
[ -e "runs/$2/agent.pyz" ] || cp "packs/$3" "runs/$2/agent.pyz" || exit 22
rm -rf "$in" "claims/$2"
mkdir "runs/$2/submitted-0" 2>/dev/null || exit 23
command unset $4 2>/dev/null
umask "$mask"
cd "runs/$2" && sbatch "$1/runs/$2/job.sbatch"
"""
"""Takes a tar on stdin; `submitted-0` lets the first attempt be submitted once, whatever becomes of the connection.

Its last argument: variables that would override the job file. Slurm gives workers the umask that sbatch has.
"""


_AGAIN = r"""
mask=$(umask)
umask 077
cd "$1" || exit 22
cat > "spec.json.$$" || { rm -f "spec.json.$$"; exit 22; }
[ "$(wc -c < "spec.json.$$")" -eq "$2" ] || { rm -f "spec.json.$$"; exit 21; }
[ -r job.sbatch ] && rm -f cancel.json && mv -f "spec.json.$$" spec.json || exit 22
mkdir "submitted-$3" 2>/dev/null || exit 23
command unset $4 2>/dev/null
umask "$mask"
sbatch "$1/job.sbatch" || { code=$?; rm -r "submitted-$3"; exit "$code"; }
"""
"""Takes the new spec on stdin; what else the run needs is in its directory. What sbatch refuses may be tried again."""


Submit = Callable[[], str]
"""Calls sbatch once; returns the job's id."""


def prepared(site: Site, plan: SlurmPlan, texts: Mapping[str, str], hosts: set[str]) -> Submit:
    """Write everything the job needs, or look up what has to be sent; nothing is submitted yet.

    `hosts`: where the job may run, if that is known.
    """
    submitit.check()
    if not isinstance(site, LoginSite):
        run_files.fill(plan, plan.run_dir, texts)
        return partial(submitit.send, str(plan.run_dir / "job.sbatch"))
    contents = _written(plan, texts)
    if not site.has_shell:
        return partial(one_file.send, site, one_file.text(plan, contents, site.top))
    name = f"agent-{agent_archive.digest()[:32]}.pyz"
    store = Store(site.login, site.top)
    project = plan.job.project or ""
    missing = store.missing(plan.placed.snapshot, name, plan.run_dir.name, project)
    _warn(site, missing, hosts)

    def write(target: IO[bytes]) -> None:
        if missing.new and plan.placed.snapshot:
            _write_pack(plan.placed.snapshot, missing, target)
        with tarfile.open(fileobj=target, mode="w|") as tar:
            if missing.agent:
                _add(tar, f"packs/{name}", agent_archive.packed())
            if plan.placed.snapshot:
                packs = (*missing.packs, *filter(None, [missing.new]))
                listed = listing(plan.placed.snapshot, packs, site.top, project)
                _add(tar, f"run/{LIST}", json.dumps(listed).encode("ascii"))
                _add(tar, f"run/{USES}", uses(packs, project))
            for task in plan.tasks:
                _add(tar, f"run/tasks/{task}/.keep", b"")
            for file, content in contents.items():
                _add(tar, f"run/{file}", content)
            _add(tar, "complete", b"")

    def submit() -> str:
        overriding = " ".join(inherited.stated(plan.text))
        answer = remote.run(
            site.login, SEND, site.top, plan.run_dir.name, name, overriding, timeout_s=_SBATCH_S, write=write
        )
        job_id = _job_id(site, plan.run_dir.name, site.top, answer)
        store.sent(missing)
        return job_id

    return submit


def _written(plan: SlurmPlan, texts: Mapping[str, str]) -> dict[str, bytes]:
    """The files of the run's directory, once they are here."""
    contents = {name: text.encode(errors="surrogateescape") for name, text in texts.items()}
    write_files(plan.run_dir, contents)
    beside = write_beside(plan.run_dir, plan.job)
    run_files.make_tasks(plan, plan.run_dir)
    return contents | {name: (plan.run_dir / name).read_bytes() for name in beside}


def _warn(site: LoginSite, missing: Missing, hosts: set[str]) -> None:
    """Warn of a directory that the nodes may not see."""
    kind, host = missing.disk
    if kind and not hosts <= {host.partition(".")[0], host}:
        output.warn(
            f"{site.login.name}: remote_dir {site.top} is on a local disk of {host} ({kind}); "
            "unless all nodes see it there, the run cannot start"
        )


def again(site: Site, handle: SlurmHandle, attempt: int) -> Submit:
    """Have the same job submitted once more, as this attempt. Raises `StorageError` if its files are gone."""
    run_dir = Path(handle["run_dir"])
    if not isinstance(site, LoginSite):
        file = run_dir / "spec.json"
        storage.write_whole(file, _spec(file, storage.read_json(file), attempt))
        return partial(submitit.send, str(run_dir / "job.sbatch"))
    file = Path(handle["remote"], "spec.json")  # another host may have submitted it
    text = _spec(file, jobs.specs(site, [handle["remote"]]).get(handle["remote"]), attempt)
    job_file = site.read([f"{handle['remote']}/job.sbatch"])
    overriding = [name for content in job_file.values() for name in inherited.stated(content.decode(errors="replace"))]
    words = (handle["remote"], str(len(text)), str(attempt), " ".join(overriding))
    send = partial(remote.run, site.login, _AGAIN, *words)
    return lambda: _job_id(site, run_dir.name, handle["remote"], send(timeout_s=_SBATCH_S, stdin=text))


def _spec(file: Path, spec: Mapping[str, Any] | None, attempt: int) -> bytes:
    """The agents' request for this attempt."""
    if spec is None:
        raise StorageError(f"{file} cannot be read")
    return storage.encode_json({**spec, "attempt": attempt})


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), 0o600, SENT_MTIME_S
    tar.addfile(info, io.BytesIO(content))


def _write_pack(snapshot: Snapshot, missing: Missing, target: IO[bytes]) -> None:
    """The pack, as the first member of the tar that is sent; it is a tar itself, of whole blocks."""
    info = tarfile.TarInfo(f"packs/{missing.new}")
    info.size, info.mode, info.mtime = pack_bytes(missing.files), 0o600, SENT_MTIME_S
    target.write(info.tobuf(tarfile.PAX_FORMAT))
    write_pack(snapshot, missing.files, target)


def _job_id(site: LoginSite, run: str, where: str, answer: remote.Answer) -> str:
    """Raises what `submitit.job_id` raises, and `StorageError` for a disk that is full."""
    if answer.code == _CUT:
        raise BackendUnavailableError(f"the connection to {site.login.name} broke while files were sent")
    if answer.code == _FULL:
        why = remote.reason(answer.stderr)
        raise StorageError(f"{site.login.name}: {where} cannot be written to: {why}", hint=_NOTHING)
    if answer.code == _TWICE:
        raise BackendUnavailableError(f"{run} was submitted before", in_part=True)
    return submitit.job_id(CompletedProcess(["sbatch"], answer.code, answer.text, answer.stderr))


_NOTHING = "nothing was submitted; make room there, or name another remote_dir"
