"""Which MPI a node has, and how its mpirun learns about the nodes: by the settings of each generation at once.

Open MPI 5 ignores the names of Open MPI 4's settings silently, and the reverse; so both are set. A setting of the
user's own is left as it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Sequence, Tuple

from ..failures import CannotError
from ..job import LOOPBACK
from ..named_tuple import NamedTuple
from ..system.scratch import in_memory

OPEN_MPI, HYDRA, INTEL = "Open MPI", "hydra", "Intel MPI"
_PMI = {OPEN_MPI: "pmix", HYDRA: "pmi2"}
"""What each speaks with Slurm, as `srun --mpi` names it."""

SRUN = "srun"
START = "DISTLAUNCH_MPI_START"
"""A variable of the user's: `mpirun` keeps Slurm from starting the ranks."""

_OVERLAPS = (20, 11)
"""The first Slurm whose steps share CPUs only if asked to."""

_FENCE = "SLURM_PMIX_FENCE"
"""The form of the barrier of MPI_Init in Slurm's PMIx. By default, Open MPI 5 may crash in it (open-mpi/ompi#12495),
presumably as it lets ranks through before all have come. As a ring, it did not in 80 starts."""

_VERSION_S = 20.0
_VERSIONS = (
    (OPEN_MPI, "Open MPI", r"\(Open MPI\) (\S+)"),
    (HYDRA, INTEL, r"(?s)Intel\(R\) MPI Library.*?Version (\S+)"),
    (HYDRA, "MPICH", r"HYDRA build details:\s+Version:\s+(\S+)"),
)
_OF_LAUNCHER = ("SLURM_", "SLURMD_", "PMI_", "PMI2_", "PMIX_", "OMPI_COMM_", "OMPI_UNIVERSE", "PBS_", "LSB_")
"""An mpirun that finds these asks that scheduler or MPI for its hosts, and not ours."""

_OF_RANK = (
    "OMPI_", "PMIX_", "PRTE_", "OPAL_", "PMI_", "PMI2_", "MPI_", "MPIR_", "HYD", "I_MPI_", "GTL_", "SLURM_PMI",
    "SLURM_MPI",
)  # fmt: skip
_LIBRARIES = "LD_LIBRARY_PATH"


class Vendor(NamedTuple):
    """An MPI's start-up."""

    kind: str
    """`Open MPI`, or `hydra` for all MPIs that descend from MPICH."""

    name: str
    version: str
    mpirun: str
    """Its path."""


_asking = threading.Lock()
_found: Dict[Tuple[Tuple[str, str], ...], Vendor] = {}
_with_slurm: Dict[Vendor, bool] = {}


def look_ahead(env: Dict[str, str], *, slurm: bool) -> None:
    """Have the answers of `find`, and of `speaks_with_slurm` if `slurm`, by the time when they are asked for."""

    def look() -> None:
        with contextlib.suppress(CannotError):  # which is raised again then
            vendor = find(env)
            if slurm:
                speaks_with_slurm(vendor, env)

    threading.Thread(target=look, name="mpi", daemon=True).start()


def find(env: Dict[str, str]) -> Vendor:
    """The MPI next to this Python, else the one on PATH. Raises `CannotError` if there is none, or an unknown one."""
    which = tuple(sorted(env.items()))
    with _asking:
        if which not in _found:
            _found[which] = _find(env)
        return _found[which]


