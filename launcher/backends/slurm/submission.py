"""Sends a run's job to Slurm, exactly once, from here or through a login node."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from subprocess import CompletedProcess
from typing import IO, TYPE_CHECKING

from launcher.agent.outputs.packs import LIST
from launcher.agent.outputs.tree import SENT_MTIME_S
from launcher.backends._writing import write_beside, write_files
from launcher.backends.slurm import run_files, submitit
from launcher.backends.slurm.site import LoginSite
from launcher.errors import BackendUnavailableError, StorageError
from launcher.login import remote
from launcher.login.store import Store, listing, write_pack
from launcher.payload import agent_archive
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.backends.slurm.plan import SlurmPlan
    from launcher.backends.slurm.site import Site
    from launcher.login.store import Missing
    from launcher.payload.snapshot import Snapshot

_SBATCH_S = 60.0
_CUT, _FULL, _TWICE = 21, 22, 23

SEND = r"""
umask 077
cd "$1" || exit 22
in="$1/incoming.$$"
trap 'rm -rf "$in"' EXIT
trap 'exit 21' HUP INT PIPE TERM
mkdir "$in" && (cd "$in" && tar xf -) || exit 22
[ -e "$in/complete" ] || exit 21
for pack in "$in"/packs/*; do
    [ ! -e "$pack" ] || mv -f "$pack" packs/ || exit 22
done
rm -f "runs/$2/cancel.json"
mkdir -p "runs/$2" && cp -R "$in/run/." "runs/$2/" || exit 22
[ -e "runs/$2/agent.pyz" ] || cp "packs/$3" "runs/$2/agent.pyz" || exit 22
rm -rf "$in"
mkdir "runs/$2/submitted-$4" 2>/dev/null || exit 23
cd "runs/$2" && sbatch "$1/runs/$2/job.sbatch"
"""
"""Takes a tar on stdin; `submitted-N` lets attempt N be submitted once, whatever becomes of the connection."""


Submit = Callable[[], str]
"""Calls sbatch once; returns the job's id."""


def prepared(site: Site, plan: SlurmPlan, texts: Mapping[str, str]) -> Submit:
    """Write everything the job needs, or look up what has to be sent; nothing is submitted yet."""
    if not isinstance(site, LoginSite):
        run_files.fill(plan, plan.run_dir, texts)
        return partial(submitit.send, str(plan.run_dir / "job.sbatch"))
    contents = {name: text.encode(errors="surrogateescape") for name, text in texts.items()}
    write_files(plan.run_dir, contents)
    beside = write_beside(plan.run_dir, plan.job)
    run_files.make_tasks(plan, plan.run_dir)
    contents |= {name: (plan.run_dir / name).read_bytes() for name in beside}
    agent = agent_archive.packed()
    name = f"agent-{hashlib.sha256(agent).hexdigest()[:32]}.pyz"
    store = Store(site.login, site.top)
    missing = store.missing(plan.placed.snapshot, name)

    def write(target: IO[bytes]) -> None:
        with tarfile.open(fileobj=target, mode="w|") as tar:
            if missing.agent:
                _add(tar, f"packs/{name}", agent)
            if missing.new and plan.placed.snapshot:
                _add_pack(tar, plan.placed.snapshot, missing)
            if plan.placed.snapshot:
                packs = (*missing.packs, *filter(None, [missing.new]))
                listed = listing(plan.placed.snapshot, packs, site.top, plan.job.project or "")
                _add(tar, f"run/{LIST}", json.dumps(listed).encode("ascii"))
            for task in plan.tasks:
                _add(tar, f"run/tasks/{task}/.keep", b"")
            for file, content in contents.items():
                _add(tar, f"run/{file}", content)
            _add(tar, "complete", b"")

    def submit() -> str:
        job_id = _call(site, plan.run_dir.name, name, 0, write)
        store.sent(missing)
        return job_id

    return submit


def again(site: Site, run_dir: Path, attempt: int) -> Submit:
    """Have the same job submitted once more, as this attempt. Raises `StorageError` if its files are gone."""
    spec = storage.read_json(run_dir / "spec.json")
    if spec is None:
        raise StorageError(f"{run_dir / 'spec.json'} cannot be read")
    text = storage.encode_json({**spec, "attempt": attempt})
    storage.write_whole(run_dir / "spec.json", text)
    if not isinstance(site, LoginSite):
        return partial(submitit.send, str(run_dir / "job.sbatch"))

    def write(target: IO[bytes]) -> None:
        with tarfile.open(fileobj=target, mode="w|") as tar:
            _add(tar, "run/spec.json", text)
            _add(tar, "complete", b"")

    return partial(_call, site, run_dir.name, "none", attempt, write)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), 0o600, SENT_MTIME_S
    tar.addfile(info, io.BytesIO(content))


def _add_pack(tar: tarfile.TarFile, snapshot: Snapshot, missing: Missing) -> None:
    """The pack, as a member of what is sent."""
    with tempfile.TemporaryFile() as pack:
        write_pack(snapshot, missing.files, pack)
        info = tarfile.TarInfo(f"packs/{missing.new}")
        info.size, info.mode, info.mtime = pack.tell(), 0o600, SENT_MTIME_S
        pack.seek(0)
        tar.addfile(info, pack)


def _call(site: LoginSite, run: str, agent: str, attempt: int, write: Callable[[IO[bytes]], None]) -> str:
    """The job's id. Raises what `submitit.job_id` raises, and `StorageError` for a disk that is full."""
    submitit.check()
    answer = remote.run(site.login, SEND, site.top, run, agent, str(attempt), timeout_s=_SBATCH_S, write=write)
    if answer.code == _CUT:
        raise BackendUnavailableError(f"the connection to {site.login.name} broke while files were sent")
    if answer.code == _FULL:
        why = remote.reason(answer.stderr)
        raise StorageError(f"{site.login.name}: {site.top} cannot be written to: {why}", hint=_NOTHING)
    if answer.code == _TWICE:
        raise BackendUnavailableError(f"{run} was submitted before", in_part=True)
    return submitit.job_id(CompletedProcess(["sbatch"], answer.code, answer.text, answer.stderr))


_NOTHING = "nothing was submitted; make room there, or name another remote_dir"
