"""Run a testbed by hand: `python -m testbed up --hosts 4 --slurm`; `clean` removes what a crashed one left behind."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from testbed import kube_builds, kube_image, kube_programs, packages, registry
from testbed.errors import NotAvailableError, TestbedError
from testbed.kube_conf import KubeOptions
from testbed.kube_kinds import KINDS
from testbed.slurm_conf import SlurmOptions
from testbed.testbed import Testbed

if TYPE_CHECKING:
    from collections.abc import Sequence


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m testbed", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring one up, and take it down at Ctrl-C")
    up.add_argument("--hosts", type=int, default=4, help="how many (default: 4)")
    up.add_argument("--ssh", action="store_true", help="with an sshd in each host")
    up.add_argument("--slurm", action="store_true", help="with Slurm")
    up.add_argument("--accounting", action="store_true", help="Slurm with slurmdbd and MariaDB, so that sacct answers")
    up.add_argument("--kubernetes", action="store_true", help="with Kubernetes, whose nodes they are")
    up.add_argument("--controllers", type=names, default=(), help=f"of other kinds of jobs there: {','.join(KINDS)}")
    up.add_argument("--simulated", type=int, default=0, help="so many more nodes there that only seem to run pods")
    up.add_argument("--gpus", type=int, default=0, help="fake GPUs per host, for Slurm or Kubernetes to schedule")
    up.add_argument("--cpus", type=int, default=2, help="CPUs that each host says it has (default: 2)")
    up.add_argument("--switches", type=sizes, default=(), help="hosts below each leaf switch, as 2,2")
    up.add_argument(
        "--directory",
        type=Path,
        help="an empty directory for its files, which stay (default: one in /tmp that does not)",
    )
    commands.add_parser(
        "build", help="build Kubernetes' programs now, as `up --kubernetes` does when they are not there"
    )
    commands.add_parser("clean", help="remove what testbeds of dead owners left behind")
    return top


def sizes(text: str) -> tuple[int, ...]:
    """Parse `2,2`."""
    return tuple(int(part) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Parse `a,b`."""
    return tuple(text.split(","))


def main(argv: Sequence[str]) -> int:
    """Run one command."""
    args = parser().parse_args(argv)
    try:
        if args.command == "clean":
            return clean()
        if args.command == "build":
            return build()
        return up(args)
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def clean() -> int:
    """Remove leftovers, but no testbed whose owner is alive."""
    packages.require(packages.NETWORK)
    with registry.locked():
        removed = registry.clean()
        kept = registry.read()
    if forgotten := packages.forget_policy():
        print(f"removed {packages.POLICY}, left by an installation that was killed")
    for record in removed:
        print(f"removed testbed {record.index} ({record.network}), left by process {record.pid}")
    for record in kept:
        print(
            f"testbed {record.index} ({record.network}) belongs to process {record.pid}, which is alive: "
            f"{record.owner.command()}"
        )
    if not removed and not forgotten:
        print("nothing to remove")
    return 0


def build() -> int:
    """Build all programs that are missing; report those that fail to build."""
    reasons = []
    for each in kube_builds.ALL:
        try:
            kube_programs.require(each)
            print(f"{each.name}: {kube_programs.directory(each)}")
        except NotAvailableError as error:
            reasons.append(str(error))
            print(f"error: {error}", file=sys.stderr)
    return 1 if reasons else 0


def up(args: argparse.Namespace) -> int:
    """Bring up a testbed, print how to use it, and wait for Ctrl-C."""
    # SIGINT too: a shell makes background commands ignore it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    slurm = None
    kubernetes = None
    if args.kubernetes or args.controllers or args.simulated:
        kubernetes = KubeOptions(gpus_per_host=args.gpus, controllers=args.controllers, simulated_nodes=args.simulated)
    if args.slurm or args.accounting or args.switches or (args.gpus and not kubernetes):
        slurm = SlurmOptions(
            cpus_per_host=args.cpus, gpus_per_host=args.gpus, accounting=args.accounting, switches=args.switches
        )
    try:
        with Testbed(args.directory).up(args.hosts, slurm=slurm, ssh=args.ssh, kubernetes=kubernetes) as testbed:
            print(
                describe(testbed, slurm=slurm is not None, ssh=args.ssh, kubernetes=kubernetes is not None), flush=True
            )
            while True:
                signal.pause()
    except KeyboardInterrupt:
        print("taken down", flush=True)
    return 0


def interrupt(_number: int, _frame: object) -> NoReturn:
    """Exit as on Ctrl-C."""
    raise KeyboardInterrupt


def describe(testbed: Testbed, *, slurm: bool, ssh: bool, kubernetes: bool) -> str:
    """How to use the testbed."""
    first, last = testbed.hosts[0], testbed.hosts[-1]
    lines = [
        f"testbed {testbed.record.index}: {first.name} ({first.address}) to {last.name} ({last.address})",
        f"files and logs: {testbed.directory}",
    ]
    if slurm:
        lines += [
            "Slurm, from any shell of this machine:",
            f"    export SLURM_CONF={testbed.slurm.files.conf}",
            "    sinfo",
            f"    srun -N{len(testbed.hosts)} hostname",
        ]
    if ssh:
        lines += [
            "SSH and Ansible:",
            f"    ssh -F {testbed.ssh.config} {first.name} hostname",
            f"    ansible --inventory {testbed.ssh.inventory} nodes -m ansible.builtin.ping",
        ]
    if kubernetes:
        lines += [
            f"Kubernetes, with an image {kube_image.PINNED} that has torch:",
            f"    export KUBECONFIG={testbed.kube.kubeconfig}",
            f"    {kube_programs.find(kube_builds.KUBERNETES, 'kubectl')} get nodes",
        ]
    lines += [
        f"A shell in {first.name}, its cable out, its cable in:",
        f"    {' '.join(first.argv('bash', cwd='/'))}",
        f"    ip -n {first.switch} link set {first.name} down",
        f"    ip -n {first.switch} link set {first.name} up",
        "Ctrl-C takes everything down.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
