"""What the command line costs, against an empty Python and the command lines of torchrun and torchx.

    python benchmarks/cli.py [--rounds 9] [--runs 1000]

`ls` lists `--runs` finished runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import Contender, show, side_by_side, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks._measure import Sample

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {"distlaunch --help": 9, "distlaunch ls": 7}
"""Highest CPU time of these commands, as a multiple of an empty Python's."""

EMPTY, IMPORT = "python -c pass", "import distlaunch"
IMPORT_S = 0.06
"""Highest wall time of `import distlaunch` beyond an empty Python's."""


def make_runs(directory: Path, count: int) -> None:
    """Create finished runs as the launcher records them."""
    for number in range(count):
        name = f"train-20250101-{number // 3600:02}{number // 60 % 60:02}{number % 60:02}-aaaa"
        nodes = [{"node_rank": rank, "host": f"gpu-{rank:03}", "workers": 8} for rank in range(4)]
        about = {"backend": "local", "command": ["train.py", "--lr", "3"], "created": 1.0, "cwd": "/", "nodes": "4"}
        result = {"state": "success", "exit_code": 0, "cause": None, "nodes": [{"node": rank} for rank in range(4)]}
        (directory / name).mkdir(parents=True)
        (directory / name / "run.json").write_text(json.dumps({**about, "handle": {}, "plan": {"nodes": nodes}}))
        (directory / name / "result.json").write_text(json.dumps(result))


def ours(scratch: Path, runs: int) -> list[Contender]:
    """distlaunch's commands, with this many runs to list, and with ten."""
    make_runs(scratch / "many", runs)
    make_runs(scratch / "few", 10)
    (scratch / "x.py").write_text("")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)

    def command(*args: str, among: str = "few") -> Contender:
        name = " ".join(["distlaunch", *args]) + (f" ({runs} runs)" if among == "many" else "")
        argv = [sys.executable, "-m", "launcher", *args]
        return Contender(name, argv, {**env, "DISTLAUNCH_RUNS_DIR": str(scratch / among)}, str(scratch))

    commands = [command("--help"), command("ls"), command("ls", among="many"), command("status", "last")]
    return [*commands, command("local", "--dry-run", "x.py")]


def import_time(samples: Mapping[str, Sequence[Sample]]) -> str:
    """What `import distlaunch` takes beyond an empty Python, by wall time."""
    pairs = zip(samples[IMPORT], samples[EMPTY], strict=True)
    return f"import distlaunch, s: {verdict([ours.wall_s - empty.wall_s for ours, empty in pairs], at_most=IMPORT_S)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--no-warm-up", action="store_true", help="count the first round, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        commands = ours(Path(scratch), options.runs)
        env = commands[0].env
        contenders = [Contender(EMPTY, [sys.executable, "-c", "pass"], env), *commands]
        contenders += [Contender(IMPORT, [sys.executable, "-c", "import distlaunch"], env)]
        for peer, package in (("torchrun", "torch"), ("torchx", "torchx")):
            path = shutil.which(
                peer, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
            )
            if path:
                contenders.append(Contender(f"{peer} --help", [path, "--help"], env))
            else:
                print(f"{peer} is not here to compare with; pip install {package}", file=sys.stderr)
        samples = side_by_side(contenders, rounds=options.rounds, warm=not options.no_warm_up)
        print(show(samples, base=EMPTY, at_most=TARGETS), import_time(samples), sep="\n")


if __name__ == "__main__":
    main()
