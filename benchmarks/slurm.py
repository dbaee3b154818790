"""The cost of a submission, and the time to a finished all_reduce, on a real Slurm that it brings up itself.

    python benchmarks/slurm.py [--rounds 5]          as root: it makes network namespaces, see docs/testbed.md
    python benchmarks/slurm.py --rounds 1 --no-warm-up --only 'sbatch,distlaunch --detach,distlaunch'

Submission: `distlaunch slurm --detach` against plain `sbatch` of the file that it sends, and against submitit's
executor; CPU time on the login node. All_reduce: 2 nodes with 4 workers each, against sbatch of a hand-written file
with srun and torchrun, to that file's last line; the output of every rank is checked. `sbatch --wait` would not do: it
looks for the job's end after 2, 10, 42 and 74 s.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import ROOT, Contender, Sample, environment, median, paired_ratios, side_by_side, verdict
from benchmarks.start import problem
from testbed import SlurmOptions, Testbed, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from testbed.slurm import Slurm

NODES, WORKERS = 2, 4
SUBMISSIONS = ("distlaunch --detach", "sbatch", "submitit")
REDUCTIONS = ("distlaunch", "srun torchrun")
MORE_THAN_SBATCH_S = 0.3
WALL_RATIO = 0.5

BY_HAND = """#!/bin/bash
#SBATCH --job-name=reduce
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --output={directory}/by-hand.out
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun {python} -m torch.distributed.run --nnodes {nodes} --nproc-per-node {workers} --rdzv-id "$SLURM_JOB_ID" \\
    --rdzv-backend c10d --rdzv-endpoint "$head:29500" {script}
echo $? >{ended}
"""

BY_SUBMITIT = """
import submitit, sys
executor = submitit.SlurmExecutor(folder=sys.argv[1])
executor.update_parameters(nodes=int(sys.argv[2]), ntasks_per_node=1)
print(executor.submit(print, "hello").job_id)
"""


def show(title: str, samples: dict[str, list[Sample]], what: str) -> None:
    """Print medians, and the ratio of the first contender to each other one."""
    print(title)
    first = next(iter(samples), "")
    for name, taken in samples.items():
        print(f"  {name:<22}  wall {median(taken, 'wall_s'):6.2f} s   cpu {median(taken, 'cpu_s'):6.3f} s")
    for peer in list(samples)[1:]:
        print(
            f"  {first} / {peer}, {what[:-2]} ratio: {verdict(paired_ratios(samples[first], samples[peer], what))}",
            flush=True,
        )


def rounds_of(contenders: Sequence[Contender], options: argparse.Namespace, slurm: Slurm) -> dict[str, list[Sample]]:
    """Run all in turn, after a round that warms caches; the cluster is idle before each run.

    Processes left behind do not count, since the cluster's daemons are children of this process.
    """

    def idle() -> None:
        slurm.cancel_all()
        slurm.wait_idle()

    wanted = [contender for contender in contenders if contender.name in options.only.split(",")]
    contenders = [replace(contender, before=partial(before_each, idle, contender.before)) for contender in wanted]
    return side_by_side(contenders, rounds=options.rounds, warm=not options.no_warm_up, detached=False)


def before_each(idle: Callable[[], None], own: Callable[[], None] | None) -> None:
    """Wait until the cluster is idle, then do what the contender itself asks for."""
    idle()
    if own:
        own()


def submissions(slurm: Slurm, directory: Path, env: dict[str, str]) -> list[Contender]:
    """Three ways to submit the same kind of job to Slurm."""
    python = sys.executable
    ours = [python, "-m", "launcher", "slurm", "--nodes", str(NODES), "--nproc-per-node", str(WORKERS)]
    script = str(ROOT / "train/reduce.py")
    hold = ["--sbatch", "hold"]  # only the submission is measured
    slurm.run((*ours, *hold, "--render-to", str(directory / "rendered"), script), env=env, cwd=str(directory))
    by_submitit = directory / "by_submitit.py"
    by_submitit.write_text(BY_SUBMITIT)
    return [
        Contender("distlaunch --detach", [*ours, *hold, "--detach", script], env, str(directory)),
        Contender("sbatch", ["sbatch", str(directory / "rendered/job.sbatch")], env, str(directory)),
        Contender("submitit", [python, str(by_submitit), str(directory / "submitit"), str(NODES)], env, str(directory)),
    ]


def reductions(directory: Path, env: dict[str, str]) -> list[Contender]:
    """From the command to the end of the job, by distlaunch and by hand."""
    script, python = str(ROOT / "train/reduce.py"), sys.executable
    file, out, ended = (directory / name for name in ("by_hand.sbatch", "by-hand.out", "by-hand.ended"))
    os.mkfifo(ended)  # so that its end need not be looked for
    words = {
        "nodes": NODES,
        "workers": WORKERS,
        "directory": directory,
        "ended": ended,
        "python": shlex.quote(python),
        "script": shlex.quote(script),
    }
    file.write_text(BY_HAND.format(**words))
    ours = [
        python,
        "-m",
        "launcher",
        "slurm",
        "--nodes",
        str(NODES),
        "--nproc-per-node",
        str(WORKERS),
        "--log-ranks",
        "all",
        script,
    ]
    check = partial(problem, NODES * WORKERS)

    def check_file(_: str) -> str | None:
        wait_until("its output", lambda: check(out.read_text()) is None, limit_s=10)
        return check(out.read_text())

    return [
        Contender("distlaunch", ours, env, str(directory), check=check, limit_s=180),
        Contender(
            "srun torchrun", ["sh", "-c", f'sbatch {file} && exit "$(cat {ended})"'], env, str(directory),
            before=lambda: out.unlink(missing_ok=True), check=check_file, limit_s=180,
        ),
    ]  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-warm-up", action="store_true", help="count the first round, too")
    parser.add_argument("--only", default=",".join((*SUBMISSIONS, *REDUCTIONS)), help="which, with commas")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        Testbed().up(NODES, slurm=SlurmOptions(cpus_per_host=WORKERS)) as testbed,
    ):
        slurm, directory = testbed.slurm, Path(name)
        env = {
            **environment(directory),
            **{key: value for key, value in slurm.env().items() if key.startswith("SLURM")},
        }
        env["PATH"] += os.pathsep + slurm.env()["PATH"]
        samples = rounds_of(submissions(slurm, directory, env), options, slurm)
        show(f"submission, {options.rounds} rounds", samples, "cpu_s")
        if {"distlaunch --detach", "sbatch"} <= samples.keys():
            more_s = statistics.median(
                a.cpu_s - b.cpu_s for a, b in zip(*map(samples.__getitem__, SUBMISSIONS[:2]), strict=True)
            )
            met = "met" if more_s <= MORE_THAN_SBATCH_S else "MISSED"
            print(f"  more CPU than sbatch: {more_s:.3f} s (target <= {MORE_THAN_SBATCH_S:g} s: {met})")
        samples = rounds_of(reductions(directory, env), options, slurm)
        show(
            f"{NODES} nodes with {WORKERS} workers each, to the end of the job, {options.rounds} rounds",
            samples,
            "wall_s",
        )
        if samples.keys() == set(REDUCTIONS):
            found = paired_ratios(samples[REDUCTIONS[0]], samples[REDUCTIONS[1]], "wall_s")
            print(f"  wall ratio: {verdict(found, at_most=WALL_RATIO)}")


if __name__ == "__main__":
    main()