def _find(env: Dict[str, str]) -> Vendor:
    places = [os.path.dirname(sys.executable), *env.get("PATH", os.defpath).split(os.pathsep)]
    found = next((path for place in places for path in _programs(place)), None)
    if found is None:
        raise CannotError(f"no mpirun, neither on PATH nor beside {sys.executable}")
    try:
        done = subprocess.run(
            [found, "--version"],
            env=_beside(found, env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotError(f"{found} --version: {error}") from error
    said = (done.stdout + done.stderr).decode(errors="replace")
    for kind, name, pattern in _VERSIONS:
        version = re.search(pattern, said)
        if version:
            return Vendor(kind, name, version[1], found)
    raise CannotError(f"{found} is neither Open MPI's, nor MPICH's, nor Intel's: {' '.join(said.split())[:200]}")


def _beside(mpirun: str, env: Dict[str, str]) -> Dict[str, str]:
    """Variables with which `mpirun` finds the programs next to it: Intel's is a script that takes them from PATH."""
    place, path = os.path.dirname(mpirun), env.get("PATH", os.defpath)
    return env if place in path.split(os.pathsep) else {**env, "PATH": f"{place}{os.pathsep}{path}"}


def _programs(place: str) -> List[str]:
    paths = [os.path.join(place, name) for name in ("mpirun", "mpiexec")]
    return [path for path in paths if os.access(path, os.X_OK) and os.path.isfile(path)]


def hosts(peers: Sequence[Dict[str, Any]], here: str) -> List[str]:
    """A name for each node that mpirun can use: node 0's is that of this host, and none occurs twice."""
    found = [here]
    for node, peer in enumerate(peers[1:], 1):
        name = re.sub(r"[^\w.-]", "-", str(peer["host"]))
        found.append(f"{name}-node-{node}" if name in found else name)
    return found


def command(vendor: Vendor, hosts_file: str, address: str, remote_shell: str, counts: Sequence[int]) -> List[str]:
    """mpirun with its options; the program to start follows. Raises `CannotError`.

    `address`: node 0's. `counts`: the number of ranks on each node.
    """
    count = ["-np", str(sum(counts))]
    if vendor.kind == OPEN_MPI:
        return [vendor.mpirun, *count]
    if len(counts) == 1:
        address = LOOPBACK
    if ":" in address:
        raise CannotError(f"{vendor.name}'s mpirun speaks no IPv6, and node 0 is reached at {address}")
    start = ["-launcher", "ssh", "-launcher-exec", remote_shell, "-f", hosts_file]
    return [vendor.mpirun, *start, "-localhost", address, "-genvlist", "PATH", *count]


def speaks_with_slurm(vendor: Vendor, env: Dict[str, str]) -> bool:
    """Whether srun can start the ranks: it offers what the MPI speaks, here in a step of a job."""
    with _asking:
        if vendor not in _with_slurm:
            _with_slurm[vendor] = _speaks_with_slurm(vendor, env)
        return _with_slurm[vendor]


def _speaks_with_slurm(vendor: Vendor, env: Dict[str, str]) -> bool:
    import shutil  # only node 0 asks

    srun = shutil.which(SRUN, path=env.get("PATH", os.defpath))
    if "SLURM_PROCID" not in env or not srun or env.get(START) == "mpirun":
        return False
    try:
        version, kinds = (
            subprocess.run([srun, option], env=env, capture_output=True, timeout=_VERSION_S, check=False)
            for option in ("--version", "--mpi=list")
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    number = re.search(rb"(\d+)\.(\d+)", version.stdout)
    offers = (kinds.stdout + kinds.stderr).decode(errors="replace").split()
    return _PMI[vendor.kind] in offers and number is not None and (int(number[1]), int(number[2])) >= _OVERLAPS


def step(vendor: Vendor, names: Sequence[str], counts: Sequence[int], group: str = "") -> List[str]:
    """The command of a step of this job with one task per rank, on the hosts of SLURM_HOSTFILE, in its order.

    `group`: of a heterogeneous job, that of these hosts.
    """
    size = [f"--nodes={len(names)}", f"--ntasks={sum(counts)}", "--distribution=arbitrary"]
    size += [f"--het-group={group}"] if group else []
    shared = [
        "--overlap",
        "--overcommit",
        "--mem=0",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--export=ALL",
        "--input=none",
    ]
    return [SRUN, "--quiet", f"--mpi={_PMI[vendor.kind]}", *size, *shared]


def of_step(vendor: Vendor, env: Dict[str, str], hosts_file: str) -> Dict[str, str]:
    """The variables of srun: those of the job and of Slurm's PMIx, and none that srun takes for options."""
    kept = {name: value for name, value in env.items() if not name.startswith(_OF_LAUNCHER)}
    taken = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_CLUSTERS")
    kept.update((name, value) for name, value in env.items() if name in taken or name.startswith("SLURM_PMIX_"))
    fence = {_FENCE: "ring"} if vendor.kind == OPEN_MPI else {}
    return {**fence, **kept, "SLURM_HOSTFILE": hosts_file}


def hosts_text(vendor: Vendor, names: Sequence[str], counts: Sequence[int]) -> str:
    """The file that lists the nodes, each with the number of its workers."""
    form = "{} slots={}\n" if vendor.kind == OPEN_MPI else "{}:{}\n"
    return "".join(form.format(name, count) for name, count in zip(names, counts))


def environment(vendor: Vendor, env: Dict[str, str], hosts_file: str, remote_shell: str) -> Dict[str, str]:
    """The variables of mpirun and of what it starts, given those of workers."""
    kept = {name: value for name, value in _beside(vendor.mpirun, env).items() if not name.startswith(_OF_LAUNCHER)}
    ours = {
        "plm_rsh_agent": f"sh {remote_shell}",  # a daemon looks for the first word, and the path is that of node 0
        "plm_rsh_no_tree_spawn": "1",  # the remote shell's path is that of node 0
        "orte_default_hostfile": hosts_file,
        "orte_keep_fqdn_hostnames": "1",
        "orte_leave_session_attached": "1",  # a daemon stays the child of the agent, which sees how it ends
        "rmaps_base_mapping_policy": "slot",
        "rmaps_base_oversubscribe": "1",
        "hwloc_base_binding_policy": "none",
    }
    newer = {
        "plm_ssh_agent": f"sh {remote_shell}",
        "plm_ssh_no_tree_spawn": "1",
        "prte_default_hostfile": hosts_file,
        "prte_keep_fqdn_hostnames": "1",
        "prte_leave_session_attached": "1",
        "rmaps_default_mapping_policy": "slot:oversubscribe",
        "hwloc_default_binding_policy": "none",
    }
    found = {
        **{f"OMPI_MCA_{name}": value for name, value in ours.items()},
        **{f"PRTE_MCA_{name}": value for name, value in newer.items()},
    }
    if os.geteuid() == 0:
        names = (f"{of}_ALLOW_RUN_AS_ROOT{more}" for of in ("OMPI", "PRTE") for more in ("", "_CONFIRM"))
        found.update(dict.fromkeys(names, "1"))
    return {**found, **kept}


def private_files(vendor: Vendor, scratch: str) -> Dict[str, str]:
    """Variables with which an Open MPI keeps its files in a new directory of the run, in memory.

    A killed daemon leaves them behind, named by its pid. The next daemon with that pid would exit, and not say why.
    """
    if vendor.kind != OPEN_MPI or not in_memory(scratch):
        return {}
    own = os.path.join(scratch, f"mpi-{time.monotonic_ns()}")
    os.mkdir(own, 0o700)
    return {"TMPDIR": own}


def signal_in(vendor: Vendor, name: str, code: int) -> int:
    """The signal that has ended mpirun, by its exit code; 0 if none has. Intel's is a shell script around it.

    `name`: of the program; srun ends with such a code after it has lost a rank by a signal.
    """
    is_script = vendor.name == INTEL and name != SRUN
    return -code if code < 0 else code - 128 if is_script and code > 128 else 0


def of_rank(vendor: Vendor, given: Dict[str, str], env: Dict[str, str]) -> Dict[str, str]:
    """What the MPI has added to the variables of a rank, `given`, as compared to the workers' own, `env`."""
    added = {name: value for name, value in given.items() if name.startswith(_OF_RANK) and env.get(name) != value}
    if vendor.kind == OPEN_MPI and _LIBRARIES in given:  # hydra passes on node 0's
        added[_LIBRARIES] = given[_LIBRARIES]
    return added


def rank_of(given: Dict[str, str]) -> int:
    """The rank that the MPI gave. Raises `CannotError` if it gave none."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"):
        if given.get(name, "").isdigit():
            return int(given[name])
    raise CannotError("mpirun has started a rank without its number")
